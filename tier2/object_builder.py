"""ObjectBuilder: puts blocks one behind another into one object, and says where each one came to
lie.

Pure: no await, no clock, no I/O. Payload is never copied, only compressed where that is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from tier2.block_object import CODEC_NONE, EXTENT_BYTES_DEFAULT, encode_block


class BlockPlacement(NamedTuple):
    """A block in an object that has no name yet: a ChunkRecord but for that."""

    segment_id: int
    start_offset: int
    """Place of the payload in the segment, inclusive."""
    length: int
    """Bytes of the segment, however many they are stored as."""
    block_offset: int
    """Place of the block's header in the object."""


class BlockBeginning(NamedTuple):
    """What a block begins with: its header and its extent table, which has the checksum of each
    extent.
    """

    block_offset: int
    """Its place in the object."""
    data: Buffer


class ObjectBuilder:
    """One object in the making. The buffers added must not change until the object is stored.

    - `add(segment_id, start_offset, parts)` appends a block;
    - `size`, `parts`, `placements`, `beginnings` are what there is so far;
    - `finish(name, created_ms)` gives the records a storage-update operation carries.
    """

    def __init__(
        self,
        container_id: int,
        epoch: int,
        extent_bytes: int = EXTENT_BYTES_DEFAULT,
        *,
        codec: int = CODEC_NONE,
    ) -> None:
        self._container_id = container_id
        self._epoch = epoch
        self._extent_bytes = extent_bytes
        self._codec = codec
        self.size = 0
        """Bytes of the object so far."""
        self.parts: list[Buffer] = []
        """All buffers of the object, in order: what `ObjectStorage.put` takes."""
        self.placements: list[BlockPlacement] = []
        self.beginnings: list[BlockBeginning] = []
        """Of all blocks, in order: by them the stored object is known again when `parts` is
        released.
        """

    def add(
        self, segment_id: int, start_offset: int, parts: Sequence[Buffer], *, segment_name: str = ""
    ) -> None:
        """Append a block with the concatenation of `parts`, the bytes of the segment from
        `start_offset` on.

        `segment_name` is what it is called now, for a rebuild from the objects alone. ValueError if
        there is not a single byte; the object is unchanged then. One CRC32C of the bytes, and with
        a codec their compression.
        """
        block = encode_block(
            container_id=self._container_id,
            epoch=self._epoch,
            segment_id=segment_id,
            start_offset=start_offset,
            parts=parts,
            extent_bytes=self._extent_bytes,
            segment_name=segment_name,
            codec=self._codec,
        )
        self.placements.append(
            BlockPlacement(segment_id, start_offset, sum(map(len, parts)), self.size)
        )
        self.beginnings.append(BlockBeginning(self.size, block[0]))
        self.parts += block
        self.size += sum(map(len, block))

    def finish(
        self, name: str, created_ms: int
    ) -> tuple[ObjectRecord, list[tuple[int, ChunkRecord]]]:
        """The `record`, and the `chunks` of all blocks. O(blocks)."""
        return self.record(name, created_ms), self.chunks(name, 0, len(self.placements))

    def record(self, name: str, created_ms: int) -> ObjectRecord:
        """The object's record. `created_ms` is milliseconds since 1970 UTC.

        ValueError if no block was added.
        """
        if not self.placements:
            raise ValueError("an object holds at least one block")
        return ObjectRecord(name, self.size, created_ms)

    def chunks(self, name: str, first: int, end: int) -> list[tuple[int, ChunkRecord]]:
        """(segment id, chunk) of the blocks from number `first` to before `end`, as they were
        added.
        """
        return [
            (
                placement.segment_id,
                ChunkRecord(
                    start_offset=placement.start_offset,
                    length=placement.length,
                    object_name=name,
                    block_offset=placement.block_offset,
                    block_segment_id=placement.segment_id,
                    block_start_offset=placement.start_offset,
                ),
            )
            for placement in self.placements[first:end]
        ]

    def __repr__(self) -> str:
        return (
            f"<ObjectBuilder container {self._container_id}: {len(self.placements)} blocks, "
            f"{self.size} bytes>"
        )
