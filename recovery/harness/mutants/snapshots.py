"""Mutants of checkpoints that name metadata snapshots (DESIGN 4.1 to 4.3): what a snapshot has, and
when a log may begin with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_CHANGES: Final = "durablelog.catalog.metadata_changes:MetadataChanges"
_CHECKPOINTS: Final = "segmentstore.container.metadata_checkpoints:MetadataCheckpoints"
_UPLOADER: Final = "storagewriter.snapshot_uploader:SnapshotUploader"

_BY_REFERENCE: Final[Mapping[str, Any]] = {**BUSY, "inline_checkpoint_bytes_max": 0}
_LOST: Final = (
    {"ending": "kill"},
    {"ending": "kill", "catalog": "catalog.lost"},
)
"""Each second owner has nothing but Tier 2 to read the metadata from."""

SNAPSHOTS: Final = (
    Mutant(
        "attribute-frozen-at-its-first-value",
        "4.1 Every field has one writer: from operations, live and in replay alike.",
        "The catalog gets the first value that an attribute had since the last snapshot.",
        (
            Edit(
                f"{_CHANGES}.set_attributes",
                "there.update(values)",
                "self._tables.attributes[segment_id] = {**values, **there}",
            ),
        ),
        Hunt(workload="attributes", settings=_BY_REFERENCE),
    ),
    Mutant(
        "records-frozen-too-late",
        "4.1 In replay the offset recorded in an operation must equal the length reached so far.",
        "The record of a segment that changes while a snapshot is encoded is encoded as changed.",
        (Edit(f"{_CHANGES}.note", "self._frozen.keep(segment)", "pass"),),
        Hunt(workload="appends", settings=_BY_REFERENCE),
    ),
    Mutant(
        "truncated-before-the-snapshot",
        "4.2 Order: checkpoint durable, new truncation address durable, delete.",
        "A checkpoint is a truncation point before the snapshot that it names is durable.",
        (
            Edit(
                f"{_CHECKPOINTS}._make",
                "checkpoint = await self._write(number)",
                "self._positions.add_checkpoint(number, address)\n"
                "self._on_snapshot(True)\n"
                "checkpoint = await self._write(number)",
            ),
            Edit(
                f"{_CHECKPOINTS}._make",
                "self._health.succeeded()\nself._positions.add_checkpoint(number, address)",
                "self._health.succeeded()",
            ),
        ),
        Hunt(workload="appends", settings=_BY_REFERENCE),
    ),
    Mutant(
        "snapshot-of-the-begin-deleted",
        "4.3 Nothing is deleted before no metadata can want it.",
        "Of the snapshots that a log may begin with, only the newest are kept.",
        (
            Edit(
                f"{_UPLOADER}._forget_old",
                " or manifest.sequence_number >= self._keep_from",
                "",
            ),
        ),
        Hunt(workload="tier2", settings=_BY_REFERENCE, cycles=_LOST),
    ),
    Mutant(
        "file-of-a-snapshot-not-put",
        "4.3 A lost reply is resolved by recognising one's own object, never by assuming.",
        "A put of a snapshot's file that failed counts as one that succeeded.",
        (
            Edit(
                f"{_UPLOADER}._put_file",
                "except ObjectExistsError:",
                "except StorageUnavailableError:\n    pass\nexcept ObjectExistsError:",
            ),
        ),
        Hunt(
            workload="default",
            settings=_BY_REFERENCE,
            rates={"object.put.failed": 0.2},
            cycles=_LOST,
        ),
    ),
    Mutant(
        "snapshots-of-the-last-owner-forgotten",
        "4.3 Nothing is deleted before no metadata can want it.",
        "An owner deletes the snapshot that its log begins with, since the last owner put it.",
        (Edit(f"{_CHECKPOINTS}._take_over", "if not self._earlier:", "if self._earlier:"),),
        Hunt(workload="tier2", settings=_BY_REFERENCE, cycles=_LOST),
    ),
    Mutant(
        "working-directory-of-two-owners",
        "4.3 A stale owner can make nothing but garbage.",
        "Each opening of a catalog has the same working directory.",
        (
            Edit(
                "durablelog.catalog.checkpoint_files:CheckpointFiles.working",
                "{token:016x}",
                "{0:016x}",
            ),
        ),
        Hunt(
            workload="appends",
            settings={**_BY_REFERENCE, "flush_age_s": 0.1},
            cycles=({"ending": "takeover", "locks_expire": True},),
        ),
    ),
)
