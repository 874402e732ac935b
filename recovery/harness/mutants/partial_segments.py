"""Mutants of segments that memory knows in part: what leaves it, and how it comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_CHANGES: Final = "durablelog.catalog.metadata_changes:MetadataChanges"
_STORAGE: Final = "durablelog.storage_metadata"
_RESIDENCY: Final = "durablelog.segment_residency:SegmentResidency"

_SMALL: Final[Mapping[str, Any]] = {
    **BUSY,
    "inline_checkpoint_bytes_max": 0,
    "active_segments_max": 100,
    "active_metadata_bytes_max": 1500,
    "consolidation": True,
    "consolidation_bytes": 1000,
}

PARTIAL_SEGMENTS: Final = (
    Mutant(
        "forgets-a-page-that-is-not-written",
        "4.2 Tier 2 metadata never names bytes that are not there.",
        "Chunks leave memory though the catalog has them as they were.",
        (
            Edit(
                f"{_CHANGES}.is_page_written",
                "return self.all_written and (segment_id, key) not in self._tables.pages",
                "return True",
            ),
        ),
        Hunt(workload="everything", settings=_SMALL),
    ),
    Mutant(
        "forgets-chunks-in-use",
        "4.1 Every field has one writer: from operations, live and in replay alike.",
        "Chunks leave memory that an accepted operation removes or replaces.",
        (
            Edit(
                f"{_RESIDENCY}.may_forget_chunks",
                "if removing or holder.segment_id in self._chunk_users:",
                "if False:",
            ),
            Edit(
                "segmentstore.container.partial_segments:PartialSegments._may_forget",
                "segment.segment_id not in self._kept and ",
                "",
            ),
            Edit(
                "segmentstore.container.partial_segments:PartialSegments._bound_pages",
                "if segment_id in self._kept:",
                "if False:",
            ),
        ),
        Hunt(seeds_max=80, workload="everything", settings=_SMALL),
    ),
    Mutant(
        "loses-a-chunk-between-two-slices",
        "4.3 The log says what Tier 2 has: of a merge that is linked in part each byte is there.",
        "A slice of a link forgets its first chunk.",
        (
            Edit(
                f"{_STORAGE}:apply_link_chunks",
                "chunks = source.chunks.remove_below(operation.end_offset, pages)",
                "chunks = source.chunks.remove_below(operation.end_offset, pages)[1:]",
            ),
        ),
        Hunt(workload="lifecycle", settings=_SMALL),
    ),
    Mutant(
        "forgets-attributes-in-use",
        "4.1 An attribute condition is checked against the value as of the operation before.",
        "Attributes leave memory that the catalog has as they were.",
        (
            Edit(
                f"{_CHANGES}.attributes_in_use",
                "return {*now, *self._recent.get(segment_id, {})}",
                "return set()",
            ),
        ),
        Hunt(workload="attributes", settings=_SMALL),
    ),
    Mutant(
        "unknown-attribute-is-none",
        "4.1 An attribute condition is checked against the value as of the operation before.",
        "An attribute that is in the catalog alone is taken for one that is not there.",
        (
            Edit(
                "segmentstore.contracts.partial_attributes:KnownAttributes.__missing__",
                "raise UnknownAttributeError(key)",
                "return None",
            ),
        ),
        Hunt(workload="everything", settings=_SMALL),
    ),
    Mutant(
        "replayed-without-its-chunks",
        "4.1 In replay the offset recorded in an operation must equal the length reached so far.",
        "Replay does not bring what its operations need of segments that are known in part.",
        (
            Edit(
                "segmentstore.container.active_segments:ActiveSegments.prepare",
                "if metadata.partial:",
                "if False:",
            ),
        ),
        Hunt(workload="everything", settings=_SMALL),
    ),
    Mutant(
        "what-is-left-of-a-segment-comes-back",
        "4.1 Merged ends everything but delete; ids are never used again.",
        "The record of a segment that is deleted in slices is taken for that of an idle one.",
        (Edit(f"{_CHANGES}.is_lost", " or key in self._deleted", ""),),
        Hunt(workload="everything", settings=_SMALL),
    ),
    Mutant(
        "released-and-still-there",
        "4.3 Objects are deleted after the last reference to them, and not before.",
        "A deletion in slices releases the objects, and each slice does it again.",
        (
            Edit(
                f"{_STORAGE}:discard",
                "changes.put_off(each)",
                "changes.put_off(each); [_release(metadata, changes, each.segment_id, chunk, "
                "operation) for chunk in each.chunks]",
            ),
        ),
        Hunt(workload="everything", settings=_SMALL),
    ),
)
