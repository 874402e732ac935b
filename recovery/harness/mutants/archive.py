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
_DELETIONS: Final = "segmentstore.container.archive_deletions:ArchiveDeletions"
_TRUNCATION: Final = "segmentstore.container.log_truncation:LogTruncation"
_FOLDER: Final = "durablelog.file.log_folder:LogFolder"
_FILES: Final = "durablelog.file.truncated_files:TruncatedFiles"
_RULE: Final = "4.2 Order: archived, complete in the log, log truncated, lag over, copy deleted."
_ARCHIVING: Final[Mapping[str, Any]] = {
    **BUSY,
    "archive": PLACE,
    "offload_after_s": 0.0,
    "offload_above_bytes": 0,
    "archive_deletion_lag_s": 0.0,
}
_LAGGING: Final[Mapping[str, Any]] = {**_ARCHIVING, "archive_deletion_lag_s": 5.0}

ARCHIVE: Final = (
    Mutant(
        "truncated-before-archived",
        _RULE,
        "The log is truncated as far as Tier 2 allows, whatever the archive has.",
        (Edit(f"{_TRUNCATION}._point", "self._hold.truncation_bound()", "None"),),
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
                f"{_DELETIONS}.expire",
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
                f"{_DELETIONS}.delete_hot_copies",
                "if part.offloaded_ms > last_ms and index >= seen:",
                "if part.offloaded_ms < 0:",
            ),
        ),
        Hunt(workload="appends", settings=_LAGGING),
    ),
    Mutant(
        "deleted-at-the-truncation",
        _RULE,
        "The log retains nothing in front of its truncation point.",
        (
            Edit(
                f"{_TRUNCATION}._truncate",
                "await self._log.truncate(address, self._retain_from())",
                "await self._log.truncate(address)",
            ),
        ),
        Hunt(workload="appends", settings=_LAGGING),
    ),
    Mutant(
        "retained-after-the-state",
        "4.2 Order: what retains a part durable, new truncation address durable, delete.",
        "Files get the names under which they are retained when the log has left them behind.",
        (
            Edit(f"{_FOLDER}.truncate", "self.truncated.link(before, self.epoch)", "pass"),
            Edit(
                f"{_FOLDER}.truncate",
                "self._state.truncate(address, sequence)",
                "self._state.truncate(address, sequence)\n"
                "if retain_from is not None:\n"
                "    self.truncated.link(before, self.epoch)",
            ),
        ),
        Hunt(
            workload="appends",
            settings=_LAGGING,
            cycles=tuple(
                {"ending": "kill", "dies_after": "state.link", "nth": nth, "dies_at": None}
                for nth in (2, 3, 4, 5, 6)
            ),
        ),
    ),
    Mutant(
        "retained-written-over",
        "4.2 Nothing is deleted before it is durable elsewhere.",
        "The first name of a retained file becomes a spare, and the file another one.",
        (Edit(f"{_FILES}.truncated", "replace(file, rolled=False)", "file"),),
        Hunt(workload="appends", settings={**_LAGGING, "archive_deletion_lag_s": 600.0}),
    ),
    Mutant(
        "retained-left-behind",
        "4.3 A crash leaves nothing that is never deleted.",
        "What is retained stays when its hot copy is deleted.",
        (
            Edit(
                f"{_TRUNCATION}._deletion_due",
                "return first is not None and (retain_from is None or first < retain_from)",
                "return False",
            ),
        ),
        Hunt(workload="appends", settings={**_ARCHIVING, "archive_deletion_lag_s": 0.5}),
    ),
    Mutant(
        "retained-and-replayed",
        "4.2 Reading begins at the truncation point.",
        "An opening reads what is retained in front of the log.",
        (
            Edit(
                f"{_FOLDER}.stretches",
                "for file in self._files:",
                "for file in [*self.truncated.retained(0), *self._files]:",
            ),
        ),
        Hunt(workload="appends", settings=_LAGGING),
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
