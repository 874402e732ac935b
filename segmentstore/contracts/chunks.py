"""Where a segment's bytes lie in Tier 2: chunk and object records, as the log and the metadata hold
them.
"""

from __future__ import annotations

from typing import NamedTuple


class ChunkRecord(NamedTuple):
    """A stretch of one segment inside one block of one Tier-2 object.

    The block's own header names the segment and offset it was *written* for. After a merge the
    bytes belong to another segment at another offset, so both are kept. Every read checks the
    header against `block_segment_id`, `block_start_offset` and the length.
    """

    start_offset: int
    """Place in the segment that owns the chunk now, inclusive."""
    length: int
    object_name: str
    block_offset: int
    """Place of the block's header in the object."""
    block_segment_id: int
    block_start_offset: int

    @property
    def end_offset(self) -> int:
        """Place in the segment, exclusive."""
        return self.start_offset + self.length


class ObjectRecord(NamedTuple):
    """One Tier-2 object the metadata knows of."""

    name: str
    size: int
    created_ms: int
