"""The walk through all objects: what it finds, where it goes on, how fast it goes, and what it
passes over.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from recovery.background_scrub import REST_S, RETRY_MIN_S, ScrubFile
from recovery.scrub import WITNESSES_MAX, piece_bytes
from recovery.scrub_state import (
    FILE_NAME,
    ScrubPass,
    ScrubPosition,
    ScrubState,
    load_state,
    parse_state,
    render_state,
)
from segmentstore.contracts.findings import Severity, harmful, note
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.runtime import Runtime
from tests.recovery.scrub_world import CONTAINERS, PAYLOAD, STORE, World, run
from tests.support.suites import share
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_storage import StorageRefusedError, StorageUnavailableError


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_everything_is_read_once_and_found_good(at_once: int) -> None:
    async def case(world: World) -> None:
        await world.scrub(objects_at_once=at_once).run_pass()
        current = world.state.current
        assert (current.objects, current.blocks, current.findings) == (10, 20, [])
        assert current.bytes_read == world.bytes
        assert world.storage.statistics().requests("get", "head") == 20
        assert current.finished_at_ms is not None
        await world.scrub().run_pass()
        assert world.storage.statistics().requests("get", "head") == 20

    run(case)


@pytest.mark.parametrize("number", share([0, 1], 2, 2))
def test_a_flipped_byte_anywhere_is_found_and_named(number: int) -> None:
    async def case(world: World) -> None:
        name = f"object-2-{number}"
        for position in range(len(world.storage.bucket.objects[name].data)):
            world.flip(name, position)
            world.state.begin(0)
            world.state.current = ScrubPass(started_at_ms=0)
            await world.scrub().run_pass()
            assert [finding.severity for finding in world.state.current.findings] == [
                Severity.HARMFUL
            ], position
            assert world.state.current.findings[0].place.startswith(f"object {name} block at ")
            world.flip(name, position)

    run(case)


def test_a_bad_answer_is_asked_for_again_before_it_is_believed() -> None:
    async def case(world: World) -> None:
        get_range = world.storage.get_range
        spoiled: set[str] = set()

        async def spoiling(name: str, offset: int, length: int) -> bytes:
            data = await get_range(name, offset, length)
            if name in spoiled:
                return data
            spoiled.add(name)
            return data[:50] + bytes([data[50] ^ 1]) + data[51:]

        world.storage.get_range = spoiling  # type: ignore[method-assign]
        await world.scrub().run_pass()
        assert len(spoiled) == 10
        assert world.state.current.findings == []

    run(case)


def test_lost_and_cut_objects_are_found() -> None:
    async def case(world: World) -> None:
        del world.storage.bucket.objects["object-0-1"]
        stored = world.storage.bucket.objects["object-2-2"]
        world.storage.bucket.objects["object-2-2"] = stored._replace(data=stored.data[:-1])
        await world.scrub().run_pass()
        kinds = [finding.kind for finding in world.state.current.findings]
        assert kinds == ["object-missing", "object-size", "block"]
        assert "2 chunks of container 0 lie in it" in world.state.current.findings[0].detail

    run(case)


def test_an_unreferenced_block_is_a_note() -> None:
    async def case(world: World) -> None:
        segment = world.metadata[0].segments[8]
        (dropped,) = segment.chunks.remove_below(len(PAYLOAD))
        world.flip(dropped.object_name, dropped.block_offset + 140)
        await world.scrub().run_pass()
        assert [(finding.severity, finding.kind) for finding in world.state.current.findings] == [
            (Severity.NOTE, "unused-block")
        ]
        assert (world.state.current.harmful, world.state.current.notes) == (0, 1)

    run(case)


@pytest.mark.parametrize("stop_after", range(1, 10))
def test_it_goes_on_where_it_was_when_the_store_answers_again(stop_after: int) -> None:
    async def case(world: World) -> None:
        head = world.storage.head
        asked: list[str] = []

        async def counting(name: str) -> Any:
            asked.append(name)
            if len(asked) == stop_after + 1:
                raise StorageUnavailableError(name, "away")
            return await head(name)

        world.storage.head = counting  # type: ignore[method-assign]
        with pytest.raises(StorageUnavailableError):
            await world.scrub().run_pass()
        assert world.state.current.objects == stop_after
        world.state = parse_state(render_state(world.state, STORE), STORE)
        await world.scrub().run_pass()
        assert world.state.current.objects == 10
        assert len(asked) == 11
        assert asked[stop_after] == asked[stop_after + 1]

    run(case)


def test_objects_that_go_meanwhile_are_passed_over() -> None:
    async def case(world: World) -> None:
        get_range = world.storage.get_range

        async def going(name: str, offset: int, length: int) -> bytes:
            if name == "object-0-1":
                world.forget("object-0-1")
                world.forget("object-0-2")
            return await get_range(name, offset, length)

        world.storage.get_range = going  # type: ignore[method-assign]
        await world.scrub().run_pass()
        current = world.state.current
        assert (current.objects, current.passed_over, current.findings) == (8, 2, [])

    run(case)


def test_a_chunk_that_moved_to_another_segment_meanwhile_is_still_referenced() -> None:
    async def case(world: World) -> None:
        world.flip("object-0-4", 40)
        get_range = world.storage.get_range

        async def moving(name: str, offset: int, length: int) -> bytes:
            chunks = world.metadata[0].segments
            if name == "object-0-0" and 9 not in chunks:
                chunks[9] = SegmentMetadata(9, "target", 0)
                chunks[9].chunks = chunks.pop(7).chunks
            return await get_range(name, offset, length)

        world.storage.get_range = moving  # type: ignore[method-assign]
        await world.scrub().run_pass()
        assert [finding.severity for finding in world.state.current.findings] == [Severity.HARMFUL]

    run(case)


def test_a_container_that_does_not_serve_is_left_out() -> None:
    async def case(world: World) -> None:
        world.running = {2}
        del world.storage.bucket.objects["object-0-1"]
        await world.scrub().run_pass()
        assert (world.state.current.objects, world.state.current.findings) == (5, [])

    run(case)


def test_a_container_that_stops_in_the_middle_is_continued_when_it_serves_again() -> None:
    async def case(world: World) -> None:
        get_range = world.storage.get_range

        async def stopping(name: str, offset: int, length: int) -> bytes:
            if name == "object-0-2":
                world.running = set()
            return await get_range(name, offset, length)

        world.storage.get_range = stopping  # type: ignore[method-assign]
        await world.scrub().run_pass()
        current = world.state.current
        assert (current.objects, current.passed_over) == (2, 0)
        assert current.position == ScrubPosition(0, "object-0-1")
        world.storage.get_range = get_range  # type: ignore[method-assign]
        world.running = set(CONTAINERS)
        current.finished_at_ms = None
        await world.scrub().run_pass()
        assert (current.objects, current.passed_over) == (10, 0)

    run(case)


def test_it_reads_at_the_rate_it_was_given() -> None:
    async def case(world: World) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await world.scrub(100.0, objects_at_once=4).run_pass()
        last = max(len(stored.data) for stored in world.storage.bucket.objects.values())
        assert (world.bytes - last) / 100 <= loop.time() - begun <= world.bytes / 100 + 1

    run(case)


def test_large_objects_are_read_in_pieces_of_a_second() -> None:
    assert piece_bytes(0) == piece_bytes(1e12) == 4 << 20
    assert piece_bytes(1000) == 64 << 10
    assert piece_bytes(1_000_000) == 1_000_000


# --- in the background of an open store -----------------------------------------------------------


def test_pass_follows_pass_and_a_fault_shows_in_health_until_it_passes() -> None:
    async def case(world: World) -> None:
        scrub = world.background()
        scrub.start()
        await asyncio.sleep(1)
        assert (scrub.statistics().objects, scrub.health()) == (10, [])
        world.flip("object-2-3", 200)
        await asyncio.sleep(REST_S)
        assert scrub.statistics().harmful == 1
        (said,) = scrub.health()
        assert said.startswith(
            "scrub: 1 harmful findings in Tier 2; the first: object object-2-3 block at "
        )
        world.flip("object-2-3", 200)
        await asyncio.sleep(REST_S + 1)
        assert (scrub.health(), scrub.statistics().previous_harmful) == ([], 1)
        await scrub.stop()
        await scrub.stop()

    run(case)


def test_a_restart_goes_on_from_the_file(tmp_path: Path) -> None:
    async def case(world: World) -> None:
        path = str(tmp_path / FILE_NAME)
        first = world.background(path, bytes_per_s=100)
        first.start()
        await asyncio.sleep(world.bytes / 100 / 2)
        await first.stop()
        kept = load_state(path, world.runtime.disk, STORE)
        assert kept is not None
        assert 0 < kept.current.objects < 10
        before = world.storage.statistics().requests("head")
        second = world.background(path)
        second.start()
        await asyncio.sleep(1)
        assert second.statistics().objects == 10
        assert world.storage.statistics().requests("head") - before == 10 - kept.current.objects
        await second.stop()
        third = world.background(path)
        third.start()
        await asyncio.sleep(1)
        assert third.statistics().previous_finished_at_ms is not None
        await third.stop()

    run(case)


def test_a_stop_in_the_middle_of_a_save_still_keeps_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case(world: World) -> None:
        path = str(tmp_path / FILE_NAME)
        save = ScrubFile.save
        begun = asyncio.Event()

        async def slow(file: ScrubFile, state: ScrubState) -> None:
            if not begun.is_set():
                begun.set()
                await asyncio.sleep(1)
            await save(file, state)

        monkeypatch.setattr(ScrubFile, "save", slow)
        scrub = world.background(path)
        scrub.start()
        await begun.wait()
        await scrub.stop()
        kept = load_state(path, world.runtime.disk, STORE)
        assert kept is not None
        assert kept.current.objects == 1

    run(case)


@pytest.mark.parametrize("text", [b"{", b'{"version": 9}', b"\xff"])
def test_a_file_that_cannot_be_read_does_not_stop_it(tmp_path: Path, text: bytes) -> None:
    async def case(world: World) -> None:
        path = tmp_path / FILE_NAME
        path.write_bytes(text)
        scrub = world.background(str(path))
        scrub.start()
        await asyncio.sleep(1)
        assert (scrub.statistics().objects, scrub.health()) == (10, [])
        await scrub.stop()
        assert load_state(str(path), world.runtime.disk, STORE) is not None

    run(case)


def test_a_disk_that_takes_no_state_does_not_stop_it(tmp_path: Path) -> None:
    async def case(world: World) -> None:
        scrub = world.background(str(tmp_path / "no such folder" / FILE_NAME))
        scrub.start()
        await asyncio.sleep(1)
        assert (scrub.statistics().objects, scrub.health()) == (10, [])
        await scrub.stop()

    run(case)


def test_a_store_that_is_away_is_tried_again_and_is_no_corruption() -> None:
    async def case(world: World) -> None:
        world.storage.fail("head", times=3)
        scrub = world.background()
        scrub.start()
        await asyncio.sleep(RETRY_MIN_S * 2)
        assert scrub.statistics().objects == 0
        await asyncio.sleep(RETRY_MIN_S * 6)
        assert (scrub.statistics().objects, scrub.statistics().unavailable, scrub.health()) == (
            10,
            3,
            [],
        )
        await scrub.stop()

    run(case)


class Refusing(MemoryObjectStorage):
    """Memory that gives no bytes of `refused`."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.refused: set[str] = set()
        self.kind = "InvalidObjectState"
        self.asked: list[str] = []

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        self.asked.append(name)
        if name not in self.refused:
            return await super().get_range(name, offset, length)
        if self.kind == "EACCES":
            raise StorageUnavailableError(name, "Permission denied", self.kind)
        raise StorageRefusedError(name, "the object is archived", self.kind)


@pytest.mark.parametrize("kind", ["InvalidObjectState", "EACCES"])
@pytest.mark.parametrize(
    "refused", [{"object-0-0", "object-0-1", "object-0-2"}, {"object-0-4", "object-2-4"}]
)
def test_an_object_that_is_refused_holds_up_no_other(refused: set[str], kind: str) -> None:
    async def case(world: World) -> None:
        storage = Refusing(world.runtime)
        storage.bucket.objects.update(world.storage.bucket.objects)
        storage.refused, storage.kind, world.storage = refused, kind, storage
        world.flip("object-2-3", 200)
        scrub = world.background()
        scrub.start()
        await asyncio.sleep(1)
        numbers = scrub.statistics()
        assert (numbers.objects, numbers.harmful, numbers.notes) == (10, 1, len(refused))
        (_, said) = scrub.health()
        assert f"{len(refused)} objects in tier2 are refused" in said
        assert min(refused) in said
        storage.refused = set()
        await asyncio.sleep(REST_S + 1)
        assert scrub.statistics().notes == 0
        assert len(scrub.health()) == 1
        await scrub.stop()

    run(case)


def test_a_store_that_refuses_every_object_is_waited_for() -> None:
    async def case(world: World) -> None:
        storage = Refusing(world.runtime)
        storage.bucket.objects.update(world.storage.bucket.objects)
        storage.refused = set(storage.bucket.objects)
        world.storage = storage
        scrub = world.background()
        scrub.start()
        await asyncio.sleep(RETRY_MIN_S * 10)
        assert (scrub.statistics().objects, scrub.statistics().unavailable) == (0, 4)
        assert len(storage.asked) <= 4 * (1 + WITNESSES_MAX)
        storage.refused = set()
        await asyncio.sleep(RETRY_MIN_S * 10)
        assert (scrub.statistics().objects, scrub.health()) == (10, [])
        await scrub.stop()

    run(case)


def test_a_fault_of_our_own_shows_and_closing_works() -> None:
    async def case(world: World) -> None:
        async def broken(name: str) -> None:
            raise RuntimeError(name)

        world.storage.head = broken  # type: ignore[method-assign]
        scrub = world.background()
        scrub.start()
        await asyncio.sleep(1)
        assert scrub.health() == ["scrub has stopped: RuntimeError: object-0-0"]
        await scrub.stop()

    run(case)


def test_what_is_never_started_can_be_stopped() -> None:
    async def case(world: World) -> None:
        await world.background().stop()

    run(case)


def test_severities_are_counted_apart() -> None:
    current = ScrubPass(started_at_ms=0)
    current.add([harmful("a", "b", "c"), note("a", "b", "c"), note("a", "b", "c")])
    assert (current.harmful, current.notes) == (1, 2)
