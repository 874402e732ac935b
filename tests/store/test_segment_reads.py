"""Segments through the public API: read at any offset, follow the tail, seal, truncate, delete."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from segmentstore import (
    AttributeUpdate,
    BadOffsetError,
    EndOfSegmentError,
    InvalidArgumentError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStore,
    SegmentTruncatedError,
    UpdateType,
)
from tests.store.harness import attribute, open_lazy, open_tiny, read_all, run, until


def waiting_readers(store: SegmentStore) -> int:
    return sum(
        container._read_index.statistics().readers_waiting for container in store._containers
    )


class TestRead:
    def test_every_offset_and_length_from_everywhere(self, tmp_path: Path) -> None:
        """Half in Tier 2, half not; then everything in Tier 2 and nothing in memory."""

        async def main() -> None:
            data = bytes(number % 251 for number in range(700))
            async with open_lazy(tmp_path / "s", tail_bytes_max=100) as store:
                await store.create_segment("x")
                await store.append("x", data[:390])
                await store.flush("x")
                await store.append("x", data[390:])
                await check(store)
            async with open_lazy(tmp_path / "s") as store:
                await check(store)
                await store.flush()
                await store.checkpoint()
            async with open_lazy(tmp_path / "s") as store:
                await check(store)

        async def check(store: SegmentStore) -> None:
            data = bytes(number % 251 for number in range(700))
            for offset in [*range(0, 700, 23), 389, 390, 391, 699]:
                for length in (1, 15, 64, 65, 1000):
                    got = await store.read("x", offset, length)
                    assert 1 <= len(got) <= length
                    assert got == data[offset : offset + len(got)]

        run(main())

    def test_outside_of_the_segment(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.append("x", b"0123456789")
                with pytest.raises(BadOffsetError) as beyond:
                    await store.read("x", 11, 1)
                assert (beyond.value.expected, beyond.value.actual) == (11, 10)
                await store.truncate("x", 4)
                with pytest.raises(SegmentTruncatedError) as below:
                    await store.read("x", 3, 1)
                assert below.value.start_offset == 4
                assert await store.read("x", 4, 100) == b"456789"
                assert await store.read("x", 10, 1) == b""
                assert await store.read("x", 10, 1, wait=0) == b""
                await store.seal("x")
                with pytest.raises(EndOfSegmentError) as end:
                    await store.read("x", 10, 1)
                assert end.value.length == 10
                assert await store.read("x", 9, 5) == b"9"

        run(main())

    @pytest.mark.parametrize(
        ("offset", "length", "wait"),
        [(-1, 1, None), (0, 0, None), (0, -5, None), (0, 1, -1), (0.0, 1, None), (0, 1, "1")],
    )
    def test_arguments_that_are_none(
        self, tmp_path: Path, offset: int, length: int, wait: float | None
    ) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                with pytest.raises(InvalidArgumentError):
                    await store.read("x", offset, length, wait)

        run(main())


class TestTail:
    """A read at the tail waits, and is woken by whatever settles what it waits for."""

    def test_the_wait_ends_without_data(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                assert await store.read("x", 0, 10, wait=0.01) == b""
                assert waiting_readers(store) == 0

        run(main())

    def test_woken_by_an_append(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                reads = [asyncio.ensure_future(store.read("x", 0, 10, wait=50)) for _ in range(3)]
                await until(lambda: waiting_readers(store) >= 1)
                await store.append("x", b"")
                await store.append("x", b"now")
                assert await asyncio.gather(*reads) == [b"now"] * 3

        run(main())

    def test_woken_by_seal(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                read = asyncio.ensure_future(store.read("x", 0, 10, wait=50))
                await until(lambda: waiting_readers(store) == 1)
                await store.seal("x")
                with pytest.raises(EndOfSegmentError):
                    await read

        run(main())

    def test_woken_by_delete(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                read = asyncio.ensure_future(store.read("x", 0, 10, wait=50))
                await until(lambda: waiting_readers(store) == 1)
                await store.delete("x")
                with pytest.raises(SegmentNotFoundError):
                    await read

        run(main())

    @pytest.mark.parametrize("content", [b"", b"source"])
    def test_woken_by_merge_on_both_sides(self, tmp_path: Path, content: bytes) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.create_segment("y")
                await store.append("y", content)
                target = asyncio.ensure_future(store.read("x", 0, 10, wait=50))
                source = asyncio.ensure_future(store.read("y", len(content), 10, wait=50))
                await until(lambda: waiting_readers(store) == 2)
                await store.merge("x", "y")
                with pytest.raises(SegmentNotFoundError):
                    await source
                if not content:
                    await store.append("x", b"later")
                assert await target == (content or b"later")

        run(main())

    def test_truncation_to_the_tail_leaves_it_waiting(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.append("x", b"abc")
                read = asyncio.ensure_future(store.read("x", 3, 10, wait=50))
                await until(lambda: waiting_readers(store) == 1)
                await store.truncate("x", 3)
                await store.append("x", b"d")
                assert await read == b"d"

        run(main())

    def test_a_cancelled_wait_leaves_nothing_behind(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                read = asyncio.ensure_future(store.read("x", 0, 10, wait=50))
                await until(lambda: waiting_readers(store) == 1)
                read.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await read
                assert waiting_readers(store) == 0

        run(main())


class TestSealTruncateDelete:
    def test_a_sealed_segment_takes_nothing_more(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                futures = [
                    store.append("x", b"abc"),
                    asyncio.ensure_future(store.seal("x")),
                    store.append("x", b"no"),
                ]
                results = await asyncio.gather(*futures, return_exceptions=True)
                assert results[0] == 0
                # The coroutine of `seal` begins a turn later than the appends' own calls.
                assert results[1] in {3, 5}
                length = (await store.get_info("x")).length
                for call in (
                    store.append("x", b""),
                    store.append_batch("x", [b"y"]),
                    store.seal("x"),
                ):
                    with pytest.raises(SegmentSealedError):
                        await call
                with pytest.raises(SegmentSealedError):
                    await store.update_attributes(
                        "x", [AttributeUpdate(attribute(1), UpdateType.REPLACE, 1)]
                    )
                await store.truncate("x", 2)
                await store.flush()
                info = await store.get_info("x")
                assert (info.sealed, info.sealed_in_storage, info.length, info.start_offset) == (
                    True,
                    True,
                    length,
                    2,
                )
            async with open_tiny(tmp_path / "s") as store:
                assert (await store.get_info("x")).sealed
                with pytest.raises(SegmentSealedError):
                    await store.append("x", b"y")
                await store.delete("x")

        run(main())

    def test_truncation_goes_forward_inside_of_the_segment(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.append("x", bytes(100))
                await store.truncate("x", 0)
                await store.truncate("x", 50)
                await store.truncate("x", 50)
                for offset, there in ((49, 50), (101, 100)):
                    with pytest.raises(BadOffsetError) as caught:
                        await store.truncate("x", offset)
                    assert (caught.value.expected, caught.value.actual) == (offset, there)
                with pytest.raises(InvalidArgumentError):
                    await store.truncate("x", -1)
                await store.truncate("x", 100)
                assert await store.append("x", b"on") == 100
                assert await read_all(store, "x", 100) == b"on"

        run(main())

    def test_a_refused_truncation_has_the_start_offset_that_is_on_its_way(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.append("x", bytes(100))
                first = asyncio.ensure_future(store.truncate("x", 50))
                await asyncio.sleep(0)
                with pytest.raises(BadOffsetError) as caught:
                    await store.truncate("x", 20)
                assert caught.value.actual == 50
                await first
                # Beyond the length it has that, and the start offset has to be asked for.
                with pytest.raises(BadOffsetError) as caught:
                    await store.truncate("x", 101)
                assert caught.value.actual == 100
                assert (await store.get_info("x")).start_offset == 50

        run(main())

    def test_truncated_and_deleted_objects_leave_tier2(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                for _ in range(10):
                    await store.append("x", bytes(200))
                    await store.flush()
                full = len(store._containers[0].metadata.objects)
                await store.truncate("x", 1500)
                await until(lambda: len(objects()) < full)
                assert await read_all(store, "x", 1500) == bytes(500)
                await store.delete("x")
                await until(lambda: not objects())
                # The log says so a moment later.
                await until(lambda: not store._containers[0].metadata.garbage)

        def objects() -> list[str]:
            # os.walk passes over folders that go away meanwhile.
            tree = os.walk(tmp_path / "s" / "tier2")
            return [name for _, _, names in tree for name in names if name.startswith("flush-")]

        run(main())

    def test_a_name_created_again_is_another_segment(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                old = await store.create_segment(
                    "x", [AttributeUpdate(attribute(1), UpdateType.REPLACE, 1)]
                )
                await store.append("x", b"old bytes")
                await store.flush()
                reader = store.reader("x", 4)
                writer = store.writer("x", attribute(9))
                await store.delete("x")
                with pytest.raises(SegmentNotFoundError):
                    await store.get_info("x")
                new = await store.create_segment("x")
                assert new.segment_id > old.segment_id
                await store.append("x", b"NEW")
                assert await read_all(store, "x") == b"NEW"
                assert await store.get_attributes("x") == {}
                with pytest.raises(SegmentNotFoundError):
                    await anext(reader)
                with pytest.raises(SegmentNotFoundError):
                    await writer.append(b"event")
                assert await read_all(store, "x") == b"NEW"
            async with open_tiny(tmp_path / "s") as store:
                assert (await store.get_info("x")).segment_id == new.segment_id
                assert await read_all(store, "x") == b"NEW"
                await store.delete("x")
                assert (await store.create_segment("x")).segment_id > new.segment_id

        run(main())

    def test_calls_on_what_is_not_there(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("there")
                calls: list[Callable[[], Awaitable[object]]] = [
                    lambda: store.append("x", b""),
                    lambda: store.append_batch("x", [b""]),
                    lambda: store.read("x", 0, 1),
                    lambda: store.get_info("x"),
                    lambda: store.seal("x"),
                    lambda: store.truncate("x", 0),
                    lambda: store.delete("x"),
                    lambda: store.merge("x", "there"),
                    lambda: store.merge("there", "x"),
                    lambda: store.get_attributes("x"),
                    lambda: store.update_attributes("x", []),
                    lambda: store.update_attributes(
                        "x", [AttributeUpdate(attribute(1), UpdateType.REPLACE, 1)]
                    ),
                    lambda: store.flush("x"),
                ]
                for call in calls:
                    with pytest.raises(SegmentNotFoundError) as caught:
                        await call()
                    assert caught.value.name == "x"
                with pytest.raises(SegmentNotFoundError):
                    store.reader("x")
                with pytest.raises(SegmentNotFoundError):
                    store.writer("x", attribute(1))

        run(main())
