"""What every store promises a program that reads it or works on it as a whole."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from segmentstore import (
    AttributeUpdate,
    BadAttributeUpdateError,
    BadOffsetError,
    ContainerStoppedError,
    InvalidArgumentError,
    MissingExtraError,
    SegmentNotFoundError,
    SegmentStoreError,
    SegmentTruncatedError,
    StoreApi,
    UpdateType,
    WriterNotOpenError,
    WrongEventLoopError,
)
from tests.contracts.store_api_world import WRITER, A, B, StoreApiWorld, all_of, put
from tests.store.harness import attribute, run


class StoreReadsContract(StoreApiWorld):
    """Reads, attributes, the store as a whole, its end."""

    # --- reads ------------------------------------------------------------------------------------

    def test_reads(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            data = bytes(range(250)) * 4
            await store.create_segment("x")
            await store.append("x", data)
            await store.flush("x")
            await store.flush()
            assert (await store.get_info("x")).storage_length == 1000
            part = await store.read("x", 17, 30)
            assert part
            assert data[17:47].startswith(part)
            assert await all_of(store, "x", 17) == data[17:]
            assert await store.read("x", 1000, 10) == b""
            assert await store.read("x", 1000, 10, wait=0.0) == b""
            with pytest.raises(BadOffsetError):
                await store.read("x", 1001, 1)
            for arguments in ((-1, 1), (0, 0), ("0", 1), (0, 1, -1)):
                with pytest.raises(InvalidArgumentError):
                    await store.read("x", *arguments)

        self.check(tmp_path, body)

    def test_a_read_at_the_tail_waits(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            waiting = [asyncio.ensure_future(store.read("x", 0, 10, 60.0)) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            await store.append("x", b"hello")
            assert await asyncio.gather(*waiting[1:]) == [b"hello"] * 2
            assert await store.read("x", 5, 10, 0.001) == b""

        self.check(tmp_path, body)

    def test_followers(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")

            async def follow() -> bytes:
                return b"".join([chunk async for chunk in store.reader("x", follow=True)])

            followers = [asyncio.ensure_future(follow()) for _ in range(3)]
            expected = b""
            for number in range(50):
                piece = b"<%d>" % number * (number % 7)
                await store.append("x", piece)
                expected += piece
            await store.seal("x")
            assert await asyncio.gather(*followers) == [expected] * 3

        self.check(tmp_path, body)

    def test_a_reader_has_a_place(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            await store.append("x", b"hello")
            reader = store.reader("x", 1)
            assert await reader.fetch(3) == b"lo"
            assert reader.offset == 1
            assert await anext(reader) == b"ello"
            assert reader.offset == 5
            with pytest.raises(StopAsyncIteration):
                await anext(reader)
            await store.append("x", b"!")
            assert await anext(reader) == b"!"
            with pytest.raises(InvalidArgumentError):
                store.reader("x", -1)

        self.check(tmp_path, body)

    @pytest.mark.parametrize("end", ["delete", "merge", "truncate"])
    def test_a_follower_of_what_goes_away(self, tmp_path: Path, end: str) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            await store.create_segment("y")
            await store.append("x", b"abc")
            reader = store.reader("x", follow=True)
            if end == "truncate":
                await store.truncate("x", 2)
                with pytest.raises(SegmentTruncatedError):
                    await anext(reader)
                return
            assert await anext(reader) == b"abc"
            step = asyncio.ensure_future(anext(reader))
            await store.get_info("x")
            await (store.delete("x") if end == "delete" else store.merge("y", "x"))
            with pytest.raises(SegmentNotFoundError):
                await step
            if end == "delete":
                await store.create_segment("x")
                await store.append("x", b"abcdef")
                with pytest.raises(SegmentNotFoundError):
                    await anext(reader)

        self.check(tmp_path, body)

    # --- attributes -------------------------------------------------------------------------------

    def test_attributes(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            await store.update_attributes("x", [put(A, -(2**62)), put(B, 2)])
            await store.update_attributes("x", [])
            add = AttributeUpdate(B, UpdateType.ACCUMULATE, 5)
            await store.update_attributes("x", [add, add])
            assert await store.get_attributes("x") == {A: -(2**62), B: 12}
            assert await store.get_attributes("x", [B, attribute(7)]) == {B: 12}
            assert await store.get_attributes("x", []) == {}
            await store.update_attributes("x", [put(A, -(2**63))])
            assert await store.get_attributes("x") == {B: 12}
            with pytest.raises(BadAttributeUpdateError, match="already has a value"):
                await store.update_attributes("x", [AttributeUpdate(B, UpdateType.NONE, 1)])
            for updates in (7, [7], [put("x", 1)], [put(A, 2**63)]):  # type: ignore[arg-type]
                with pytest.raises(InvalidArgumentError):
                    await store.update_attributes("x", updates)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError):
                await store.get_attributes("x", [7])  # type: ignore[list-item]

        self.check(tmp_path, body)

    def test_iterating_attributes(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            values = {uuid.UUID(int=number << 64): number for number in range(700)}
            updates = [put(*item) for item in values.items()]
            await store.update_attributes("x", updates)
            keys = list(values)
            assert [item async for item in store.iterate_attributes("x")] == [*values.items()]
            assert await store.get_attributes("x") == values
            some = [item async for item in store.iterate_attributes("x", keys[100], keys[400])]
            assert some == [*values.items()][100:401]
            assert [item async for item in store.iterate_attributes("x", keys[5], keys[4])] == []
            iterator = store.iterate_attributes("x", keys[690])
            first = await iterator.fetch(None)
            assert first == await iterator.fetch(None) == [*values.items()][690:]
            assert await iterator.fetch(first[-1][0]) == []
            with pytest.raises(InvalidArgumentError):
                store.iterate_attributes("x", 7)  # type: ignore[arg-type]
            with pytest.raises(SegmentNotFoundError):
                [item async for item in store.iterate_attributes("gone")]

        self.check(tmp_path, body)

    def test_tasks_that_share_an_iterator_get_each_attribute_once(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            values = {uuid.UUID(int=number << 64): number for number in range(700)}
            await store.update_attributes("x", [put(*item) for item in values.items()])
            iterator = store.iterate_attributes("x")
            given: list[uuid.UUID] = []

            async def take() -> None:
                async for key, _ in iterator:
                    given.append(key)

            tasks = [asyncio.ensure_future(take()) for _ in range(4)]
            await asyncio.sleep(0)
            # It may be the one that all others wait for.
            tasks[0].cancel()
            await asyncio.wait(tasks)
            assert sorted(given) == list(values)

        self.check(tmp_path, body)

    # --- the store --------------------------------------------------------------------------------

    def test_the_store_as_a_whole(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with self.open_api(tmp_path / "s", containers=2) as (store, embedded):
                await store.create_segment("x")
                await store.append("x", bytes(500))
                await store.flush()
                await store.checkpoint()
                report = await store.collect_garbage()
                assert report.count() == len(report.items)
                assert await store.process_mailbox() == 0
                store.wake_mailbox()
                stats = await store.fetch_stats()
                assert stats.keys() == embedded.stats().keys()
                assert stats["containers"].keys() == {0, 1}
                assert stats["store_id"] == store.store_id
                assert stats["tier2"]["operations"].keys()
                health = await store.fetch_health()
                assert health["ready"]
                (here,) = embedded.health()["hosts"]
                assert here in health["hosts"]
                with suppress(MissingExtraError):
                    assert b"segmentstore_" in await store.fetch_metrics_text()

        run(main())

    def test_garbage_is_reported_alike(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with self.open_api(tmp_path / "s", deletion_lag_s=1000.0) as (store, embedded):
                await store.create_segment("x")
                await store.append("x", bytes(500))
                await store.flush()
                await store.delete("x")
                await store.flush()
                await store.checkpoint()
                theirs = await store.collect_garbage()
                ours = await embedded.collect_garbage()
                states = {(item.state, item.name, item.size) for item in theirs.items}
                assert states == {(item.state, item.name, item.size) for item in ours.items}
                assert theirs.findings == ours.findings
                assert all(item.until is not None for item in theirs.items)
                assert theirs.items

        run(main())

    def test_the_archive_of_the_log(self, tmp_path: Path) -> None:
        async def main() -> None:
            settings: dict[str, Any] = {
                "archive": tmp_path / "a",
                "offload_after_s": 1000.0,
                "archive_deletion_lag_s": 0.0,
                "frame_bytes_max": 200,
                "log_file_bytes": 8 * 1024 + 200,
            }
            async with self.open_api(tmp_path / "s", **settings) as (store, embedded):
                await store.create_segment("x")
                for _ in range(120):
                    await store.append("x", bytes(150))
                (report,) = await store.offload_prefix()
                assert [part.failure for part in report.parts] == [None] * len(report.parts)
                if embedded.config.tier1 == "file":
                    assert len(report.parts) > 1, "ledgers hold more than the files of this test"
                    # The last one may lie in the middle of an operation: none ends in it then.
                    last = max(part.last_sequence for part in report.parts)
                    assert report.first_not_archived > last >= 100
                # Behind the first pass of the archiver, which ends with hot copies to be deleted.
                (again,) = await store.offload_prefix(before=2, container=0)
                assert again.parts == ()
                parts = [each async for each in store.list_archived_parts()]
                assert [part.number for part in parts] == [part.number for part in report.parts]
                assert parts == [each async for each in embedded.list_archived_parts()]
                # A part that is complete is the log's to delete with the next step of the archiver.
                last = parts[0].last_sequence if parts else 5
                removed = await store.remove_archived_parts(last + 1, 0)
                assert removed == (0, min(1, len(parts)))
                left = [each.place async for each in store.list_archived_parts()]
                assert left == list(range(1, len(parts)))
                for wrong in (-1, "1"):
                    with pytest.raises(InvalidArgumentError):
                        await store.offload_prefix(wrong)  # type: ignore[arg-type]
                    with pytest.raises(SegmentStoreError):
                        await store.remove_archived_parts(5, wrong)  # type: ignore[arg-type]

        run(main())

    def test_a_store_without_an_archive(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            with pytest.raises(SegmentStoreError, match="has no archive"):
                await store.offload_prefix()
            with pytest.raises(SegmentStoreError, match="has no archive"):
                await store.remove_archived_parts(5, 0)
            with pytest.raises(SegmentStoreError, match="has no archive"):
                [each async for each in store.list_archived_parts()]

        self.check(tmp_path, body)

    def test_an_export_of_the_catalog(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            with suppress(MissingExtraError):
                (export,) = await store.export_catalog()
                assert export.container_id == 0
                assert export.rows["segments"] == 1

        self.check(tmp_path, body)

    def test_after_the_close(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with self.open_api(tmp_path / "s") as (store, _):
                await store.create_segment("x")
                await store.create_segment("y")
                writer = await store.writer("x", WRITER).open()
                on_its_way: list[Awaitable[object]] = [store.append("x", b"a"), writer.append(b"b")]
                waiting = asyncio.ensure_future(store.read("y", 0, 1, 60.0))
                await store.get_info("x")
                await store.close()
                await store.close()
                assert [await each for each in on_its_way] == [0, 1]
                with pytest.raises(ContainerStoppedError):
                    await waiting
                for call in (store.get_info, store.seal, store.delete, store.get_attributes):
                    with pytest.raises(ContainerStoppedError):
                        await call("x")
                with pytest.raises(ContainerStoppedError):
                    await store.append("x", b"c")
                with pytest.raises(ContainerStoppedError):
                    await writer.append(b"c")

        run(main())

    def test_another_event_loop(self, tmp_path: Path) -> None:
        async def elsewhere(store: StoreApi) -> None:
            with pytest.raises(WrongEventLoopError):
                await store.append("x", b"a")
            with pytest.raises(WrongEventLoopError):
                await store.get_info("x")
            with pytest.raises(WrongEventLoopError):
                store.reader("x")
            with pytest.raises(WrongEventLoopError):
                await store.close()

        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            await asyncio.to_thread(asyncio.run, elsewhere(store))

        self.check(tmp_path, body)

    def test_a_writer_that_is_not_open(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            writer = store.writer("x", WRITER)
            # Of a segment in memory, an embedded store knows the last event already.
            try:
                assert writer.last_event_number == -1
            except WriterNotOpenError:
                with pytest.raises(WriterNotOpenError):
                    _ = writer.append(b"x")
            assert (await writer.open()).last_event_number == -1

        self.check(tmp_path, body)
