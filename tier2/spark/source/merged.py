"""Where the bytes of segments went that a snapshot does not have by name any more: into another
segment, or nowhere.

Rules of this file:

- a merged segment keeps its record, without a name, until its chunks are the target's. Then only
  the chunks show it: their blocks were written for it, and say so (`block_segment_id`);
- chunks that were rewritten since do not say either. A segment that was seen on its way before is
  known to have arrived, for a merged segment goes into its target, or with it;
- merges nest: the heir is the one at the end that has a name.

Coroutines over ObjectStorage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_reading import read_table
from tier2.object_storage import ObjectStorage
from tier2.spark.source.plan import SourceSegment


class MergeTarget(NamedTuple):
    """The segment that has a merged segment's bytes, or will have them."""

    segment: SourceSegment
    holder: int
    """Id of the segment that has them now, or gets them next: the heir itself, or one that is
    merged on.
    """
    arrived: bool
    """The heir has them in Tier 2."""


async def find_merge_targets(
    storage: ObjectStorage,
    manifest: Manifest,
    segments: Mapping[int, SourceSegment],
    missing: Mapping[int, int | None],
) -> dict[int, MergeTarget]:
    """The heirs of the segments `missing`, by id; of those that have one, as far as the snapshot
    shows it.

    `segments` are those with a name, by id. `missing` says for each which `holder` was found
    before, if one was.
    """
    table = await read_table(storage, manifest, "segments", columns=("segment_id", "merged_into"))
    table = table.filter(pc.is_valid(table["merged_into"]))
    targets = _pairs(table, "segment_id", "merged_into")
    # Those that have no record any more: the bytes are another's own by now, which may be merged on
    # itself.
    holders = {
        segment_id: seen for segment_id, seen in missing.items() if segment_id not in targets
    }
    unknown = [
        segment_id
        for segment_id, seen in holders.items()
        if seen is None or _end(targets, seen) not in segments
    ]
    if unknown:
        chunks = await read_table(
            storage, manifest, "chunks", columns=("segment_id", "block_segment_id")
        )
        chunks = chunks.filter(pc.is_in(chunks["block_segment_id"], pa.array(unknown, pa.int64())))
        holders.update(_pairs(chunks, "block_segment_id", "segment_id"))
    merge_targets = {}
    for segment_id in missing:
        holder = holders.get(segment_id, targets.get(segment_id))
        if holder is None or (segment := segments.get(_end(targets, holder))) is None:
            continue
        arrived = segment_id not in targets and holder == segment.segment_id
        merge_targets[segment_id] = MergeTarget(segment, holder, arrived)
    return merge_targets


def _pairs(table: pa.Table, keys: str, values: str) -> dict[int, int]:
    columns: list[list[Any]] = [table[keys].to_pylist(), table[values].to_pylist()]
    return dict(zip(*columns, strict=True))


def _end(targets: Mapping[int, int], segment_id: int) -> int:
    while segment_id in targets:
        segment_id = targets[segment_id]
    return segment_id
