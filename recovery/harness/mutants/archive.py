"""Mutants of the archive of the log: what has to be there before the log, or the archive, deletes
what it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY
from recovery.harness.simulation.store_world import ARCHIVE as PLACE

_ARCHIVER: Final = "segmentstore.container.log_archiver:LogArchiver"
_RULE: Final = "4.2 Order: archived, complete in the log, hot copy deleted, log truncated."
_ARCHIVING: Final[Mapping[str, Any]] = {
    **BUSY,
    "archive": PLACE,
    "offload_after_s": 0.0,
    "offload_above_bytes": 0,
    "archive_deletion_lag_s": 0.0,
}

ARCHIVE: Final = (
    Mutant(
        "truncated-before-archived",
        _RULE,
        "The log is truncated as far as Tier 2 allows, whatever the archive has.",
        (Edit(f"{_ARCHIVER}.truncation_bound", "return part.end", "return None"),),
        Hunt(workload="appends", settings={**_ARCHIVING, "offload_after_s": 10.0}),
    ),
    Mutant(
        "complete-before-it-is-there",
        _RULE,
        "A part is complete in the log before it is uploaded.",
        (
            Edit(
                f"{_ARCHIVER}._offload",
                "await self._offloader.offload(reading, part.uid, self._extra_metadata())\n"
                "now_ms = self._runtime.clock.time_ms()\n"
                "await self._commit(\n"
                "    OffloadCompleted(part.number, part.uid, now_ms, reading.checkpoint_entry)\n"
                ")",
                "now_ms = self._runtime.clock.time_ms()\n"
                "await self._commit(\n"
                "    OffloadCompleted(part.number, part.uid, now_ms, reading.checkpoint_entry)\n"
                ")\n"
                "await self._offloader.offload(reading, part.uid, self._extra_metadata())",
            ),
        ),
        Hunt(workload="appends", settings=_ARCHIVING),
    ),
    Mutant(
        "deleted-on-an-unknown-outcome",
        "4.3 A lost reply is resolved by recognising one's own object, never by assuming.",
        "If the log fails while it takes the completion, the part is deleted from the archive.",
        (
            Edit(
                f"{_ARCHIVER}._offload",
                "finally:",
                "except BaseException:\n"
                "    from tier2.archive.archive_names import archived_data_name\n"
                "    name = archived_data_name(part.ledger_id, part.uid)\n"
                "    own_task(self._offloader.storage.delete(name), name='deletion')\n"
                "    raise\n"
                "finally:",
            ),
        ),
        Hunt(
            workload="appends",
            tier1="ledger",
            settings=_ARCHIVING,
            rates={"ledger.append.in-doubt": 0.05},
            cycles=({"ending": "kill", "dies_at": None},),
            process_runs=16,
        ),
    ),
    Mutant(
        "expired-before-the-pointer",
        "4.3 Nothing is deleted before no metadata can want it.",
        "Retention deletes the objects of parts, and moves the pointer then.",
        (
            Edit(
                f"{_ARCHIVER}._expire",
                "index, before = index + 1, before + part.length",
                "await self._offloader.delete_offloaded(part.ledger_id, part.uid)\n"
                "index, before = index + 1, before + part.length",
            ),
        ),
        Hunt(
            workload="appends",
            settings={**_ARCHIVING, "archive_retention_bytes": 9000},
        ),
    ),
    Mutant(
        "lag-not-heeded",
        _RULE,
        "The log may delete its copy of a part as soon as that is complete.",
        (
            Edit(
                f"{_ARCHIVER}._delete_hot_copies",
                "if part.offloaded_ms > last_ms and index >= seen:",
                "if part.offloaded_ms < 0:",
            ),
        ),
        Hunt(workload="appends", settings={**_ARCHIVING, "archive_deletion_lag_s": 5.0}),
    ),
    Mutant(
        "attempt-left-behind",
        "4.3 A crash leaves nothing that is never deleted.",
        "A new attempt does not delete what the one before it left.",
        (
            Edit(
                f"{_ARCHIVER}._offload",
                "await self._offloader.delete_offloaded(left.ledger_id, left.uid)",
                "pass",
            ),
        ),
        Hunt(
            workload="appends",
            settings=_ARCHIVING,
            cycles=({"ending": "kill", "dies_after": "object.put"},),
            process_runs=12,
        ),
    ),
    Mutant(
        "archive-forgotten-at-the-opening",
        "4.1 Every field has one writer: from operations, live and in replay alike.",
        "What the first checkpoint of a log says of the archive is forgotten.",
        (
            Edit(
                "segmentstore.contracts.metadata:ContainerMetadata.adopt",
                "self.archive = other.archive",
                "pass",
            ),
        ),
        Hunt(workload="appends", settings=_ARCHIVING),
    ),
)
