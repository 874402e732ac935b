"""The scrub of an open store most of whose segments are in the catalog alone."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from recovery import scrub as scrub_module
from recovery.background_scrub import RETRY_MIN_S
from recovery.open_container import WholeMetadata
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from segmentstore.contracts.findings import Severity
from tests.recovery.scrub_world import PAYLOAD, World, run


def evict(world: World) -> None:
    for container in world.containers.values():
        container.evict()
        assert not container.metadata.segments


def harm(world: World) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.kind) for finding in world.state.current.findings]


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_damaged_block_of_an_idle_segment_is_harm(at_once: int) -> None:
    async def case(world: World) -> None:
        evict(world)
        world.flip("object-2-3", 200)
        del world.storage.bucket.objects["object-0-1"]
        await world.scrub(objects_at_once=at_once).run_pass()
        current = world.state.current
        assert (current.objects, current.passed_over) == (10, 0)
        assert harm(world) == [
            (Severity.HARMFUL, "object-missing"),
            (Severity.HARMFUL, "block"),
        ]
        assert "2 chunks of container 0 lie in it, 200 bytes" in current.findings[0].detail
        evict(world)
        assert not any(container.activations for container in world.containers.values())

    run(case)


@pytest.mark.parametrize(("objects", "chunks", "sought"), [(3, 99, 3), (99, 5, 2), (99, 1, 1)])
def test_chunks_of_few_objects_are_asked_for_at_once(
    objects: int, chunks: int, sought: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub_module, "OBJECTS_IN_BATCH", objects)
    monkeypatch.setattr(scrub_module, "CHUNKS_IN_BATCH", chunks)

    async def case(world: World) -> None:
        evict(world)
        world.flip("object-2-3", 200)
        await world.scrub().run_pass()
        assert (world.state.current.objects, world.state.current.harmful) == (10, 1)
        assert world.containers[2].sought_max == sought

    run(case)


def test_a_segment_that_wakes_up_and_is_truncated_meanwhile_is_checked_again() -> None:
    async def case(world: World) -> None:
        evict(world)
        world.flip("object-0-1", 200)
        get_range = world.storage.get_range

        async def waking(name: str, offset: int, length: int) -> bytes:
            for segment_id in (7, 8) if name == "object-0-0" else ():
                world.containers[0].activate(segment_id)
                world.metadata[0].segments[segment_id].chunks.remove_below(2 * len(PAYLOAD))
            return await get_range(name, offset, length)

        world.storage.get_range = waking  # type: ignore[method-assign]
        await world.scrub().run_pass()
        assert harm(world) == [(Severity.NOTE, "unused-block")]

    run(case)


def test_a_catalog_that_does_not_answer_is_waited_for_and_is_no_corruption() -> None:
    async def case(world: World) -> None:
        evict(world)
        world.containers[2].error = TierUnavailableError("tier1", "the catalog is away")
        scrub = world.background()
        scrub.start()
        await asyncio.sleep(RETRY_MIN_S)
        assert (scrub.statistics().objects, scrub.health()) == (5, [])
        assert scrub.statistics().unavailable > 0
        world.containers[2].error = None
        await asyncio.sleep(RETRY_MIN_S * 6)
        assert (scrub.statistics().objects, scrub.health()) == (10, [])
        await scrub.stop()

    run(case)


def test_a_catalog_that_is_closed_under_it_says_nothing() -> None:
    async def case(world: World) -> None:
        evict(world)
        chunks_in = world.containers[2].chunks_in

        async def closing(names: Collection[str]) -> Any:
            world.running = {0}
            world.containers[2].error = TierUnavailableError("tier1", "closed")
            return await chunks_in(names)

        world.containers[2].chunks_in = closing  # type: ignore[method-assign]
        await world.scrub().run_pass()
        current = world.state.current
        assert (current.objects, current.passed_over, current.findings) == (5, 0, [])

    run(case)


def test_of_a_damaged_catalog_the_objects_are_named_whose_chunks_it_does_not_give() -> None:
    async def case(world: World) -> None:
        evict(world)
        chunks_in = world.containers[2].chunks_in

        async def damaged(names: Collection[str]) -> Any:
            if "object-2-1" in names:
                raise DataCorruptionError("container 2, catalog", "chunk place: it is damaged")
            return await chunks_in(names)

        world.containers[2].chunks_in = damaged  # type: ignore[method-assign]
        world.flip("object-2-3", 200)
        await world.scrub().run_pass()
        assert harm(world) == [(Severity.HARMFUL, "catalog"), (Severity.HARMFUL, "block")]
        first = world.state.current.findings[0]
        assert (first.place, world.state.current.objects) == ("object object-2-1", 10)
        assert "it is damaged" in first.detail

    run(case)


def test_of_whole_metadata_the_chunks_are_sorted_once() -> None:
    async def case(world: World) -> None:
        container = WholeMetadata(world.metadata[0])
        names = ["object-0-1", "object-0-3", "no such object"]
        found = await container.chunks_in(names)
        chunks = list(container.metadata.segments[7].chunks)
        assert found == {7: [chunks[1], chunks[3]], 8: found[8]}
        async with container.held([7, 8, 9]):
            assert container.metadata.segments.keys() == {7, 8}

    run(case)
