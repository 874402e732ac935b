"""Mutants of the metadata (DESIGN 4.1): what the log makes true, live and in replay."""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_UPDATER: Final = "durablelog.metadata_updater:MetadataUpdater"
_PACKER: Final = "durablelog.frame_packer:FramePacker"

METADATA: Final = (
    Mutant(
        "segment-ids-used-again",
        "4.1 Segment ids are never reused; a re-created name gets a new id.",
        "The id of a segment follows from its name.",
        (
            Edit(
                f"{_UPDATER}._accept_create",
                "segment_id = self._sequence_number if recorded else self._sequence_number + 1",
                "segment_id = int(name.encode().hex(), 16) % (2**61 - 1)",
            ),
            Edit(
                f"{_UPDATER}._commit_create",
                "segment_id = operation.sequence_number",
                "segment_id = int(operation.name.encode().hex(), 16) % (2**61 - 1)",
            ),
        ),
        Hunt(workload="lifecycle"),
    ),
    Mutant(
        "replay-by-another-path",
        "4.1 Every field has one writer: from operations, live and in replay alike.",
        "Replay takes an append's bytes and forgets the attribute values that came with it.",
        (
            Edit(
                f"{_UPDATER}.replay_appends",
                "self._commit_appends(appends)",
                "for operation in appends:\n    operation.attributes = None\n"
                "self._commit_appends(appends)",
            ),
        ),
        Hunt(workload="attributes"),
    ),
    Mutant(
        "events-forgotten-at-restart",
        "4.1 Attribute updates commit with their append or not at all.",
        "An exactly-once append is compared with events of this life alone.",
        (Edit(f"{_PACKER}._check", "if last is None and pending.base is not None:", "if False:"),),
        Hunt(workload="exactly-once"),
        bugs=("B17",),
    ),
    Mutant(
        "events-compared-with-the-durable",
        "4.1 Conditions are checked against everything accepted, acknowledged or not.",
        "An event that is on its way to the log is taken again.",
        (Edit(f"{_PACKER}._check", "last = pending.attributes.get(key)", "last = None"),),
        Hunt(
            workload="exactly-once",
            cycles=({"ending": "power", "operations": 400, "dies_at": None},),
        ),
    ),
    Mutant(
        "offsets-compared-with-the-durable",
        "4.1 Conditions are checked against everything accepted, acknowledged or not.",
        "An expected offset is compared with the length that is durable.",
        (
            Edit(
                f"{_PACKER}._check",
                "expected != pending.length:",
                "expected != (pending.base.length if pending.base else 0):",
            ),
        ),
        Hunt(workload="conditional"),
    ),
    Mutant(
        "offsets-before-attributes",
        "4.1 Attribute updates are checked before the expected offset.",
        "An append with two reasons to be refused reports its offset, and not its attributes.",
        (
            Edit(
                f"{_PACKER}._check",
                "attributes, growth = pending.resolve(updates) if updates else ({}, 0)",
                "if expected is not None and expected != pending.length:\n"
                "    raise BadOffsetError(pending.name, expected, pending.length)\n"
                "attributes, growth = pending.resolve(updates) if updates else ({}, 0)",
            ),
        ),
        Hunt(workload="mixed"),
    ),
    Mutant(
        "sums-from-the-durable",
        "4.1 Conditions are checked against everything accepted, acknowledged or not.",
        "An attribute update builds on the committed value and loses those before it "
        "that are on their way.",
        (
            Edit(
                "durablelog.pending_segment:PendingSegment.resolve",
                "if self.base else NO_ATTRIBUTES, self.attributes",
                "if self.base else NO_ATTRIBUTES, {}",
            ),
        ),
        Hunt(workload="attributes"),
    ),
    Mutant(
        "half-an-update",
        "4.1 Attribute updates commit with their append or not at all.",
        "Of several updates in one call those before the one that is refused are made.",
        (
            Edit(
                f"{_UPDATER}._accept_update_attributes",
                "attributes, growth = pending.resolve(operation.updates)",
                "try:\n    attributes, growth = pending.resolve(operation.updates)\n"
                "except SegmentError:\n"
                "    attributes, growth = pending.resolve(operation.updates[:-1])\n"
                "    if not attributes:\n        raise",
            ),
        ),
        Hunt(workload="attributes"),
    ),
    Mutant(
        "sealed-takes-appends",
        "4.1 Sealed fixes Length.",
        "An append to a sealed segment goes in.",
        (
            Edit(
                f"{_PACKER}._pack_appends",
                "or pending.sealed\n",
                "\n",
            ),
        ),
        Hunt(workload="lifecycle"),
    ),
    Mutant(
        "seal-passes-appends",
        "4.1 In replay the offset recorded in an operation must equal the length reached so far.",
        "A seal is put into the log before the appends that were called before it.",
        (Edit(f"{_PACKER}._pack_operation", "self._close_groups()", "pass"),),
        Hunt(workload="lifecycle"),
    ),
    Mutant(
        "merged-behind-a-refused-one",
        "4.1 Merged ends everything but delete.",
        "The merges of one call go in behind one of them that is refused.",
        (
            Edit(
                f"{_UPDATER}._accept_merge",
                "operation.refusal = operation.before.refusal",
                "operation.refusal = None",
            ),
        ),
        Hunt(workload="lifecycle"),
    ),
    Mutant(
        "merged-keeps-its-name",
        "4.1 Merged ends everything but delete.",
        "A segment that was merged into another one can still be found.",
        (Edit(f"{_UPDATER}._commit_merge", "del metadata.names[source.name]", "pass"),),
        Hunt(workload="lifecycle"),
    ),
    Mutant(
        "merged-takes-appends",
        "4.1 Merged ends everything but delete.",
        "An append that was called before a merge is answered, or taken, behind it all the same.",
        (
            Edit(f"{_PACKER}._pack_appends", "or pending.sealed\n", "\n"),
            Edit(f"{_PACKER}._pack_appends", "or pending.removed\n", "\n"),
            Edit(
                f"{_UPDATER}.replay_appends",
                "pending = self._require(operation.segment_id)",
                "pending = self.find(operation.segment_id)",
            ),
            Edit(f"{_UPDATER}.replay_appends", "if pending.sealed:", "if False:"),
        ),
        Hunt(workload="lifecycle"),
    ),
    Mutant(
        "start-offset-goes-back",
        "4.1 0 <= StartOffset <= Length; truncated never returns.",
        "A truncation below the start offset is carried out.",
        (
            Edit(
                f"{_UPDATER}._accept_truncate",
                "if operation.offset < pending.start_offset:",
                "if False:",
            ),
        ),
        Hunt(
            workload="lifecycle", cycles=({"ending": "power", "operations": 300, "dies_at": None},)
        ),
    ),
    Mutant(
        "checkpoint-with-old-records",
        "4.1 Every field has one writer, live and in replay alike; 4.2 a checkpoint is "
        "the committed state.",
        "A checkpoint holds a segment as it was before its last seal, truncation or "
        "attribute update.",
        (Edit(f"{_UPDATER}._touch", "segment.encoded = None", "pass"),),
        Hunt(settings={**BUSY}),
    ),
    Mutant(
        "checkpoint-with-old-lengths",
        "4.1 Length only grows; 4.2 a checkpoint is the committed state.",
        "A checkpoint holds a segment with the length it had before its last appends.",
        (Edit(f"{_UPDATER}._commit_appends", "segment.encoded = None", "pass"),),
        Hunt(workload="appends", settings={**BUSY}),
        bugs=("B9",),
    ),
    Mutant(
        "checkpoint-without-start-offsets",
        "4.1 0 <= StartOffset <= Length; truncated never returns.",
        "A checkpoint holds every segment from its first byte on.",
        (Edit("durablelog.checkpoint_codec:_encode_segment", "segment.start_offset,", "0,"),),
        Hunt(workload="lifecycle", settings={**BUSY}),
        bugs=("B9",),
    ),
    Mutant(
        "checkpoint-without-attributes",
        "4.1 Attribute updates commit with their append or not at all; 4.2 a checkpoint "
        "is the committed state.",
        "A checkpoint holds segments without their attributes.",
        (
            Edit(
                "durablelog.checkpoint_codec:_encode_segment",
                "_COUNT.pack(len(attributes))",
                "_COUNT.pack(0)",
            ),
            Edit(
                "durablelog.checkpoint_codec:_encode_segment",
                "for page in attributes.pages()",
                "for page in ()",
            ),
        ),
        Hunt(workload="attributes", settings={**BUSY}),
    ),
)
