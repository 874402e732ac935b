"""How the release of many chunks is cut into operations (docs/decisions/0067).

A commit is one step of the event loop, live and in replay. So no operation releases more than some
chunks: a truncation or a deletion of more leaves them to operations that follow it. Which way it
goes is decided before it is logged, and is in the log. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from durablelog.operations import DeleteOperation, TruncateOperation
from segmentstore.contracts.metadata import ContainerMetadata, MergeRecord, SegmentMetadata


class Slices:
    """The bounds of this process: others may use others, for the log has what was decided."""

    chunks_max: int = 1024
    """Released by one operation, at most: 1 to 2 ms."""
    linked_max: int = 512
    """Linked by one operation, at most: 1 to 2 ms."""


RELEASES_MAX: Final = 128
"""Segments of one operation, at most."""


def deletion(
    metadata: ContainerMetadata, segment: SegmentMetadata, *, merging: bool
) -> DeleteOperation:
    """The deletion of a segment in memory. O(its merges).

    `merging`: a merge into it is on its way, whose source may have any number of chunks.
    """
    left = Slices.chunks_max - len(segment.chunks) - _chunks_of(metadata, segment.merges)
    return DeleteOperation(segment.segment_id, in_slices=merging or left < 0)


def truncation(
    metadata: ContainerMetadata, segment: SegmentMetadata, offset: int, *, merging: bool
) -> TruncateOperation:
    """The truncation of a segment in memory; `merging` as of `deletion`. O(log chunks + merges
    below).
    """
    passed = takewhile(lambda merge: merge.end_offset <= offset, segment.merges)
    left = Slices.chunks_max - _chunks_of(metadata, passed)
    if 0 <= left < len(segment.chunks):
        # Not all of them are known, perhaps. If those below are, and few, they need not wait.
        count, _ = segment.chunks.reach(offset, left + 1)
        left = left - count if segment.chunks.knows(0, offset) else -1
    in_slices = merging or left < 0 or segment.releasing
    return TruncateOperation(segment.segment_id, offset, in_slices=in_slices)


def _chunks_of(metadata: ContainerMetadata, merges: Iterable[MergeRecord]) -> int:
    """The number of chunks of the sources, with sources of theirs; one too many if some of them
    are not in memory.
    """
    sources = metadata.sources_of(merges)
    if all(source.chunks.whole for source in sources):
        return sum(len(source.chunks) for source in sources)
    return Slices.chunks_max + 1
