"""Merging several segments by one call: in order, and repeatable whatever became of it before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery.harness.simulation.store_world import StoreWorld
from recovery.harness.simulation.tiny_pages import pages_of
from recovery.harness.simulation.world import SimulatedProcess
from segmentstore import (
    ContainerMismatchError,
    ContainerStoppedError,
    InvalidArgumentError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
    TierUnavailableError,
    TooManyActiveSegmentsError,
)
from segmentstore.container.eviction import ROOM_TIMEOUT_S
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segment_mapper import container_of
from tests.store.harness import WorldDisk, open_tiny, read_all, run
from tests.store.long_segments import SMALL
from tests.store.test_idle_segments import FEW, active, made, make_idle
from tests.store.test_merge import fill
from tests.store.test_partial_segments import CONTENT, filled, numbers

SOURCES = ["a", "b", "c"]


def test_sources_come_in_their_order_with_the_length_behind_each(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await fill(store, t=b"target.", a=b"a" * 300, b=b"", c=b"cc")
            before = [store.append("t", b"x") for _ in range(20)]
            merging = asyncio.ensure_future(store.merge_batch("t", ["c", "a", "b"]))
            await asyncio.sleep(0)
            behind = [store.append("t", b"y") for _ in range(20)]
            assert await merging == [29, 329, 329]
            assert await before[-1] == 26
            assert await behind[0] == 329
            await asyncio.gather(*before, *behind)
            expected = b"target." + b"x" * 20 + b"cc" + b"a" * 300 + b"y" * 20
            assert await read_all(store, "t") == expected
            assert [info.name async for info in store.list_segments()] == ["t"]
            assert await store.merge_batch("t", []) == []
        async with open_tiny(tmp_path / "s") as store:
            assert await read_all(store, "t") == expected

    run(main())


def test_what_is_missing_counts_as_merged(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await fill(store, t=b"1", b=b"22", d=b"333")
            assert await store.merge_batch("t", ["a", "b", "b", "c", "d", "e"]) == [
                *(1, 3, 3, 3, 6, 6),
            ]
            await store.append("t", b"4")
            assert await store.merge_batch("t", ["a", "b", "d"]) == [7, 7, 7]
            assert await read_all(store, "t") == b"1223334"

    run(main())


def test_a_batch_is_repeated_after_a_crash_with_the_same_result(tmp_path: Path) -> None:
    async def main() -> None:
        disk = WorldDisk()
        async with open_tiny(tmp_path / "begin", runtime=Runtime(disk=disk)) as store:
            await fill(store, t=b"t", a=b"a" * 150, b=b"b" * 250, c=b"c" * 50)
        expected = b"t" + b"a" * 150 + b"b" * 250 + b"c" * 50
        for turns in range(0, 24, 4):
            whole = disk.crash_copy(tmp_path / "begin", tmp_path / f"whole-{turns}")
            async with open_tiny(whole, runtime=Runtime(disk=disk)) as store:
                merging = asyncio.ensure_future(store.merge_batch("t", SOURCES))
                for _ in range(turns):
                    await asyncio.sleep(0)
                crashed = disk.crash_copy(whole, tmp_path / f"crashed-{turns}")
                assert await merging == [151, 401, 451]
                assert await store.merge_batch("t", SOURCES) == [451, 451, 451]
            async with open_tiny(crashed, runtime=Runtime(disk=disk)) as store:
                before = await read_all(store, "t")
                assert len(before) in (1, 151, 401, 451)
                # Those that were merged before the crash count with what was there by then.
                again = [max(length, len(before)) for length in (151, 401, 451)]
                assert await store.merge_batch("t", SOURCES) == again
                assert await read_all(store, "t") == expected

    run(main())


def test_what_another_call_has_on_its_way_counts_once_it_is_durable(tmp_path: Path) -> None:
    async def main() -> None:
        disk = WorldDisk()
        async with open_tiny(tmp_path / "s", runtime=Runtime(disk=disk)) as store:
            await fill(store, t=b"t", u=b"u", a=b"a" * 100, b=b"b" * 100)
            one, two, other = [
                asyncio.ensure_future(store.merge_batch(target, ["a", "b"])) for target in "ttu"
            ]
            assert await one == [101, 201]
            # Lengths are those of what is durable.
            assert await two == [201, 201]
            assert await other == [1, 1]
            assert await read_all(store, "t") == b"t" + b"a" * 100 + b"b" * 100
        store = await open_tiny(tmp_path / "s", runtime=Runtime(disk=disk))
        await fill(store, c=b"c" * 100)
        disk.log_sync_fails()
        failing = [
            asyncio.ensure_future(store.merge_batch("t", ["c"])),
            asyncio.ensure_future(store.merge_batch("t", ["c"])),
        ]
        # Of neither it is known whether the log has it.
        for outcome in await asyncio.gather(*failing, return_exceptions=True):
            assert not isinstance(outcome, list)
        disk.heal()
        await store.close()

    run(main())


def test_what_stops_a_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await fill(store, t=b"t", a=b"a", b=b"b", cut=b"cut")
            with pytest.raises(SegmentNotFoundError) as missing:
                await store.merge_batch("no", SOURCES)
            assert missing.value.name == "no"
            await store.truncate("cut", 1)
            for sources in ("abc", None, ["a", "t"]):
                with pytest.raises(InvalidArgumentError):
                    await store.merge_batch("t", sources)  # type: ignore[arg-type]
            assert await read_all(store, "t") == b"t"
            # What was accepted before goes before.
            seal = asyncio.ensure_future(store.seal("t"))
            await asyncio.sleep(0)
            with pytest.raises(SegmentSealedError) as sealed:
                await store.merge_batch("t", ["a", "b"])
            assert sealed.value.name == "t"
            await seal
            assert await store.merge_batch("t", ["no", "none"]) == [1, 1]
            assert [info.name async for info in store.list_segments()] == ["a", "b", "cut", "t"]
            await store.create_segment("u")
            deletion = asyncio.ensure_future(store.delete("u"))
            await asyncio.sleep(0)
            with pytest.raises(SegmentNotFoundError) as deleted:
                await store.merge_batch("u", ["a", "b"])
            assert deleted.value.name == "u"
            await deletion
        with pytest.raises(ContainerStoppedError):
            await store.merge_batch("t", SOURCES)

    run(main())


@pytest.mark.parametrize("on_its_way", [False, True])
def test_those_before_a_truncated_source_are_merged_and_none_behind_it(
    tmp_path: Path, on_its_way: bool
) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await fill(store, t=b"t", a=b"a", b=b"b", cut=b"cut", c=b"c")
            truncation = asyncio.ensure_future(store.truncate("cut", 1))
            await (asyncio.sleep(0) if on_its_way else truncation)
            with pytest.raises(SegmentTruncatedError) as refused:
                await store.merge_batch("t", ["a", "no", "b", "cut", "none", "c"])
            assert refused.value.name == "cut"
            await truncation
            assert await read_all(store, "t") == b"tab"
            assert [info.name async for info in store.list_segments()] == ["c", "cut", "t"]

    run(main())


def test_merges_of_idle_segments_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Each held one segment, and waited for room for another."""

    async def main() -> None:
        pairs = [(f"t{number}", f"s{number}") for number in range(8)]
        names = [name for pair in pairs for name in pair]
        async with open_tiny(tmp_path / "s", active_segments_max=4) as store:
            await fill(store, **{name: name.encode() for name in names})
            await store.flush()
            await store.checkpoint()
            merges = [store.merge(*pair) for pair in pairs[::2]]
            batches = [store.merge_batch(target, [source]) for target, source in pairs[1::2]]
            await asyncio.gather(*merges, *batches)
            for target, source in pairs:
                assert await read_all(store, target) == f"{target}{source}".encode()

    run(main())


@pytest.mark.parametrize("apart_s", [0.0, 3.0])
def test_merges_that_find_no_room_do_not_wait_one_after_another(apart_s: float) -> None:
    """Each had the whole time once the one before was refused: the last of 8 waited for 240 s. And
    of those that began a little later the second still waited for twice as long.
    """
    world = StoreWorld("no room", settings={"containers": 1, "active_segments_max": 4})
    refused: list[float] = []

    async def main(process: SimulatedProcess) -> None:
        loop = asyncio.get_running_loop()
        store = await world.open_store(process)
        idle = [f"s{number:02}" for number in range(16)]
        for name in (*idle, *"abcd"):
            await store.create_segment(name)
        (container,) = store._containers
        held = [await container._active.find(name) for name in "abcd"]
        begun = loop.time()

        async def merge(number: int, target: str, source: str) -> None:
            await asyncio.sleep(number * apart_s)
            begun = loop.time()
            with pytest.raises(TooManyActiveSegmentsError):
                await store.merge(target, source)
            refused.append(loop.time() - begun)

        await asyncio.gather(*map(merge, range(8), idle[::2], idle[1::2]))
        for segment in held[:2]:
            assert segment is not None
            container._eviction.unpin(segment.segment_id)
        # There is room again, and nothing that was refused stands before it.
        assert (await store.merge("s00", "s01")).offset == 0
        assert loop.time() < begun + 2 * ROOM_TIMEOUT_S

    process = world.process("owner")
    world.run_task(process, main(process))
    world.close()
    assert refused == [pytest.approx(ROOM_TIMEOUT_S, abs=1.0)] * 8


def test_sources_that_are_not_there_need_no_room() -> None:
    """A batch that was sent again waited for room for all that it had merged before."""
    world = StoreWorld("no need", settings={"containers": 1, "active_segments_max": 16})

    async def main(process: SimulatedProcess) -> None:
        loop = asyncio.get_running_loop()
        store = await world.open_store(process)
        held = [f"h{number:02}" for number in range(13)]
        for name in ("t", *(f"s{number:02}" for number in range(30)), *held):
            await store.create_segment(name)
        await store.flush()
        await store.checkpoint()
        (container,) = store._containers
        for name in held:
            assert await container._active.find(name) is not None
        begun = loop.time()
        merged = [f"merged {number}" for number in range(7)]
        assert await store.merge_batch("t", ["s00", *merged]) == [0] * 8
        with pytest.raises(SegmentNotFoundError):
            await store.merge("t", "not there")
        assert loop.time() < begun + ROOM_TIMEOUT_S / 2

    process = world.process("owner")
    world.run_task(process, main(process))
    world.close()


def test_more_than_may_be_in_memory_are_merged_part_by_part(tmp_path: Path) -> None:
    """They waited for room in vain for 30 s, and so did all that needed room behind them."""

    async def main() -> None:
        async with open_tiny(tmp_path / "s", active_segments_max=4) as store:
            await fill(store, **{name: name.encode() for name in "tabcdefgh"})
            await store.flush()
            await store.checkpoint()
            assert await store.merge_batch("t", list("abcde")) == [2, 3, 4, 5, 6]
            # As behind an answer that was lost.
            assert await store.merge_batch("t", list("abcde")) == [6] * 5
            # What is named twice, or is not there, counts as merged.
            assert await store.merge_batch("t", ["f", "a", "f", "g", "no", "h"]) == [
                *(7, 7, 7, 8, 8, 9),
            ]
            assert await read_all(store, "t") == b"tabcdefgh"

    run(main())


def test_all_are_of_one_container(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", containers=2) as store:
            names = ["t"]
            while {container_of(name, 2) for name in names} != {0, 1}:
                names.append(f"{len(names)}")
            await fill(store, **dict.fromkeys(names, b"data"))
            with pytest.raises(ContainerMismatchError):
                await store.merge_batch("t", names[1:])
            assert [info.length async for info in store.list_segments()] == [4] * len(names)

    run(main())


def test_a_batch_that_is_given_up_leaves_no_gap(tmp_path: Path) -> None:
    async def main() -> None:
        for turns in range(6):
            async with open_tiny(tmp_path / str(turns)) as store:
                await fill(store, t=b"", a=b"a" * 150, b=b"b" * 150, c=b"c" * 150)
                merging = asyncio.ensure_future(store.merge_batch("t", SOURCES))
                for _ in range(turns):
                    await asyncio.sleep(0)
                merging.cancel()
                await asyncio.wait((merging,))
                await store.append("t", b"")
                assert (b"a" * 150 + b"b" * 150 + b"c" * 150).startswith(await read_all(store, "t"))
                assert await store.merge_batch("t", SOURCES)
                assert await read_all(store, "t") == b"a" * 150 + b"b" * 150 + b"c" * 150

    run(main())


def test_a_full_queue_takes_the_first_and_not_any(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", queue_bytes_max=5000) as store:
            await fill(store, t=b"", **{f"s{number:02}": b"%02d" % number for number in range(40)})
            sources = [f"s{number:02}" for number in range(40)]
            with pytest.raises(TierUnavailableError):
                await store.merge_batch("t", sources)
            data = await read_all(store, "t")
            assert 0 < len(data) < 80
            assert b"".join(b"%02d" % number for number in range(40)).startswith(data)
            while len(await read_all(store, "t")) < 80:
                room = store.room("t", 0)
                if room is not None:
                    await room
                await store.merge_batch("t", sources[:15])
                sources = sources[15:] or sources
            assert await read_all(store, "t") == b"".join(b"%02d" % each for each in range(40))

    run(main())


def test_idle_sources_and_an_idle_target(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store)
            sources = [f"s{number:03}" for number in range(1, 6)]
            for name in sources:
                await store.append(name, name.encode())
            await make_idle(store, "s000", *sources)
            assert active(store).isdisjoint(sources)
            assert await store.merge_batch("s000", sources) == [4, 8, 12, 16, 20]
            assert await read_all(store, "s000") == "".join(sources).encode()

    run(main())


class TestLong:
    @pytest.fixture(autouse=True)
    def _tiny_pages(self) -> Iterator[None]:
        with pages_of(SMALL):
            yield

    def test_sources_that_memory_knows_in_part(self, tmp_path: Path) -> None:
        async def main() -> None:
            sizes: dict[str, Any] = SMALL
            async with open_tiny(tmp_path / "s", **sizes) as store:
                await store.create_segment("t")
                await filled(store, "a")
                await fill(store, b=b"short")
            async with open_tiny(tmp_path / "s", **sizes) as store:
                lengths = [len(CONTENT), len(CONTENT) + 5]
                assert await store.merge_batch("t", ["a", "b"]) == lengths
                await store.flush()
                assert await read_all(store, "t") == CONTENT + b"short"
                assert numbers(store)["pages"] > 0

        run(main())
