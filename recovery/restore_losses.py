"""What Tier 2 has lost of a segment: each gap with the objects that held it. Pure.

A checkpoint says which object held each byte; so does the header of a block whose end is missing.
What neither says was lost in an object that nothing names any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from recovery.restore_report import FoundBlock, Gap, Loss
from segmentstore.contracts.metadata import SegmentMetadata

OBJECT_UNKNOWN = "nothing says which object held it"
OBJECT_MISSING = (
    "the object is missing: lost, unless the segment was truncated or deleted after the copy of "
    "its metadata was made"
)


class _Held(NamedTuple):
    """A stretch of a segment, and the object that held it."""

    start_offset: int
    end_offset: int
    object_name: str
    reason: str


def losses_of(
    rebuilt: SegmentMetadata,
    known: SegmentMetadata | None,
    gaps: Sequence[Gap],
    cut: Sequence[FoundBlock],
    why: Callable[[str], str],
) -> list[Loss]:
    """What was lost in the gaps of a segment, by offset; neighbours of one object are one loss.

    `rebuilt` is the segment of the new store, and `known` is the checkpoint's record of it. `cut`
    are its blocks whose ends are missing, and `why` says what happened to an object. The container
    is left
    0. O(gaps log chunks + lost chunks).
    """
    losses: list[Loss] = []
    for gap in gaps:
        for held in _cover(gap, _holders(gap, known, cut, why)):
            last = losses[-1] if losses else None
            if last is not None and (last.end_offset, last.object_name) == (
                held.start_offset,
                held.object_name,
            ):
                losses[-1] = last._replace(end_offset=held.end_offset)
                continue
            losses.append(Loss(0, rebuilt.segment_id, rebuilt.name, *held))
    return losses


def _holders(
    gap: Gap, known: SegmentMetadata | None, cut: Sequence[FoundBlock], why: Callable[[str], str]
) -> list[_Held]:
    """The objects that held bytes of the gap, by offset."""
    found = [
        _Held(
            block.start_offset,
            block.end_offset,
            block.object_name,
            f"its block at {block.block_offset} is cut off",
        )
        for block in cut
        if block.start_offset < gap.end_offset and block.end_offset > gap.start_offset
    ]
    if known is not None:
        found += [
            _Held(chunk.start_offset, chunk.end_offset, chunk.object_name, why(chunk.object_name))
            for chunk in known.chunks.between(gap.start_offset, gap.end_offset)
        ]
    return sorted(found)


def _cover(gap: Gap, holders: Sequence[_Held]) -> Iterator[_Held]:
    """The gap from its beginning to its end, each byte once."""
    position = gap.start_offset
    for held in holders:
        start, end = max(held.start_offset, position), min(held.end_offset, gap.end_offset)
        if start >= end:
            continue
        if start > position:
            yield _Held(position, start, "", OBJECT_UNKNOWN)
        yield held._replace(start_offset=start, end_offset=end)
        position = end
    if position < gap.end_offset:
        yield _Held(position, gap.end_offset, "", OBJECT_UNKNOWN)
