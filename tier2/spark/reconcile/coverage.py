"""Verdicts over segments: whether their chunks follow one another and hold what Tier 2 is said to
have.

The rules for a segment with chunks in order of their offsets. Nothing lacks in [start_offset,
storage_length), no chunk begins before all earlier ones have ended, and none ends behind
storage_length. Rules of this file:

- segments whose chunks simply follow one another are recognised by whole columns; only the others
  are checked one by one;
- what was reached so far is the greatest end of all earlier chunks, not that of the last: a long
  chunk hides nothing;
- a segment that a range cuts is reported by its borders. Where they fit, and all is in order
  between them, nothing is wrong; where they do not, the segment is walked from its beginning
  (`SegmentWalk`), a stretch at a time.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tier2.spark.reconcile.findings import FindingKind, FindingRow, findings_table

_Numbers = NDArray[np.int64]

_UNKNOWN: Final = "the catalog has chunks of a segment that it does not know"


class _Segments(NamedTuple):
    """Columns of `segments`, by id."""

    ids: _Numbers
    floor: _Numbers
    """From here on chunks must hold every byte: the start offset, or the storage length if that is
    less.
    """
    ceiling: _Numbers
    """Up to here: the storage length."""


class _Chunks(NamedTuple):
    """Columns of `chunks`, by segment and start."""

    ids: _Numbers
    starts: _Numbers
    ends: _Numbers
    rows: _Numbers
    """Where they stand in the table."""


class Border(NamedTuple):
    """What one range has of a segment that it cuts."""

    part: int
    """Which of the ranges."""
    segment_id: int
    floor: int
    ceiling: int
    start: int
    """Of the first chunk in the range."""
    end: int
    """Of the last."""
    clean: bool
    """Within the range the chunks follow one another, and none is empty."""


def check_range(
    segments: pa.Table,
    chunks: pa.Table,
    *,
    container_id: int,
    part: int,
    continues: bool,
    goes_on: bool,
    run_id: str = "",
) -> tuple[pa.Table, list[Border]]:
    """FINDINGS over a range of one container's segments: gaps and overlaps. And the borders of the
    segments that the range cuts.

    The first segment began before the range if it `continues`; the last one `goes_on` behind it.
    With neither, both tables hold exactly the same segment ids.

    Of `catalog_schema.SEGMENTS` the columns segment_id, start_offset and storage_length are read,
    of CHUNKS segment_id, start_offset, length and object_name. Tables that are in order are not
    sorted. A chunk of no bytes has the kind wrong_size, one of a segment that is not there
    wrong_identity. O(rows).

    Of the two cut segments there are only borders: `broken_segments` checks them once all ranges
    have been read. Of a segment that the catalog does not know each range says how many chunks it
    has.
    """
    ours, theirs = _segments(segments), _chunks(chunks)
    cut = {
        int(theirs.ids[at])
        for at, is_cut in ((0, continues), (-1, goes_on))
        if is_cut and len(theirs.ids)
    }
    borders = [
        _border(ours, theirs, part, segment_id)
        for segment_id in sorted(cut)
        if segment_id in ours.ids
    ]
    whole = ~np.isin(theirs.ids, [border.segment_id for border in borders])
    others = ~np.isin(ours.ids, [border.segment_id for border in borders])
    found = _checks(
        _Segments(*(column[others] for column in ours)),
        theirs if whole.all() else _Chunks(*(column[whole] for column in theirs)),
    )
    named = (_with_object(finding, chunks, row) for finding, row in found)
    return findings_table(
        (finding._replace(container_id=container_id) for finding in named), run_id
    ), borders


def broken_segments(borders: Iterable[Border]) -> list[int]:
    """Segments of one container whose ranges do not fit together, or in one of which something is
    wrong.
    """
    of_segments: dict[int, list[Border]] = {}
    for border in borders:
        of_segments.setdefault(border.segment_id, []).append(border)
    broken = []
    for segment_id, some in sorted(of_segments.items()):
        some.sort()
        fits = all(border.clean for border in some) and all(
            one.end == other.start for one, other in pairwise(some)
        )
        if not fits or some[0].start > some[0].floor or some[-1].end != some[-1].ceiling:
            broken.append(segment_id)
    return broken


class SegmentWalk:
    """One segment whose chunks come a stretch at a time, in order.

    Holds three numbers, however many there are.
    """

    def __init__(self, floor: int, ceiling: int) -> None:
        self._ceiling = ceiling
        self._reached = floor
        self._last_end: int | None = None
        self.beyond: tuple[int, int] | None = None
        """Where the first chunk behind the ceiling begins to be so, and the row of it that `see`
        was given.
        """

    @classmethod
    def of(cls, segment: pa.Table) -> SegmentWalk:
        """Of a segment's row, with segment_id, start_offset and storage_length."""
        ours = _segments(segment)
        return cls(int(ours.floor[0]), int(ours.ceiling[0]))

    def see_rows(self, chunks: pa.Table) -> Iterator[tuple[FindingRow, int | None]]:
        """As `see`, of rows of the segment with start_offset and length."""
        return self.see(_chunks(chunks))

    def see(self, chunks: _Chunks) -> Iterator[tuple[FindingRow, int | None]]:
        """What is wrong with the next chunks, each with its row."""
        ceiling = self._ceiling
        for start, end, row in zip(
            chunks.starts.tolist(), chunks.ends.tolist(), chunks.rows.tolist(), strict=True
        ):
            if end <= start:
                yield (
                    _finding(FindingKind.WRONG_SIZE, f"a chunk of {end - start} bytes", start, end),
                    row,
                )
                continue
            if min(start, ceiling) > self._reached:
                evidence = "no chunk holds these bytes, the named one is behind them"
                yield _finding(FindingKind.GAP, evidence, self._reached, min(start, ceiling)), row
            if self._last_end is not None and start < self._last_end:
                evidence = f"a chunk begins at {start}, and earlier ones reach {self._last_end}"
                yield _finding(FindingKind.OVERLAP, evidence, start, min(end, self._last_end)), row
            if self.beyond is None and end > ceiling:
                self.beyond = max(start, ceiling), row
            self._reached = max(self._reached, end)
            self._last_end = end if self._last_end is None else max(self._last_end, end)

    def end(self) -> Iterator[tuple[FindingRow, int | None]]:
        """What is wrong with the segment's end."""
        ceiling = self._ceiling
        if self._reached < ceiling:
            evidence = "no chunk holds these bytes, up to the storage length"
            yield _finding(FindingKind.GAP, evidence, self._reached, ceiling), None
        elif self.beyond is not None and self._last_end is not None:
            evidence = f"chunks reach {self._last_end}, and the storage length is {ceiling}"
            yield (
                _finding(FindingKind.OVERLAP, evidence, self.beyond[0], self._last_end),
                self.beyond[1],
            )


def check_sharing(objects: pa.Table, *, container_id: int, run_id: str = "") -> pa.Table:
    """FINDINGS over `catalog_schema.OBJECTS` with name and blocks: bytes of a block that two chunks
    hold. O(chunks).
    """
    lists = pa.concat_arrays(
        objects["blocks"].chunks or [pa.array([], objects.schema.field("blocks").type)]
    )
    flat, parents = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()
    blocks, starts, lengths, ids, places = (
        pc.struct_field(flat, name).to_numpy()
        for name in ("block_offset", "block_start_offset", "length", "segment_id", "start_offset")
    )
    order = np.lexsort((starts, blocks, parents))
    before, behind = order[:-1], order[1:]
    shared = (parents[before] == parents[behind]) & (blocks[before] == blocks[behind])
    shared &= starts[before] + lengths[before] > starts[behind]
    findings = []
    for one, other in zip(before[shared].tolist(), behind[shared].tolist(), strict=True):
        end = min(starts[one] + lengths[one], starts[other] + lengths[other])
        evidence = (
            f"two chunks hold bytes of the block at {blocks[one]}, the other is of segment "
            f"{ids[one]} from {places[one]}"
        )
        name = objects["name"][int(parents[one])].as_py()
        length = int(end - starts[other])
        findings.append(
            FindingRow(
                FindingKind.OVERLAP,
                evidence,
                container_id,
                name,
                None,
                None,
                int(ids[other]),
                int(places[other]),
                length,
            )
        )
    return findings_table(findings, run_id)


def _segments(table: pa.Table) -> _Segments:
    ids, starts, ceiling = (
        _numbers(table, name) for name in ("segment_id", "start_offset", "storage_length")
    )
    if np.any(ids[1:] < ids[:-1]):
        order = np.argsort(ids, kind="stable")
        ids, starts, ceiling = ids[order], starts[order], ceiling[order]
    return _Segments(ids, np.minimum(starts, ceiling), ceiling)


def _chunks(table: pa.Table) -> _Chunks:
    ids, starts, lengths = (
        _numbers(table, name) for name in ("segment_id", "start_offset", "length")
    )
    rows = np.arange(len(ids))
    same = ids[1:] == ids[:-1]
    if np.any((ids[1:] < ids[:-1]) | (same & (starts[1:] < starts[:-1]))):
        rows = np.lexsort((starts, ids))
        ids, starts, lengths = ids[rows], starts[rows], lengths[rows]
    return _Chunks(ids, starts, starts + lengths, rows)


def _checks(segments: _Segments, chunks: _Chunks) -> Iterator[tuple[FindingRow, int | None]]:
    """Findings by segment, each with the row of the chunk it is about."""
    first = np.searchsorted(chunks.ids, segments.ids, "left")
    behind = np.searchsorted(chunks.ids, segments.ids, "right")
    if int((behind - first).sum()) != len(chunks.ids):
        yield from _of_unknown_segments(segments, chunks)
    for each in np.flatnonzero(_suspicious(segments, chunks, first, behind)).tolist():
        part = slice(int(first[each]), int(behind[each]))
        own = _Chunks(*(column[part] for column in chunks))
        found = _check_segment(int(segments.floor[each]), int(segments.ceiling[each]), own)
        for finding, row in found:
            yield finding._replace(segment_id=int(segments.ids[each])), row


def _suspicious(
    segments: _Segments, chunks: _Chunks, first: NDArray[np.intp], behind: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Of each segment: whether more than a check of whole columns is needed."""
    some = behind > first
    suspicious = ~some & (segments.floor < segments.ceiling)
    suspicious[some] |= chunks.starts[first[some]] > segments.floor[some]
    suspicious[some] |= chunks.ends[behind[some] - 1] != segments.ceiling[some]
    bad = chunks.ends <= chunks.starts
    bad[1:] |= (chunks.ids[1:] == chunks.ids[:-1]) & (chunks.starts[1:] != chunks.ends[:-1])
    broken = np.unique(chunks.ids[bad])
    return suspicious | np.isin(segments.ids, broken)


def _check_segment(
    floor: int, ceiling: int, chunks: _Chunks
) -> Iterator[tuple[FindingRow, int | None]]:
    """One segment, and all of its chunks."""
    walk = SegmentWalk(floor, ceiling)
    yield from walk.see(chunks)
    yield from walk.end()


def _border(segments: _Segments, chunks: _Chunks, part: int, segment_id: int) -> Border:
    own = slice(
        int(np.searchsorted(chunks.ids, segment_id)),
        int(np.searchsorted(chunks.ids, segment_id, "right")),
    )
    at = int(np.searchsorted(segments.ids, segment_id))
    starts, ends = chunks.starts[own], chunks.ends[own]
    clean = bool(np.all(ends > starts) and np.all(starts[1:] == ends[:-1]))
    place = int(segments.floor[at]), int(segments.ceiling[at])
    return Border(part, segment_id, *place, int(starts[0]), int(ends[-1]), clean)


def _of_unknown_segments(
    segments: _Segments, chunks: _Chunks
) -> Iterator[tuple[FindingRow, int | None]]:
    """One finding a segment, about its first chunk."""
    foreign = np.flatnonzero(~np.isin(chunks.ids, segments.ids))
    ids, first, counts = np.unique(chunks.ids[foreign], return_index=True, return_counts=True)
    for segment_id, place, count in zip(
        ids.tolist(), foreign[first].tolist(), counts.tolist(), strict=True
    ):
        finding = _finding(
            FindingKind.WRONG_IDENTITY, f"{_UNKNOWN}: {count}", *_span(chunks, place)
        )
        yield finding._replace(segment_id=segment_id), int(chunks.rows[place])


def _span(chunks: _Chunks, place: int) -> tuple[int, int]:
    return int(chunks.starts[place]), int(chunks.ends[place])


def _finding(kind: FindingKind, evidence: str, start: int, end: int) -> FindingRow:
    return FindingRow(kind, evidence, start_offset=start, length=end - start)


def _with_object(finding: FindingRow, chunks: pa.Table, row: int | None) -> FindingRow:
    if row is None:
        return finding
    name: Any = chunks["object_name"][row].as_py()
    return finding._replace(object=name)


def _numbers(table: pa.Table, name: str) -> _Numbers:
    return table[name].to_numpy()
