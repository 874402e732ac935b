"""What the tasks of reconciliation do to follow the chunks of segments: range by range of the
catalog's tables.

Rules of this file:

- a range is row groups of `chunks`, wherever segments begin and end in them: a segment of any
  length is cut, and its borders reported;
- a range also has the segments without chunks between its own and the next one's; each segment is
  checked by one range, or cut;
- names are most of the table and only evidence: they are read where something was found.

Coroutines over ObjectStorage; no pyspark.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tier2.catalog.catalog_groups import GroupRange, open_groups
from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_reading import read_table
from tier2.object_storage import ObjectStorage
from tier2.spark.reconcile.coverage import Border, SegmentWalk, check_range
from tier2.spark.reconcile.findings import FINDINGS, FindingRow, findings_table

COVERED: Final = ("segment_id", "start_offset", "length")
"""What is needed of a snapshot's `chunks` to follow them."""
SEGMENT_COLUMNS: Final = ("segment_id", "start_offset", "storage_length")
"""What is needed of its `segments`."""
NAMED: Final = (*COVERED, "object_name")
WALKED_GROUPS: Final = 64
"""Row groups of a segment that are walked together: about a million chunks."""


class Covered(NamedTuple):
    """What a range came to."""

    findings: pa.Table
    borders: list[Border]
    chunks: int


async def cover_range(
    storage: ObjectStorage, manifest: Manifest, part: int, parts: int, run_id: str
) -> Covered:
    """One of `parts` ranges of a container's chunks, and its segments.

    Holds the range: some 120 bytes a chunk.
    """
    chunks = await open_groups(storage, manifest, "chunks", COVERED)
    place = chunks.range(part, parts)
    if place is None:
        return Covered(FINDINGS.empty_table(), [], 0)
    rows = await chunks.read(place.start, place.stop)
    segments = await _segments(storage, manifest, place)
    check_suspects: dict[str, Any] = {
        "container_id": manifest.container_id,
        "part": part,
        "continues": place.continues,
        "goes_on": place.goes_on,
        "run_id": run_id,
    }
    findings, borders = check_range(segments, _nameless(rows), **check_suspects)
    if findings.num_rows:
        del rows
        named = await open_groups(storage, manifest, "chunks", NAMED)
        findings, borders = check_range(
            segments, await named.read(place.start, place.stop), **check_suspects
        )
    return Covered(findings, borders, chunks.rows(place.start, place.stop))


async def cover_segment(
    storage: ObjectStorage, manifest: Manifest, segment_id: int, run_id: str
) -> pa.Table:
    """FINDINGS of one segment, walked from its beginning.

    Holds WALKED_GROUPS row groups, however long it is.
    """
    segment = await read_table(
        storage, manifest, "segments", columns=SEGMENT_COLUMNS, segment_ids=(segment_id,)
    )
    walk = SegmentWalk.of(segment)
    chunks = await open_groups(storage, manifest, "chunks", COVERED)
    named = await open_groups(storage, manifest, "chunks", NAMED)
    first, behind = chunks.of_segments(segment_id, segment_id)
    findings: list[FindingRow] = []
    beyond: str | None = None
    for start in range(first, behind, WALKED_GROUPS):
        end = min(start + WALKED_GROUPS, behind)
        was_beyond = walk.beyond
        found = list(walk.see_rows(_of(await chunks.read(start, end), segment_id)))
        if found or walk.beyond != was_beyond:
            names = _of(await named.read(start, end), segment_id)["object_name"]
            findings += [
                finding if row is None else finding._replace(object=str(names[row].as_py()))
                for finding, row in found
            ]
            if walk.beyond is not None and was_beyond is None:
                beyond = str(names[walk.beyond[1]].as_py())
    findings += [
        finding._replace(object=None if row is None else beyond) for finding, row in walk.end()
    ]
    number = manifest.container_id
    return findings_table(
        (each._replace(container_id=number, segment_id=segment_id) for each in findings), run_id
    )


async def _segments(storage: ObjectStorage, manifest: Manifest, place: GroupRange) -> pa.Table:
    """The segments that begin in a range of chunks, or are cut by it."""
    table = await open_groups(storage, manifest, "segments", SEGMENT_COLUMNS)
    start, stop = table.of_segments(place.least, place.behind)
    rows = await table.read(start, stop)
    if place.least is not None:
        rows = rows.filter(pc.greater_equal(rows["segment_id"], pa.scalar(place.least)))
    if place.behind is not None:
        last = pc.less_equal if place.goes_on else pc.less
        rows = rows.filter(last(rows["segment_id"], pa.scalar(place.behind)))
    return rows


def _of(chunks: pa.Table, segment_id: int) -> pa.Table:
    return chunks.filter(pc.equal(chunks["segment_id"], pa.scalar(segment_id)))


def _nameless(chunks: pa.Table) -> pa.Table:
    return chunks.append_column("object_name", pa.nulls(chunks.num_rows, pa.string()))
