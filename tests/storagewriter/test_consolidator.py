"""Consolidation: few large objects of many small ones, beside readers, writers and truncations."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection
from functools import partial
from typing import Any

import pytest

from durablelog.operations import (
    LinkChunksOperation,
    ReplaceChunksOperation,
    StorageUpdateOperation,
)
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.chunks import ChunkRecord
from storagewriter import consolidation_plan, consolidator, object_uploader
from tests.storagewriter import fake_container
from tests.storagewriter.consolidating import GATED, LONG_S, WAYS, held, kinds, write
from tests.storagewriter.fake_container import (
    FakeContainer,
    LocalStorage,
    StorageWithoutCompose,
    make_config,
    run,
)
from tests.support.chunk_edits import chunk_at
from tier2.block_reader import BlockReader
from tier2.memory_object_storage import MemoryObjectStorage

pytestmark = pytest.mark.usefixtures("active_or_idle")


class TestWhatComesOut:
    @WAYS
    def test_small_objects_of_a_segment_become_one(self, storage_type: Any) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 4)
            assert kinds(c) == ["flush"] * 4
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["consolidation"]
            assert len(c.metadata.garbage) == 4
            assert c.writer.statistics().consolidated_objects == 4
            [name] = c.metadata.objects
            assert c.metadata.objects[name].record.size == len(c.storage.bucket.objects[name].data)

        run(body, storage_type=storage_type, consolidation_bytes=400)

    def test_downloaded_bytes_come_together_in_one_block(self) -> None:
        async def body(c: FakeContainer) -> None:
            a, b = c.create("a"), c.create("b")
            for _ in range(4):
                c.append(a, 40)
                c.append(b, 50)
                await c.writer.flush()
            await asyncio.sleep(LONG_S)
            assert [(k.start_offset, k.length) for k in c.segment(a).chunks] == [(0, 160)]
            assert [(k.start_offset, k.length) for k in c.segment(b).chunks] == [(0, 200)]
            assert c.storage.statistics().requests("get") == 4, (
                "a GET for each object, not for each chunk"
            )

        storage_type = partial(StorageWithoutCompose, compose_bytes_min=None)
        run(body, storage_type=storage_type, consolidation_bytes=300)

    @WAYS
    def test_objects_of_many_segments_stay_as_they_are_until_one_is_there_twice(
        self, storage_type: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consolidation_plan, "CHUNKS_MAX", 16)
        monkeypatch.setattr(consolidation_plan, "_CHUNKS_OF_AN_OBJECT", 0)

        async def flush_appends_to(c: FakeContainer, segments: Collection[int]) -> None:
            for segment_id in segments:
                c.append(segment_id, 10)
            await c.writer.flush()

        async def body(c: FakeContainer) -> None:
            segments = [c.create(f"s{number}") for number in range(20)]
            for first in range(0, 20, 4):
                await flush_appends_to(c, segments[first : first + 4])
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["flush"] * 5
            for _ in range(4):
                await flush_appends_to(c, segments[:4])
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["flush"] * 5 + ["consolidation"]

        run(body, storage_type=storage_type, consolidation_bytes=1 << 20)

    def test_a_block_stays_within_object_bytes(self) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 6)
            await asyncio.sleep(LONG_S)
            assert [k.length for k in c.segment(a).chunks] == [200, 200, 200]

        storage_type = partial(StorageWithoutCompose, compose_bytes_min=None)
        run(body, storage_type=storage_type, consolidation_bytes=600, object_bytes=250)

    def test_downloads_wait_for_their_budget(self) -> None:
        """Twenty groups of 400 bytes and their headers: at once without a bound, over a day with
        one.
        """

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 80)
            begun = asyncio.get_running_loop().time()
            for _ in range(24):
                await asyncio.sleep(hour_s)
                passed = asyncio.get_running_loop().time() - begun
                assert c.storage.statistics().bytes_received <= passed * rate + group_bytes
                assert c.storage.statistics().bytes_received >= min(
                    passed * rate - group_bytes, 80 * 100
                )
            assert c.writer.statistics().consolidated_objects == 80
            assert c.writer.health() is None

        hour_s, rate, group_bytes = 3600.0, 1, 4 * 300
        storage_type = partial(StorageWithoutCompose, compose_bytes_min=None)
        run(
            body,
            storage_type=storage_type,
            consolidation_bytes=400,
            consolidation_download_bytes_per_s=rate,
        )

    def test_what_is_copied_is_no_download(self) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 40)
            await asyncio.sleep(LONG_S)
            assert c.writer.statistics().consolidated_objects == 40

        run(body, consolidation_bytes=400, consolidation_download_bytes_per_s=1)

    def test_blocks_that_were_copied_keep_their_headers(self) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 4)
            before = list(c.segment(a).chunks)
            await asyncio.sleep(LONG_S)
            assert c.storage.statistics().requests("get") == 0
            for old, new in zip(before, c.segment(a).chunks, strict=True):
                assert new == old._replace(
                    object_name=new.object_name, block_offset=new.block_offset
                )

        run(body, consolidation_bytes=400)

    def test_many_short_ranges_are_downloaded_rather_than_copied(self) -> None:
        async def body(c: FakeContainer) -> None:
            ids = [c.create(f"s{i}") for i in range(5)]
            for _ in range(4):
                for each in ids:
                    c.append(each, 60)
                await c.writer.flush()
            await asyncio.sleep(LONG_S)
            assert c.writer.statistics().bytes_copied == 0
            assert c.writer.statistics().bytes_rewritten > 0
            assert all(len(c.segment(each).chunks) == 1 for each in ids)

        run(body, consolidation_bytes=1000)

    @WAYS
    def test_each_byte_is_written_about_once_more(self, storage_type: Any) -> None:
        async def body(c: FakeContainer) -> None:
            ids = [c.create(f"s{i}") for i in range(3)]
            for _ in range(60):
                for each in ids:
                    c.append(each, 50)
                await asyncio.sleep(1.2)
            await asyncio.sleep(LONG_S)
            statistics = c.writer.statistics()
            assert statistics.consolidations >= 10
            payload = statistics.bytes_written
            consolidated = sum(live.live_bytes for live in c.metadata.objects.values())
            assert consolidated == payload == 9000
            # Of 800 bytes of payload each; the blocks' headers and tables are the rest.
            blocks = sum(len(c.segment(each).chunks) for each in ids)
            assert statistics.bytes_copied + statistics.bytes_rewritten <= payload + 400 * max(
                blocks, 180
            )

        run(
            body,
            storage_type=storage_type,
            consolidation_bytes=800,
            flush_bytes=150,
            unflushed_target_bytes=150,
        )

    def test_a_mostly_dead_object_is_rewritten(self) -> None:
        async def body(c: FakeContainer) -> None:
            ids = [c.create(f"s{i}") for i in range(10)]
            for each in ids:
                c.append(each, 8000)
            await c.writer.flush()
            [old] = c.metadata.objects
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["flush"], "it is large, and all of it lives"
            for each in ids[:9]:
                c.delete(each)
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["consolidation"]
            assert old in c.metadata.garbage
            await asyncio.sleep(LONG_S)
            assert c.writer.statistics().consolidations == 1, "and not again"

        run(
            body,
            consolidation_bytes=60_000,
            flush_bytes=100_000,
            object_bytes=100_000,
            upload_bytes_max=100_000,
            extent_bytes=1024,
        )

    def test_an_object_that_is_linked_in_parts_is_not_taken_for_mostly_dead(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def body(c: FakeContainer) -> None:
            for number in range(10):
                c.append(c.create(f"s{number}"), 8000)
            flushing = asyncio.ensure_future(c.writer.flush())
            await asyncio.sleep(2 * LONG_S)
            # A flush of its own wakes the search for groups.
            other = c.create("other")
            await write(c, other, 1)
            await asyncio.sleep(LONG_S)
            [first, _] = c.metadata.objects
            assert 0 < c.metadata.objects[first].live_chunks < 5, "most of it is not linked yet"
            assert c.writer.statistics().consolidations == 0
            await flushing
            await asyncio.sleep(LONG_S)
            assert (kinds(c), c.metadata.objects[first].live_chunks) == (["flush"] * 2, 10)
            assert c.writer.statistics().consolidations == 0

        monkeypatch.setattr(object_uploader, "OPERATION_CHUNKS", 1)
        monkeypatch.setattr(fake_container, "LOG_LATENCY_S", 4.0)
        run(
            body,
            consolidation_bytes=60_000,
            flush_bytes=100_000,
            object_bytes=100_000,
            upload_bytes_max=200_000,
            extent_bytes=1024,
        )

    def test_what_is_left_over_waits_until_it_fills_an_object(self) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 3)
            await asyncio.sleep(100)
            assert kinds(c) == ["flush"] * 3
            await write(c, a, 1)
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["consolidation"]

        run(body, consolidation_bytes=400)

    def test_it_can_be_switched_off(self) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 20)
            await asyncio.sleep(100)
            assert kinds(c) == ["flush"] * 20

        run(body, consolidation_bytes=400, consolidation=False)

    @WAYS
    def test_after_a_restart_it_goes_on_with_what_is_there(self, storage_type: Any) -> None:
        async def main() -> None:
            config = make_config(consolidation_bytes=400, consolidation=False)
            c = FakeContainer(config, storage_type=storage_type)
            c.writer.start()
            a = c.create("a")
            await write(c, a, 4)
            await c.writer.stop()
            c = c.restart(dataclasses.replace(config, consolidation=True))
            c.writer.start()
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["consolidation"]
            c.check_stored()
            await c.writer.stop()
            again = c.restart(config)
            assert {n: o.live_chunks for n, o in again.metadata.objects.items()} == {
                n: o.live_chunks for n, o in c.metadata.objects.items()
            }
            again.check_stored()
            assert not c.failures

        run_virtual(main())


class TestMeanwhile:
    @GATED
    @pytest.mark.parametrize("change", ["truncate", "delete", "merge", "append"])
    def test_what_changes_while_it_runs_is_left_as_it_is(
        self, storage_type: Any, change: str
    ) -> None:
        async def body(c: FakeContainer) -> None:
            a, b = c.create("a"), c.create("b")
            for _ in range(4):
                c.append(a, 100)
                c.append(b, 60)
                await c.writer.flush()
            gate = await held(c)
            if change == "truncate":
                c.truncate(a, 150)
            elif change == "delete":
                c.delete(a)
            elif change == "merge":
                c.merge(b, a)
                await c.writer.flush()
            else:
                c.append(a, 30)
                c.append(b, 30)
            gate.set()
            await asyncio.sleep(LONG_S)
            c.check_stored()
            statistics = c.writer.statistics()
            # Chunks that a link moved meanwhile are found in the next pass.
            assert statistics.consolidations == (2 if change == "merge" else 1)
            assert statistics.replacements_refused == 0
            if change == "truncate":
                # The chunk the truncation falls into is still all there; what was wholly below is
                # missing.
                assert c.segment(a).chunks.first.start_offset == 100
                assert "consolidation" in c.segment(a).chunks.first.object_name
            assert "consolidation" in c.segment(b).chunks.first.object_name

        run(body, storage_type=storage_type, consolidation_bytes=500)

    @WAYS
    @pytest.mark.parametrize("whole", [True, False], ids=["at once", "in part"])
    def test_a_merge_linked_while_it_searches_for_chunks_is_not_written_twice(
        self, storage_type: Any, whole: bool
    ) -> None:
        class Merging(FakeContainer):
            """Merges the first segment into the second when the first has been looked through."""

            async def chunks_in(self, names: Collection[str]) -> dict[int, list[ChunkRecord]]:
                if not found_twice:
                    link = StorageUpdateOperation(links=[(target, source)])
                    some = LinkChunksOperation(target, source, 120)
                    asyncio.get_running_loop().call_soon(self.merge, target, source)
                    asyncio.get_running_loop().call_soon(self.put, link if whole else some)
                found = await super().chunks_in(names)
                found_twice.append(set(found) == {source, target})
                return found

            async def commit(self, operation: Any) -> None:
                if isinstance(operation, StorageUpdateOperation) and operation.links:
                    await linked.wait()
                await super().commit(operation)

        async def main() -> None:
            c = Merging(make_config(consolidation_bytes=300), storage_type=storage_type)
            c.writer.start()
            assert c.create("source") == source
            await write(c, source, 5, 60)
            assert c.create("target") == target
            async with c.held([target]):
                await asyncio.sleep(LONG_S)
            assert found_twice == [True]
            assert kinds(c) == ["consolidation"]
            assert (source in c.segments) is not whole
            linked.set()
            await asyncio.sleep(LONG_S)
            assert source not in c.segments
            c.check_stored()
            await c.writer.stop()
            assert not c.failures

        source, target, found_twice = 1, 12, list[bool]()
        linked = asyncio.Event()
        run_virtual(main())

    @GATED
    def test_if_nothing_of_it_is_wanted_any_more_it_is_garbage(self, storage_type: Any) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 4)
            gate = await held(c)
            c.delete(a)
            gate.set()
            await asyncio.sleep(LONG_S)
            assert not c.metadata.objects
            assert set(c.storage.bucket.objects) <= set(c.metadata.garbage)
            assert c.writer.health() is None

        run(body, storage_type=storage_type, consolidation_bytes=400)

    @WAYS
    def test_refused_by_the_log_what_changed_on_the_way_there(self, storage_type: Any) -> None:
        class Late(FakeContainer):
            """Truncates in front of the first replacement of chunks."""

            async def commit(self, operation: Any) -> None:
                if (
                    isinstance(operation, ReplaceChunksOperation)
                    and not self.segment(1).start_offset
                ):
                    self.truncate(1, 100)
                await super().commit(operation)

        async def main() -> None:
            c = Late(make_config(consolidation_bytes=400), storage_type=storage_type)
            c.writer.start()
            a = c.create("a")
            await write(c, a, 4)
            await asyncio.sleep(LONG_S)
            assert c.writer.statistics().replacements_refused == 1
            assert kinds(c) == ["flush"] * 3
            assert len(c.metadata.garbage) == 2
            c.check_stored()
            await c.writer.stop()
            assert not c.failures

        run_virtual(main())

    @WAYS
    def test_a_reader_in_the_middle_of_an_old_object_is_not_disturbed(
        self, storage_type: Any
    ) -> None:
        class Read(FakeContainer):
            reader: BlockReader

            def object_in_use(self, name: str) -> bool:
                return self.reader.in_use(name) or super().object_in_use(name)

        class SlowStorage(MemoryObjectStorage):
            """A store of its own over the same bucket, whose reads take long."""

            async def get_range(self, name: str, offset: int, length: int) -> bytes:
                await asyncio.sleep(30)
                return await super().get_range(name, offset, length)

        async def main() -> None:
            c = Read(
                make_config(consolidation_bytes=400, deletion_lag_s=0.0, extent_bytes=16),
                storage_type=storage_type,
            )
            c.reader = BlockReader(
                SlowStorage(c.runtime, c.storage.bucket), 7, c.runtime, extent_bytes=16
            )
            c.writer.start()
            a = c.create("a")
            await write(c, a, 4)
            chunk: ChunkRecord = chunk_at(c.segment(a), 1)
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(c.reader.read(chunk, 120, 50))
                await asyncio.sleep(10)
                assert kinds(c) == ["consolidation"]
                assert list(c.metadata.garbage) == [chunk.object_name], "the others are deleted"
            assert reading.result() == c.bytes[a][120:170]
            await asyncio.sleep(70)
            assert not c.metadata.garbage
            await c.writer.stop()
            assert not c.failures

        run_virtual(main())

    @GATED
    def test_what_it_reads_is_not_deleted_under_it(self, storage_type: Any) -> None:
        async def body(c: FakeContainer) -> None:
            a, b = c.create("a"), c.create("b")
            await write(c, a, 3)
            await write(c, b, 3)
            gate = await held(c)
            c.delete(a)
            await asyncio.sleep(100)
            assert len(c.metadata.garbage) == 3
            assert c.object_count == 6
            gate.set()
            await asyncio.sleep(100)
            assert c.writer.statistics().consolidation_failures == 0
            assert kinds(c) == ["consolidation"]
            assert c.object_count == 1

        run(body, storage_type=storage_type, consolidation_bytes=600, deletion_lag_s=0.0)

    def test_flushing_goes_first(self) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 3)
            c.storage.fail("put", 10**9)
            for length in (100, 450, 450, 450):
                c.append(a, length)
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["flush"] * 3
            c.storage.heal()
            await asyncio.sleep(60)
            assert "consolidation" in kinds(c)

        # 800 of what waits are in flight; the rest is above the target.
        run(body, consolidation_bytes=300, unflushed_target_bytes=300, flush_age_s=1000.0)

    @GATED
    def test_a_close_does_not_wait_for_a_download_but_for_an_upload(
        self, storage_type: Any
    ) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 4)
            gate = await held(c)
            loop = asyncio.get_running_loop()
            loop.call_later(1.0, gate.set)
            begun = loop.time()
            await c.writer.drain(5.0)
            copying = storage_type.keywords["compose_bytes_min"] is not None
            assert (loop.time() - begun >= 1.0) == copying
            await asyncio.sleep(LONG_S)
            assert kinds(c) == (["consolidation"] if copying else ["flush"] * 4)

        run(body, storage_type=storage_type, consolidation_bytes=400)

    def test_what_is_read_in_parts_is_charged_to_the_budget(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consolidator, "LOCAL_RUN_BYTES", 64)

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 80)
            await asyncio.sleep(3600)
            assert 1 <= c.writer.statistics().consolidations <= 3600 / 400 + 1
            await asyncio.sleep(2 * 3600)
            assert c.writer.statistics().consolidations == 20

        run(
            body,
            storage_type=LocalStorage,
            consolidation_bytes=400,
            consolidation_download_bytes_per_s=1,
        )

    @pytest.mark.parametrize("is_local", [False, True])
    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_large_objects_are_read_in_parts_where_a_request_costs_nothing(
        self, monkeypatch: pytest.MonkeyPatch, compression: str, is_local: bool
    ) -> None:
        monkeypatch.setattr(consolidator, "LOCAL_RUN_BYTES", 64)
        monkeypatch.setattr(consolidator, "FREED_BYTES_PER_TURN", 20)
        read: list[int] = []

        class Storage(StorageWithoutCompose):
            @property
            def is_local(self) -> bool:
                return is_local

            async def get_range(self, name: str, offset: int, length: int) -> bytes:
                read.append(length)
                return await super().get_range(name, offset, length)

        async def main() -> None:
            c = FakeContainer(
                make_config(consolidation_bytes=1000, extent_bytes=16, compression=compression),
                storage_type=Storage,
            )
            c.writer.start()
            a = c.create("a")
            await write(c, a, 4, 250)
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["consolidation"]
            # 250 bytes are 16 extents, and four of them are 64 bytes.
            assert len(read) > 4 * 3 if is_local else len(read) == 4
            c.check_stored()
            await c.writer.stop()
            assert not c.failures

        run_virtual(main())
