"""What is kept of lost bytes: bounded, for as long as they are needed; and the file it is in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from durablelog.metadata_updater import MetadataUpdater
from recovery import scrub_state
from recovery.harness.simulation.virtual_loop import run_virtual
from recovery.loss_file import FILE_NAME, parse_losses, render_losses
from recovery.open_container import WholeMetadata
from recovery.seen_losses import EXAMPLES_MAX, PLACES_HELD, PLACES_MAX, LostPlace, SeenLosses
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import ConfigError, DataCorruptionError, TierUnavailableError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.object_states import LiveObject
from tests.support.idle_segments import LATENCY_S, IdleSegments
from tier2.object_storage import ObjectNotFoundError

STORE = "0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10"
NAME = "9b/00000000/0000000000000001/flush-15f4e8ff0f0c3c2b00112233445566aa"
MISSING = ObjectNotFoundError(NAME, "no such object")


def segment_of(
    metadata: ContainerMetadata, segment_id: int, chunks: list[ChunkRecord]
) -> SegmentMetadata:
    segment = SegmentMetadata(segment_id, f"s{segment_id}", 0)
    segment.chunks = ChunkList(chunks)
    segment.length = segment.storage_length = chunks[-1].end_offset if chunks else 0
    metadata.segments[segment_id] = segment
    for chunk in chunks:
        metadata.objects[chunk.object_name] = LiveObject(ObjectRecord(chunk.object_name, 500, 0))
    return segment


def chunk_of(number: int, name: str = NAME) -> ChunkRecord:
    return ChunkRecord(number * 100, 100, name, number * 200, 3, number * 100)


def test_a_place_is_kept_until_it_is_read_or_no_longer_needed() -> None:
    metadata = ContainerMetadata(0)
    chunk = chunk_of(0)
    segment = segment_of(metadata, 3, [chunk])
    losses = SeenLosses(WholeMetadata(metadata))
    assert losses.lost(3, chunk, 10, 20, MISSING, 7)
    assert losses.lost(3, chunk, 10, 20, DataCorruptionError("x", "y"), 9)
    (place,) = losses.places.values()
    assert (place.first_seen_ms, losses.seen, losses.objects) == (7, 2, [NAME])
    assert "y" in place.detail
    assert not losses.found(chunk, 11, 20), "not all of it"
    assert losses.found(chunk, 0, 100)
    assert not losses.places

    assert losses.lost(3, chunk, 10, 20, MISSING, 7)
    segment.start_offset = 19
    assert not losses.prune()
    segment.start_offset = 20
    assert losses.prune()
    assert not losses.lost(3, chunk, 10, 20, MISSING, 7), "truncated"
    assert losses.lost(3, chunk, 30, 40, MISSING, 7)
    del metadata.objects[NAME]
    assert losses.prune()


def test_what_is_no_loss() -> None:
    metadata = ContainerMetadata(0)
    old, new = chunk_of(0), chunk_of(0, NAME + "b")
    segment = segment_of(metadata, 3, [old])
    losses = SeenLosses(WholeMetadata(metadata))
    assert not losses.lost(3, old, 0, 9, TierUnavailableError("tier2", "away"), 7)
    # Replaced while it was read, and the object lives on for others.
    segment.chunks = ChunkList([new])
    assert not losses.lost(3, old, 0, 9, MISSING, 7)
    assert not losses.lost(4, old, 0, 9, MISSING, 7)


def test_a_place_goes_on_in_the_segment_that_has_the_chunk() -> None:
    metadata = ContainerMetadata(0)
    chunk = chunk_of(1)
    segment_of(metadata, 3, [chunk])
    losses = SeenLosses(WholeMetadata(metadata))
    losses.lost(3, chunk, 110, 120, MISSING, 7)
    del metadata.segments[3]
    target = segment_of(metadata, 4, [chunk._replace(start_offset=1000)])
    losses.prune()
    (place,) = losses.places.values()
    assert (place.segment_id, place.start_offset, place.end_offset, place.first_seen_ms) == (
        4,
        1010,
        1020,
        7,
    )
    target.start_offset = 1020
    losses.prune()
    assert not losses.places


def linked_in_part(metadata: ContainerMetadata) -> SeenLosses:
    """Losses in both chunks of a source, of which the target has the first one by now."""
    first, second = chunk_of(0), chunk_of(1)
    source = segment_of(metadata, 3, [first, second])
    losses = SeenLosses(WholeMetadata(metadata))
    losses.lost(3, first, 10, 20, MISSING, 7)
    losses.lost(3, second, 110, 120, MISSING, 7)
    source.merged_into, source.start_offset, source.chunks = 4, 100, ChunkList([second])
    segment_of(metadata, 4, [first._replace(start_offset=1000)])
    return losses


def test_a_place_goes_on_in_the_target_of_a_merge_that_is_linked_in_part() -> None:
    metadata = ContainerMetadata(0)
    losses = linked_in_part(metadata)
    assert losses.prune()
    places = sorted((each.segment_id, each.start_offset) for each in losses.places.values())
    assert places == [(3, 110), (4, 1010)]


def test_a_place_goes_on_in_such_a_target_that_is_known_in_part() -> None:
    metadata = ContainerMetadata(0)
    losses = linked_in_part(metadata)
    metadata.partial.add(4)
    assert not losses.prune()
    assert run_virtual(losses.settle())
    places = sorted((each.segment_id, each.start_offset) for each in losses.places.values())
    assert places == [(3, 110), (4, 1010)]


def partly_idle(metadata: ContainerMetadata, *, evicting: bool = False) -> IdleSegments:
    metadata.names.update({each.name: each.segment_id for each in metadata.segments.values()})
    return IdleSegments(MetadataUpdater(metadata), evicting=evicting)


def test_a_place_in_an_idle_segment_is_kept() -> None:
    async def body() -> None:
        metadata = ContainerMetadata(0)
        chunk = chunk_of(0)
        segment_of(metadata, 3, [chunk])
        container = partly_idle(metadata, evicting=True)
        losses = SeenLosses(container)
        container.evict()
        assert losses.lost(3, chunk, 10, 20, MISSING, 7), "by a fetch that outlived its reader"
        assert not losses.prune()
        assert "segment id 3 offsets 10 to 20" in next(losses.examples())
        assert not await losses.settle()
        assert "segment 's3' offsets 10 to 20" in next(losses.examples())
        assert not metadata.segments, "it is idle again"
        # They are no longer needed: what is in memory is known at once, the rest when it is asked.
        container.activate(3)
        metadata.segments[3].start_offset = 20
        container.evict()
        assert not losses.prune()
        assert await losses.settle()
        assert not losses.places

    run_virtual(body())


def test_a_place_that_an_earlier_owner_has_seen_is_kept_though_its_segment_is_idle() -> None:
    async def body() -> None:
        metadata = ContainerMetadata(0)
        chunk = chunk_of(0)
        segment_of(metadata, 3, [chunk])
        container = partly_idle(metadata, evicting=True)
        container.evict()
        losses = SeenLosses(container)
        losses.keep(LostPlace(3, chunk, 10, 20, "gone", 5))
        losses.keep(LostPlace(4, chunk_of(2), 230, 240, "gone", 5))
        losses.prune()
        assert len(losses.places) == 2
        assert await losses.settle()
        assert [place.segment_id for place in losses.places.values()] == [3]

    run_virtual(body())


@pytest.mark.parametrize("idle_too", [False, True])
def test_a_place_goes_on_in_the_idle_segment_that_has_the_chunk(idle_too: bool) -> None:
    async def body() -> None:
        metadata = ContainerMetadata(0)
        one, two = chunk_of(1), chunk_of(1, NAME + "b")._replace(block_segment_id=6)
        segment_of(metadata, 3, [one])
        segment_of(metadata, 6, [two])
        segment_of(metadata, 5, [chunk_of(0, NAME + "c")])
        losses = SeenLosses(container := partly_idle(metadata))
        for each in (one, two):
            assert losses.lost(each.block_segment_id, each, 110, 120, MISSING, 7)
        del metadata.segments[3], metadata.names["s3"]
        target = segment_of(metadata, 4, [one._replace(start_offset=1000)])
        metadata.names[target.name] = 4
        container.evict()
        if not idle_too:
            container.activate(4)
        del container.table[6]
        metadata.idle -= 1
        metadata.objects[two.object_name] = LiveObject(ObjectRecord(two.object_name, 500, 0))
        assert not losses.prune()
        assert await losses.settle()
        (place,) = losses.places.values()
        assert (place.segment_id, place.start_offset, place.end_offset) == (4, 1010, 1020)
        assert place.first_seen_ms == 7

    run_virtual(body())


def test_what_is_read_while_it_is_settled_does_not_come_back() -> None:
    async def body() -> None:
        metadata = ContainerMetadata(0)
        chunk = chunk_of(1)
        segment_of(metadata, 3, [chunk])
        segment_of(metadata, 5, [chunk_of(0, NAME + "c")])
        losses = SeenLosses(container := partly_idle(metadata))
        assert losses.lost(3, chunk, 110, 120, MISSING, 7)
        del metadata.segments[3], metadata.names["s3"]
        metadata.names["s4"] = segment_of(metadata, 4, [chunk]).segment_id
        container.evict()
        asyncio.get_running_loop().call_later(LATENCY_S / 2, losses.found, chunk, 100, 200)
        await losses.settle()
        assert not losses.places

    run_virtual(body())


def test_segments_of_many_places_are_held_few_at_a_time() -> None:
    async def body() -> None:
        metadata = ContainerMetadata(0)
        chunks = [chunk_of(number, f"{NAME}{number}") for number in range(3 * PLACES_HELD)]
        for number, chunk in enumerate(chunks):
            segment_of(metadata, 3 + number, [chunk])
        container = partly_idle(metadata, evicting=True)
        losses = SeenLosses(container)
        for number, chunk in enumerate(chunks):
            assert losses.lost(3 + number, chunk, chunk.start_offset, chunk.end_offset, MISSING, 7)
        container.evict()
        assert not await losses.settle()
        assert len(losses.places) == 3 * PLACES_HELD
        assert container.held_max == PLACES_HELD
        assert not metadata.segments

    run_virtual(body())


def test_places_and_examples_are_bounded() -> None:
    metadata = ContainerMetadata(0)
    chunks = [chunk_of(number, f"{NAME}{number}") for number in range(PLACES_MAX + 5)]
    segment = segment_of(metadata, 3, chunks)
    losses = SeenLosses(WholeMetadata(metadata))
    for chunk in chunks:
        assert losses.lost(3, chunk, chunk.start_offset, chunk.end_offset, MISSING, 7)
    assert (len(losses.places), losses.seen, losses.beyond) == (PLACES_MAX, PLACES_MAX + 5, 5)
    assert len(list(losses.examples())) == EXAMPLES_MAX
    # An unwanted one makes room.
    segment.start_offset = 1000
    assert losses.lost(3, chunks[-1], chunks[-1].start_offset, chunks[-1].end_offset, MISSING, 7)
    assert len(losses.places) == PLACES_MAX - 9


def test_the_file_comes_back_and_the_golden_one_is_read() -> None:
    place = LostPlace(3, ChunkRecord(0, 200, NAME, 0, 3, 0), 0, 64, "it is gone", 1760000000000)
    golden = (Path(__file__).parent / "golden" / "losses-1.json").read_text(encoding="utf-8")
    assert parse_losses(golden, STORE) == {0: [place]}
    assert render_losses({0: [place]}, STORE) == golden
    page = Path(__file__).parent.parent.parent / "docs/formats/losses.md"
    assert golden.strip() in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("it is gone", "it is there"), "it was changed"),
        (('"version": 1', '"version": 2'), "version 2"),
        (("{", "["), "not a list of losses"),
    ],
)
def test_a_file_that_is_not_what_was_written_is_refused(change: tuple[str, str], said: str) -> None:
    place = LostPlace(3, ChunkRecord(0, 200, NAME, 0, 3, 0), 0, 64, "it is gone", 1)
    text = render_losses({0: [place]}, STORE)
    with pytest.raises(ConfigError, match=said) as caught:
        parse_losses(text.replace(*change), STORE)
    assert FILE_NAME in str(caught.value)
    with pytest.raises(ConfigError, match="it is of store"):
        parse_losses(text, "another")


def test_a_file_of_nothing_but_brackets_is_refused_as_any_other() -> None:
    """So many that the reader of JSON runs out of its own depth: an opening must not end by it."""
    for text in ("[" * 100_000, '{"version":' * 100_000):
        with pytest.raises(ConfigError, match="not a list of losses"):
            parse_losses(text, STORE)
        with pytest.raises(ConfigError):
            scrub_state.parse_state(text, STORE)


def test_a_place_outside_of_its_chunk_is_refused() -> None:
    """No fetch could ask for it."""
    chunk = ChunkRecord(100, 200, NAME, 0, 3, 100)
    for start, end in ((99, 120), (100, 301), (120, 120)):
        text = render_losses({0: [LostPlace(3, chunk, start, end, "gone", 1)]}, STORE)
        with pytest.raises(ConfigError, match="not in their chunk"):
            parse_losses(text, STORE)
