"""Mutants of ownership (DESIGN 4.2): opening fences, and a fenced owner acknowledges nothing."""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_WRITER: Final = "durablelog.file.group_writer:GroupWriter"
_STATE: Final = "durablelog.file.log_state:StateFile"

_TAKEOVERS: Final = ({"ending": "takeover", "locks_expire": True},)

OWNERS: Final = (
    Mutant(
        "ownership-not-looked-at",
        "4.2 Opening fences: after the new owner has opened, the old one can never "
        "acknowledge anything.",
        "A group is acknowledged when it is synced, whoever owns the log by then.",
        (Edit(f"{_WRITER}.finish", "self._check_ownership()", "pass"),),
        Hunt(workload="appends", cycles=_TAKEOVERS),
    ),
    Mutant(
        "cannot-tell-counts-as-ours",
        '4.2 "Cannot tell" counts as fenced.',
        "An owner whose state record is deleted takes itself for the owner still.",
        (
            Edit(
                f"{_STATE}.is_ours",
                "record.file.is_at(record.path)",
                "True",
            ),
        ),
        Hunt(workload="appends", cycles=_TAKEOVERS),
    ),
    Mutant(
        "epoch-not-raised",
        "4.2 Opening fences: every opening has an epoch of its own.",
        "A new owner goes on in the epoch of the one before.",
        (
            Edit(
                f"{_STATE}.claim", "epoch=there.state.epoch + 1", "epoch=max(1, there.state.epoch)"
            ),
        ),
        Hunt(
            settings={**BUSY},
            cycles=({"ending": "power"}, {"ending": "kill"}, {"ending": "takeover"}),
        ),
    ),
    Mutant(
        "state-written-over",
        "4.2 Opening fences: the record of the next version is made by one owner alone.",
        "A state record replaces whatever has its name, in the place of being refused.",
        (
            Edit(
                f"{_STATE}._link",
                "self._disk.link(staged, path)",
                "self._disk.rename(staged, path)",
            ),
        ),
        Hunt(settings={**BUSY}, cycles=_TAKEOVERS, seeds_max=120),
    ),
    Mutant(
        "versions-used-up-not-noticed",
        "4.2 Opening fences; 4.3 a stale owner can make nothing but garbage.",
        "An owner that wakes up makes a state record under a version that later owners "
        "used and removed, and is believed.",
        (
            Edit(
                f"{_STATE}._follow",
                "if max(_versions(self._directory, self._disk), default=0) > version:",
                "if False:",
            ),
            Edit(
                f"{_STATE}._follow",
                "if before.file is not None and not before.file.is_at(before.path):",
                "if False:",
            ),
        ),
        # Longer files: what a sleeping owner has on its way must fit the file that it has.
        Hunt(
            settings={**BUSY, "log_file_bytes": 30_000},
            cycles=_TAKEOVERS,
            seeds_max=120,
        ),
        bugs=("B1",),
    ),
    Mutant(
        "end-found-before-the-fence",
        "4.2 Opening fences: what the old owner acknowledged until then is part of the log.",
        "The end of the log is searched before the old owner is fenced, and not again after it.",
        (
            Edit(
                "durablelog.file.log_folder:LogFolder._open",
                "if has_grown(self.directory, self.disk, before, state, scan):",
                "if False:",
            ),
        ),
        Hunt(workload="appends", cycles=_TAKEOVERS),
        bugs=("B14",),
    ),
)
