"""Blocks of events as Pravega's clients send them: each event once, however blocks are cut."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from segmentstore import (
    ATTRIBUTE_UNSET,
    AppendTooLargeError,
    AttributeUpdate,
    BadAttributeUpdateError,
    BadOffsetError,
    ContainerStoppedError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStore,
    UpdateType,
    WrongEventLoopError,
)
from segmentstore.block_writer import BlockWriter
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import WorldDisk, attribute, open_tiny, read_all, run
from tests.store.test_idle_segments import FEW, made, make_idle

WRITER, OTHER, COUNT = attribute(1), attribute(2), attribute(1 << 127 | 1)
NONE = ATTRIBUTE_UNSET


def blocks_of(store: SegmentStore, name: str = "x") -> BlockWriter:
    return store.block_writer(name, WRITER, COUNT)


async def outcomes(futures: Sequence[asyncio.Future[int]]) -> list[Any]:
    return await asyncio.gather(*futures, return_exceptions=True)


def test_a_block_counts_its_events_and_has_the_number_of_its_last(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await store.create_segment("x")
            writer = blocks_of(store)
            assert await writer.last_number() == NONE
            assert await writer.append(b"abc", 3, NONE, 3) == 0
            assert await writer.append(b"d", 4, 3, 1) == 3
            # Numbers of other writers are their own, the count is the segment's.
            other = store.block_writer("x", OTHER, COUNT)
            assert await other.append(b"1", 70, NONE, 1) == 4
            assert await store.get_attributes("x") == {WRITER: 4, OTHER: 70, COUNT: 5}
        async with open_tiny(tmp_path / "s") as store:
            assert await blocks_of(store).last_number() == 4
            assert await store.get_attributes("x") == {WRITER: 4, OTHER: 70, COUNT: 5}

    run(main())


def test_blocks_that_are_cut_anew_are_stored_once(tmp_path: Path) -> None:
    """With "greater than the last number" events 1 and 2 would be there twice."""

    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await store.create_segment("x")
            old, new = blocks_of(store), blocks_of(store)
            on_its_way = old.append(b"12", 2, NONE, 2)
            # The new connection is answered before that is durable, and sends everything again.
            assert await new.last_number() == NONE
            assert not on_its_way.done()
            with pytest.raises(BadAttributeUpdateError) as caught:
                await new.append(b"12345", 5, NONE, 5)
            assert (caught.value.attribute_id, caught.value.current) == (WRITER, 2)
            assert await on_its_way == 0
            assert await new.last_number() == 2
            assert await new.append(b"345", 5, 2, 3) == 2
            assert await read_all(store, "x") == b"12345"
            assert await store.get_attributes("x") == {WRITER: 5, COUNT: 5}

    run(main())


@pytest.mark.parametrize(
    ("frame_bytes_max", "frames"), [(64 * 1024, range(1, 4)), (200, range(20, 200))]
)
def test_each_block_of_a_pipeline_builds_on_the_one_before(
    tmp_path: Path, frame_bytes_max: int, frames: range
) -> None:
    async def main() -> None:
        sizes: dict[str, Any] = {"frame_bytes_max": frame_bytes_max, "log_file_bytes": 128 * 1024}
        async with open_tiny(tmp_path / "s", **sizes) as store:
            await store.create_segment("x")
            before = frames_of(store)
            writer = blocks_of(store)
            sent = [
                writer.append(b"%02d" % number, 3 * number + 2, 3 * number - 1 or NONE, 3)
                if number
                else writer.append(b"00", 2, NONE, 3)
                for number in range(100)
            ]
            assert await outcomes(sent) == [2 * number for number in range(100)]
            assert frames_of(store) - before in frames
            assert await read_all(store, "x") == b"".join(b"%02d" % n for n in range(100))
            assert await store.get_attributes("x") == {WRITER: 299, COUNT: 300}

    run(main())


def frames_of(store: SegmentStore) -> int:
    return store.stats()["containers"][0]["processor"]["frames_committed"]


def test_a_refused_offset_leaves_the_number_and_ends_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await store.create_segment("x")
            writer = blocks_of(store)
            sent = [
                writer.append(b"1", 1, NONE, 1, expected_offset=0),
                writer.append(b"no", 2, 1, 1, expected_offset=0),
                writer.append(b"3", 3, 2, 1),  # it counts on the one that is refused
                writer.append(b"2", 2, 1, 1, expected_offset=1),
                writer.append(b"3", 3, 2, 1),
            ]
            one, refused, behind, two, three = await outcomes(sent)
            assert (one, two, three) == (0, 1, 2)
            assert isinstance(refused, BadOffsetError)
            assert (refused.expected, refused.actual) == (0, 1)
            assert isinstance(behind, BadAttributeUpdateError)
            assert (behind.attribute_id, behind.current) == (WRITER, 1)
            assert await read_all(store, "x") == b"123"
            assert await store.get_attributes("x") == {WRITER: 3, COUNT: 3}
            # The number is checked first: with both wrong it is what is reported.
            with pytest.raises(BadAttributeUpdateError):
                await writer.append(b"4", 4, 9, 1, expected_offset=9)

    run(main())


def test_after_a_crash_the_numbers_are_those_of_what_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        disk, events, location = WorldDisk(), bytes(range(60)), tmp_path / "0"
        async with open_tiny(location, runtime=Runtime(disk=disk)) as store:
            await store.create_segment("x")
        for size in (1, 3, 2, 5, 4):
            async with open_tiny(location, runtime=Runtime(disk=disk)) as store:
                stored = await stored_by_blocks(store, events)
                # Blocks of another size each time; of some of them the outcome is known.
                writer, sent = blocks_of(store), list[asyncio.Future[int]]()
                for begin in range(stored, stored + 10, size):
                    block = events[begin : begin + size]
                    number, previous = begin + len(block), begin or NONE
                    sent.append(writer.append(block, number, previous, len(block)))
                if size % 2:
                    await sent[0]
                location = Path(disk.crash_copy(location, tmp_path / f"crashed-{size}"))
                await asyncio.gather(*sent, return_exceptions=True)
        async with open_tiny(location) as store:
            stored = await stored_by_blocks(store, events)
            assert 9 <= stored < len(events)
            rest = events[stored:]
            await blocks_of(store).append(rest, len(events), stored, len(rest))
            assert await stored_by_blocks(store, events) == len(events)

    run(main())


async def stored_by_blocks(store: SegmentStore, events: bytes) -> int:
    """How many of the events are stored; bytes, number and count agree."""
    last = await blocks_of(store).last_number()
    stored = 0 if last == NONE else last
    assert await read_all(store, "x") == events[:stored]
    assert (await store.get_attributes("x")).get(COUNT, 0) == stored
    return stored


def test_every_refusal_says_what_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            for name in "xyz":
                await store.create_segment(name)
            with pytest.raises(SegmentNotFoundError):
                blocks_of(store, "nothing")
            sealed, deleted, merged = (blocks_of(store, name) for name in "xyz")
            await sealed.append(b"1", 1, NONE, 1)
            with pytest.raises(AppendTooLargeError):
                await sealed.append(bytes(4097), 2, 1, 1)
            await store.seal("x")
            with pytest.raises(SegmentSealedError):
                await sealed.append(b"2", 2, 1, 1)
            # What got in before is learnt of a sealed segment, too.
            assert await sealed.last_number() == 1
            # Of the name there is another segment, which is not the writer's.
            await store.delete("y")
            await store.create_segment("y")
            await store.create_segment("t")
            await store.merge("t", "z")
            for writer in (deleted, merged):
                with pytest.raises(SegmentNotFoundError):
                    await writer.append(b"1", 1, NONE, 1)
                with pytest.raises(SegmentNotFoundError):
                    await writer.last_number()
            assert (await store.get_info("y")).length == 0
            await asyncio.to_thread(_in_no_loop, sealed)
        with pytest.raises(ContainerStoppedError):
            await sealed.append(b"2", 2, 1, 1)
        with pytest.raises(ContainerStoppedError):
            await sealed.last_number()

    run(main())


def _in_no_loop(writer: BlockWriter) -> None:
    with pytest.raises(WrongEventLoopError):
        _ = writer.append(b"2", 2, 1, 1)


def test_a_number_that_was_removed_is_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await store.create_segment("x")
            writer = blocks_of(store)
            removal = AttributeUpdate(WRITER, UpdateType.REPLACE_IF_EQUALS, NONE, 1)
            sent = [
                writer.append(b"1", 1, NONE, 1),
                store.append("x", b"-", attributes=[removal]),
                writer.append(b"2", 2, 1, 1),
                writer.append(b"1", 1, NONE, 1),
            ]
            first, removed, refused, again = await outcomes(sent)
            assert (first, removed, again) == (0, 1, 2)
            assert isinstance(refused, BadAttributeUpdateError)
            assert refused.current is None

    run(main())


def test_an_idle_segment_is_written_to_with_and_without_asking_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store)
            await blocks_of(store, "s001").append(b"1", 1, NONE, 1)
            await make_idle(store, "s001")
            writer = blocks_of(store, "s001")
            sent = [writer.append(b"%d" % n, n, n - 1, 1) for n in range(2, 6)]
            assert await outcomes(sent) == [1, 2, 3, 4]
            await make_idle(store, "s001")
            assert await writer.last_number() == 5
            await make_idle(store, "s001")
            assert await writer.append(b"6", 6, 5, 1) == 5
            assert await store.get_attributes("s001") == {WRITER: 6, COUNT: 6}

    run(main())
