"""Mutants of what the log does about a full disk (DESIGN 4.5): its owner must wait, and give up
what it can.
"""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_FULL: Final = tuple(
    cycle
    for at in range(30, 120, 15)
    for cycle in (
        {"operations": 60, "ending": "kill", "dies_at": None},
        {"operations": 120, "ending": "kill", "dies_at": None, "fills_at": at},
    )
)
"""Process runs that fill their log, each before one on a disk that becomes full."""

_INLINE: Final = {**BUSY, "inline_checkpoint_bytes_max": 64 * 1024}
"""By reference, a log waits for the catalog's room as well (decision 0058)."""

FULL_DISK: Final = (
    Mutant(
        "file-left-by-a-failed-preparation",
        "4.5 Whatever the embedding program does (fills the disk), acknowledged bytes "
        "stay, and the store goes on.",
        "A file that could not be prepared for want of room stays, and a shorter one finds its "
        "name taken.",
        (
            Edit("durablelog.file.group_writer:_throw_away", "disk.unlink(prepared.path)", "pass"),
            Edit("segmentstore.contracts.disk:create_own", "disk.unlink(path)", "raise"),
        ),
        Hunt(workload="appends", settings={**BUSY}, cycles=_FULL),
    ),
    Mutant(
        "no-reserve-for-truncation",
        "4.5 Whatever the embedding program does (fills the disk), the store closes or "
        "says what it needs.",
        "A truncation on a full disk has no room for its state record, and the log none "
        "for anything else.",
        (
            Edit(
                "durablelog.file.room:Reserve._shrink",
                "file.truncate(self._created)",
                "return False",
            ),
            Edit(
                "durablelog.file.room:Reserve.give_all",
                "remove_if_there(self._disk, self._path)",
                "pass",
            ),
        ),
        Hunt(workload="appends", settings=_INLINE, cycles=_FULL),
    ),
)
