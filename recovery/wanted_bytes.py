"""WantedBytes: bytes of segments that are searched for in a log, and what of them was met. Pure.

A segment's bytes were appended to it, or to a source that was merged into it. Where a merge is met
in the log, the search goes on for the source: the log is read again from before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from durablelog.operations import AppendOperation, MergeOperation
from recovery.restore_report import Gap


class FoundBytes(NamedTuple):
    """Bytes of a segment, met in the log."""

    segment_id: int
    offset: int
    data: memoryview


class _Wanted(NamedTuple):
    """A stretch of a segment of the log, and whose it is."""

    start_offset: int
    end_offset: int
    segment_id: int
    """Of the segment that wants it."""
    shift: int
    """Add it for the offset there."""

    def part(self, start: int, end: int) -> _Wanted:
        return self._replace(start_offset=start, end_offset=end)


class WantedBytes:
    """What is still searched for."""

    def __init__(self) -> None:
        self._wanted: dict[int, list[_Wanted]] = {}
        """By the segment whose appends are searched for."""

    def __bool__(self) -> bool:
        return bool(self._wanted)

    @property
    def first_sequence(self) -> int:
        """No operation before this one has any of it: a segment's id is that of its creation."""
        return min(self._wanted)

    def add(
        self,
        segment_id: int,
        start_offset: int,
        end_offset: int,
        source: tuple[int, int] | None = None,
    ) -> None:
        """Search for [start_offset, end_offset) of a segment; `source` says which segment had them
        appended, and where the first of them lies in it.
        """
        if start_offset < end_offset:
            searched, at = source if source is not None else (segment_id, start_offset)
            wanted = _Wanted(at, at + end_offset - start_offset, segment_id, start_offset - at)
            self._wanted.setdefault(searched, []).append(wanted)

    def take(self, append: AppendOperation) -> Iterator[FoundBytes]:
        """What of the append is searched for; it is not any more."""
        data = memoryview(append.data)
        end = append.offset + len(data)
        for each, start_offset, end_offset in self._cut(append.segment_id, append.offset, end):
            first = start_offset - append.offset
            piece = data[first : first + end_offset - start_offset]
            yield FoundBytes(each.segment_id, start_offset + each.shift, piece)

    def follow(self, merge: MergeOperation) -> bool:
        """Search for what the merge brought in its source; whether anything is searched for there
        that was not before.
        """
        end = merge.offset + merge.length
        moved = list(self._cut(merge.target_id, merge.offset, end))
        for each, start_offset, end_offset in moved:
            self._wanted.setdefault(merge.source_id, []).append(
                _Wanted(
                    start_offset - merge.offset,
                    end_offset - merge.offset,
                    each.segment_id,
                    each.shift + merge.offset,
                )
            )
        return bool(moved)

    def left(self) -> dict[int, list[Gap]]:
        """What was not met, by the segment that wants it, in order."""
        left: dict[int, list[Gap]] = {}
        for wanted in self._wanted.values():
            for each in wanted:
                gap = Gap(each.start_offset + each.shift, each.end_offset + each.shift)
                left.setdefault(each.segment_id, []).append(gap)
        return {segment_id: sorted(gaps) for segment_id, gaps in left.items()}

    def _cut(
        self, segment_id: int, start_offset: int, end_offset: int
    ) -> Iterator[tuple[_Wanted, int, int]]:
        """Take [start_offset, end_offset) of a segment out; what of it was searched for."""
        wanted = self._wanted.get(segment_id)
        if wanted is None:
            return
        left: list[_Wanted] = []
        taken: list[tuple[_Wanted, int, int]] = []
        for each in wanted:
            first, last = max(each.start_offset, start_offset), min(each.end_offset, end_offset)
            if first >= last:
                left.append(each)
                continue
            taken.append((each, first, last))
            if each.start_offset < first:
                left.append(each.part(each.start_offset, first))
            if last < each.end_offset:
                left.append(each.part(last, each.end_offset))
        if left:
            self._wanted[segment_id] = left
        else:
            del self._wanted[segment_id]
        yield from taken
