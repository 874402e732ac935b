"""Metadata of a container, drawn by hypothesis or made by hand: small, valid, and of every kind."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.object_states import GarbageObject, LiveObject
from tier2.object_names import object_name

STORE_ID = "12345678-1234-1234-1234-123456789abc"
OTHER_STORE_ID = "87654321-1234-1234-1234-123456789abc"


def make_metadata(
    source: random.Random,
    *,
    segments: int,
    chunks_max: int,
    objects: int,
    garbage: int = 0,
    container_id: int = 0,
) -> ContainerMetadata:
    """Valid metadata: contiguous chunks, each in one of a few objects, at a place of its own
    there.
    """
    metadata = ContainerMetadata(container_id)
    names = [
        object_name(container_id, 1 + source.randrange(3), "flush", source.randbytes(16))
        for _ in range(objects)
    ]
    ends = dict.fromkeys(names, 0)
    placed: list[tuple[SegmentMetadata, int, int, str]] = []
    last_id = 0
    for number in range(segments):
        last_id += source.randrange(1, 4)
        segment = SegmentMetadata(last_id, f"segment {number} é", source.randrange(10**12))
        segment.last_modified_ms = segment.created_ms + source.randrange(1000)
        segment.sealed = source.random() < 0.3
        position = start = source.randrange(100)
        for _ in range(source.randint(0, chunks_max) if names else 0):
            length = source.randrange(1, 50)
            name = source.choice(names)
            placed.append((segment, position, length, name))
            position += length
        segment.start_offset = start
        segment.storage_length = position
        segment.length = position + source.choice((0, 0, 17))
        if segment.sealed and number and source.random() < 0.3:
            segment.merged_into = source.choice(list(metadata.segments))
        else:
            metadata.names[segment.name] = last_id
        metadata.segments[last_id] = segment
    for segment, position, length, name in placed:
        block_id = source.choice((segment.segment_id, 10_000))
        segment.own_chunks().append(
            ChunkRecord(position, length, name, ends[name], block_id, source.randrange(1000))
        )
        ends[name] += length + 100
        live = metadata.objects.get(name)
        if live is None:
            live = metadata.objects[name] = LiveObject(
                ObjectRecord(name, 0, source.randrange(10**12))
            )
        live.record = live.record._replace(size=ends[name])
        live.live_chunks += 1
        live.live_bytes += length
    for _ in range(garbage):
        name = object_name(container_id, 1, "consolidation", source.randbytes(16))
        metadata.garbage[name] = GarbageObject(ObjectRecord(name, 1 + source.randrange(1000), 5), 6)
    metadata.sequence_number = last_id + source.randrange(100)
    return metadata


def with_releases(source: random.Random, metadata: ContainerMetadata) -> ContainerMetadata:
    """Truncate some of the segments in slices, and delete some, before any slice."""
    targets = {each.merged_into for each in metadata.segments.values()}
    for segment in list(metadata.segments.values()):
        if segment.merged_into is not None or source.random() < 0.4:
            continue
        segment.releasing = True
        metadata.releasing[segment.segment_id] = segment
        segment.start_offset = source.randint(segment.start_offset, segment.storage_length)
        if source.random() < 0.5 and segment.segment_id not in targets:
            segment.deleted = True
            del metadata.segments[segment.segment_id], metadata.names[segment.name]
    return metadata


@st.composite
def containers(draw: st.DrawFn) -> ContainerMetadata:
    """Metadata with few or no segments, chunks, objects and garbage."""
    source = random.Random(draw(st.integers(0, 2**32)))
    made = make_metadata(
        source,
        segments=draw(st.integers(0, 6)),
        chunks_max=draw(st.integers(0, 6)),
        objects=draw(st.integers(0, 8)),
        garbage=draw(st.integers(0, 3)),
    )
    return with_releases(source, made) if draw(st.booleans()) else made
