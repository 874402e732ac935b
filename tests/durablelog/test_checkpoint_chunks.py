"""Checkpoints of segments with many chunks: a page that did not change is not encoded again."""

from __future__ import annotations

import struct

import pytest

from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    AppendOperation,
    ChunkReplacement,
    CreateOperation,
    Operation,
    ReplaceChunksOperation,
    StorageUpdateOperation,
    TruncateOperation,
)
from segmentstore.contracts.chunk_list import PAGE_CHUNKS_MAX
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid

PAGES = 5


class Container:
    """One segment with five full pages of chunks of ten bytes, made by operations alone."""

    def __init__(self) -> None:
        self.metadata = ContainerMetadata(3)
        self.updater = MetadataUpdater(self.metadata)
        self.put(CreateOperation("a"))
        self.objects = 0
        for _ in range(PAGES):
            self.flush(PAGE_CHUNKS_MAX)

    @property
    def segment(self) -> SegmentMetadata:
        return self.metadata.segments[1]

    def put(self, operation: Operation) -> None:
        operation.sequence_number = self.metadata.sequence_number + 1
        operation.timestamp_ms = 1000
        self.updater.replay(operation)
        assert_metadata_valid(self.metadata)

    def flush(self, count: int) -> None:
        start, self.objects = self.segment.length, self.objects + 1
        name = f"o{self.objects}"
        self.put(AppendOperation(1, start, bytes(10 * count)))
        chunks = [
            (1, ChunkRecord(offset, 10, name, offset - start, 1, offset))
            for offset in range(start, start + 10 * count, 10)
        ]
        self.put(StorageUpdateOperation([ObjectRecord(name, 10_000, 0)], chunks))

    def replace(self, offset: int) -> None:
        old = self.segment.find_chunk(offset)
        assert old is not None
        new = old._replace(object_name="new")
        replacement = ChunkReplacement(1, (old,), (new,))
        self.put(ReplaceChunksOperation([ObjectRecord("new", 10, 0)], [replacement]))

    def pieces(self) -> list[bytes]:
        """What is kept of the segment after a checkpoint, in pieces."""
        encode_checkpoint(self.metadata)
        assert isinstance(self.segment.encoded, list)
        return self.segment.encoded


def new_pages(before: list[bytes], after: list[bytes]) -> int:
    """Pages in `after` that were made since `before`: a kept one is the same object."""
    kept = {id(piece) for piece in before}
    return sum(id(piece) not in kept for piece in after if len(piece) > 40)


def as_the_format_says(segment: SegmentMetadata) -> bytes:
    parts = []
    for chunk in segment.chunks:
        start, length, name, *places = chunk
        parts.append(struct.pack(">QQQQQH", start, length, *places, len(name)) + name.encode())
    return struct.pack(">I", len(parts)) + b"".join(parts)


@pytest.mark.parametrize("change", ["flush", "replace", "truncate", "append"])
def test_a_change_encodes_one_page(change: str) -> None:
    c = Container()
    before = c.pieces()
    assert new_pages([], before) == PAGES + 1, "the segment's own fields are a piece as well"
    if change == "flush":
        c.flush(1)
    elif change == "replace":
        c.replace(10 * PAGE_CHUNKS_MAX + 30)
    elif change == "truncate":
        c.put(TruncateOperation(1, 10 * PAGE_CHUNKS_MAX + 30))
    else:
        c.put(AppendOperation(1, c.segment.length, b"x"))
    after = c.pieces()
    assert new_pages(before, after) == (1 if change == "append" else 2)
    assert as_the_format_says(c.segment) in encode_checkpoint(c.metadata)


@pytest.mark.parametrize("extra", [0, 1, PAGE_CHUNKS_MAX - 1])
def test_a_decoded_segment_keeps_its_pages_encoded(extra: int) -> None:
    c = Container()
    if extra:
        c.flush(extra)
    blob = encode_checkpoint(c.metadata)
    assert as_the_format_says(c.segment) in blob
    c.metadata = decode_checkpoint(blob)
    assert_metadata_valid(c.metadata)
    c.updater = MetadataUpdater(c.metadata)
    assert len(c.segment.chunks) == PAGES * PAGE_CHUNKS_MAX + extra
    before = c.segment.chunks.encoded_pages(lambda chunks: b"encoded anew")
    assert b"encoded anew" not in before
    assert encode_checkpoint(c.metadata) == blob
    c.flush(1)
    after = c.segment.chunks.encoded_pages(lambda chunks: b"encoded anew")
    assert after.count(b"encoded anew") == 1
