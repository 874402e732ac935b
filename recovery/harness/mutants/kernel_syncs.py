"""Mutants of a log that the event loop writes and the kernel syncs (DESIGN 4.2)."""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_COMMIT: Final = "durablelog.file.group_commit:GroupCommit"

_CLOSED_AT_WORK: Final = (
    {"ending": "close", "dies_at": None, "closes_at": None, "under_load": True},
)

KERNEL_SYNCS: Final = (
    Mutant(
        "acknowledged-before-the-kernel-has-synced",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "What the loop has written is acknowledged in its next turn, while the kernel syncs it.",
        (
            Edit(
                f"{_COMMIT}._begin_small",
                "if not syncs.begin(group.file, partial(self._synced, group)):",
                "self._loop.call_soon(self._synced, group, None)\n"
                "if not syncs.begin(group.file, lambda _error: None):",
            ),
        ),
        Hunt(workload="appends", kernel_syncs=True),
    ),
    Mutant(
        "error-of-the-kernel-ignored",
        "4.2 After a failed write or sync, the file is finished; the first failed write "
        "fails it and all later ones.",
        "A sync of the kernel that fails counts as one.",
        (Edit(f"{_COMMIT}._synced", "raise error", "pass"),),
        Hunt(workload="appends", kernel_syncs=True, rates={"disk.sync.eio": 0.02}),
    ),
    Mutant(
        "refused-by-the-kernel-and-not-synced",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "What the kernel refuses to sync is acknowledged as if it had.",
        (Edit(f"{_COMMIT}._commit", "writer.commit(group)", "writer.finish(group)"),),
        Hunt(workload="appends", kernel_syncs=True),
    ),
    Mutant(
        "next-group-before-the-one-that-is-synced-counts",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "The next group is written before the synced one counts, and so over it.",
        (
            Edit(
                f"{_COMMIT}._synced",
                "written = self._folder.writer.finish(group)\nself._busy = False",
                "self._busy = False\nif self._queue:\n    self.start()\n"
                "written = self._folder.writer.finish(group)",
            ),
        ),
        Hunt(workload="appends", kernel_syncs=True),
    ),
    Mutant(
        "file-closed-under-the-kernel",
        "4.5 Whatever the embedding program does, the store closes.",
        "A log is closed while the kernel still syncs it.",
        (Edit(f"{_COMMIT}.settle", "if self._syncing is not None:", "if False:"),),
        Hunt(settings={**BUSY}, kernel_syncs=True, cycles=_CLOSED_AT_WORK),
    ),
    Mutant(
        "queue-forgotten-behind-the-kernel",
        "4.5 Every queue has a bound; closing always works under full throttle.",
        "What came while the kernel was syncing waits for the next append, or for ever.",
        (
            Edit(
                f"{_COMMIT}._synced",
                "if self._queue and not self._busy and not self._stopping:",
                "if False:",
            ),
        ),
        Hunt(workload="appends", kernel_syncs=True),
    ),
)
