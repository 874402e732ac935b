"""Mutants of outcomes (DESIGN 4.2): which answers callers get, and when."""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_PROCESSOR: Final = "durablelog.operation_processor:OperationProcessor"
_WRITER: Final = "durablelog.file.group_writer:GroupWriter"

OUTCOMES: Final = (
    Mutant(
        "acknowledged-when-sent",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "An append is acknowledged as soon as the frame has been handed to the log.",
        (
            Edit(
                f"{_PROCESSOR}._ship",
                "acknowledged = self._log.append(frame.payload)",
                "acknowledged = self._log.append(frame.payload)\n"
                "if all(operation.type_id == 1 for operation in frame.operations):\n"
                "    self._commits.resolve(frame)",
            ),
        ),
        Hunt(workload="appends", tier1="ledger"),
    ),
    Mutant(
        "unknown-told-as-refused",
        "4.2 An append whose outcome is unknown is reported as such, not as failed.",
        "When the log fails, what was on its way is reported as not done.",
        (
            Edit(
                f"{_PROCESSOR}.fail",
                "future.set_exception(AppendOutcomeUnknownError(self._container_id, error))",
                "future.set_exception(self._refusal())",
            ),
        ),
        Hunt(workload="appends", tier1="ledger", rates={"ledger.append.in-doubt": 0.02}),
        bugs=("B16",),
    ),
    Mutant(
        "failed-write-ignored",
        "4.2 After a failed write or sync, the file is finished; the first failed write "
        "fails it and all later ones.",
        "A write to the log that fails counts as done.",
        (
            Edit(
                f"{_WRITER}.put",
                "self._file.pwrite(buffers, start)",
                "try:\n    self._file.pwrite(buffers, start)\nexcept OSError:\n    pass",
            ),
        ),
        Hunt(workload="appends", rates={"disk.write.eio": 0.01}),
    ),
    Mutant(
        "failed-sync-tried-again",
        "4.2 After a failed write or sync, the file is finished: no second sync on it, ever.",
        "A sync of the log that fails is made again, and believed.",
        (
            Edit(
                f"{_WRITER}.commit",
                "group.file.sync()",
                "try:\n    group.file.sync()\nexcept OSError:\n    group.file.sync()",
            ),
        ),
        Hunt(workload="appends", rates={"disk.sync.eio": 0.02}),
    ),
    Mutant(
        "checkpoint-before-its-time",
        "4.2 Only a checkpoint is a truncation point: everything before it is in it.",
        "A checkpoint is taken while operations are on their way, which it does not hold.",
        (
            Edit(
                f"{_PROCESSOR}._fill_frames", "if packer.idle and not in_flight:", "if packer.idle:"
            ),
            Edit(
                "durablelog.metadata_updater:MetadataUpdater._accept_checkpoint",
                "assert recorded or self._sequence_number == committed, "
                "(self._sequence_number, committed)\nself._forget_pending()",
                "return",
            ),
        ),
        Hunt(settings={**BUSY}),
    ),
    Mutant(
        "written-twice",
        "4.1 In replay the offset recorded in an operation must equal the length reached so far.",
        "An append that begins a new frame is put into the log twice.",
        (
            Edit(
                "durablelog.frame_packer:FramePacker._append_alone",
                "self._add_record(operation, [encode_append_head(operation), data])",
                "self._builder.add([encode_append_head(operation), data], "
                "len(encode_append_head(operation)) + len(data))\n"
                "self._add_record(operation, [encode_append_head(operation), data])",
            ),
        ),
        Hunt(workload="appends", settings={"frame_bytes_max": 64}),
    ),
)
