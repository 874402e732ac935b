"""Mutants of what is done to Tier 2 in the background (DESIGN 4.3): consolidation, and the deletion
of what it leaves.
"""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_CONSOLIDATING: Final = {
    **BUSY,
    "consolidation": True,
    "consolidation_bytes": 1000,
    "flush_bytes": 60,
}
"""Small objects, and soon rewritten."""

CONSOLIDATION: Final = (
    Mutant(
        "consolidated-in-another-order",
        "4.3 A read returns the bytes that were appended at that offset, whatever was "
        "moved meanwhile.",
        "A consolidation writes the chunks of one block backwards, with checksums that "
        "fit what it wrote.",
        (
            Edit(
                "storagewriter.consolidator:Consolidator._write_run",
                "for chunk in chunks for part",
                "for chunk in reversed(chunks) for part",
            ),
        ),
        Hunt(workload="tier2", tier2="file", settings=_CONSOLIDATING),
    ),
    Mutant(
        "forgotten-before-it-is-deleted",
        "4.3 Unreferenced in the log, then a deletion lag, then delete, then confirm; an "
        "unknown outcome forgets nothing.",
        "A deletion that failed counts as done: the log forgets an object that is still there.",
        (
            Edit(
                "storagewriter.garbage_collector:GarbageCollector._delete_one",
                "self.health.failed(error)\nreturn False",
                "self.health.failed(error)\nreturn True",
            ),
        ),
        Hunt(
            workload="tier2",
            settings={**BUSY},
            rates={"object.delete.failed": 0.5},
            cycles=({"ending": "power", "checked": True},),
        ),
    ),
    Mutant(
        "flushed-twice-over",
        "4.3 An object becomes part of a segment by the log: what was uploaded and never "
        "committed is an orphan.",
        "An owner puts each object of a flush twice, under two names, and commits one to the log.",
        (
            Edit(
                "storagewriter.object_uploader:ObjectUploader.store",
                "await send(name, unique_id)",
                "await send(name, unique_id)\n"
                "unique_id = new_tagged_id(self._tag, self._runtime.random)\n"
                "name = object_name(metadata.container_id, self._source.epoch, kind, unique_id)\n"
                "await send(name, unique_id)",
            ),
        ),
        Hunt(workload="tier2", settings={**BUSY}),
    ),
)
