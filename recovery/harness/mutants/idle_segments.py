"""Mutants of segments that are idle (DESIGN 4.1): when one leaves memory, and how it comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_ACTIVE: Final = "segmentstore.container.active_segments:ActiveSegments"
_EVICTION: Final = "segmentstore.container.eviction:Eviction"
_CHANGES: Final = "durablelog.catalog.metadata_changes:MetadataChanges"

_FEW: Final[Mapping[str, Any]] = {
    **BUSY,
    "inline_checkpoint_bytes_max": 0,
    "active_segments_max": 4,
}

IDLE_SEGMENTS: Final = (
    Mutant(
        "evicted-with-unflushed-bytes",
        "4.4 Bytes not yet in Tier 2 are never lost to eviction.",
        "A segment leaves memory though the log alone has bytes of it.",
        (
            Edit(f"{_EVICTION}._may_leave", "if not segment.flushed:", "if False:"),
            Edit(
                "durablelog.segment_residency:SegmentResidency.may_evict",
                "if not (segment.flushed and self.changes.is_written(segment)):",
                "if not self.changes.is_written(segment):",
            ),
        ),
        Hunt(workload="everything", settings={**_FEW, "flush_age_s": 2.0}),
    ),
    Mutant(
        "evicted-before-it-is-written",
        "4.1 Every field has one writer: from operations, live and in replay alike.",
        "A segment leaves memory before the catalog has what changed of it.",
        (
            Edit(
                f"{_CHANGES}.is_written",
                "return segment.generation <= self._written_generation",
                "return True",
            ),
            Edit(f"{_EVICTION}._evict_some", "if segment.generation > written:", "if False:"),
        ),
        Hunt(workload="everything", settings=_FEW),
    ),
    Mutant(
        "deleted-segment-comes-back",
        "4.1 Merged ends everything but delete; ids are never used again.",
        "What the catalog still has of a deleted segment is taken for an idle one.",
        (
            Edit(
                f"{_CHANGES}.is_lost",
                "return key in self._lost or key in self._lost_before",
                "return False",
            ),
        ),
        Hunt(workload="everything", settings=_FEW),
    ),
    Mutant(
        "replayed-without-its-segment",
        "4.1 In replay the offset recorded in an operation must equal the length reached so far.",
        "Replay does not bring segments back that were idle at the log's first checkpoint.",
        (Edit(f"{_ACTIVE}.prepare", "if metadata.idle:", "if False:"),),
        Hunt(workload="everything", settings=_FEW),
        bugs=("B12",),
    ),
    Mutant(
        "name-of-an-idle-segment-is-free",
        "4.1 Segment ids are never reused; a re-created name gets a new id.",
        "A segment is created though the catalog has an idle one of its name.",
        (
            Edit(
                f"{_ACTIVE}.begin_creating",
                "elif self._loader.may_be_idle(name):",
                "elif False:",
            ),
        ),
        Hunt(workload="lifecycle", settings=_FEW),
    ),
    Mutant(
        "deferred-appends-go-last",
        "4.2 Appends of one caller land in the order of the calls.",
        "Appends whose segment left while they were queued go behind those that came later.",
        (
            Edit(
                "durablelog.operation_processor:OperationProcessor.put_back",
                "self._returned.extend(requests)",
                "self._queue.extend(requests)",
            ),
        ),
        Hunt(workload="exactly-once", settings=_FEW, seeds_max=60),
    ),
    Mutant(
        "waiting-appends-in-reverse",
        "4.2 Appends of one caller land in the order of the calls.",
        "Appends that wait for their segment are queued in the reverse order of the calls.",
        (
            Edit(
                f"{_ACTIVE}._resolve",
                "waiters.sort(key=_number_of)",
                "waiters.sort(key=_number_of, reverse=True)",
            ),
        ),
        Hunt(workload="exactly-once", settings=_FEW, seeds_max=60),
    ),
    Mutant(
        "idle-segments-not-counted",
        "4.1 Every field has one writer: from operations, live and in replay alike.",
        "The catalog counts the active segments only: idle ones are not there at the next opening.",
        (
            Edit(
                "segmentstore.container.metadata_checkpoints:MetadataCheckpoints.take",
                "CatalogTotals(metadata.segment_count, metadata.archive)",
                "CatalogTotals(len(metadata.names), metadata.archive)",
            ),
        ),
        Hunt(workload="everything", settings=_FEW),
    ),
)
