"""Mutants of how garbage ages (DESIGN 4.3, 4.5): by a wall clock that may jump, or by another
machine's time.
"""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_DUE: Final = "storagewriter.garbage_collector:GarbageCollector._due"
_BY_AGE: Final = "if not clock.remaining_ms(name, each, now_s)"
_WALL_MS: Final = "self.health._clock.time_ms()"
_BUSY: Final = {**BUSY, "deletion_lag_s": 60.0}

DELETION: Final = (
    Mutant(
        "deleted-by-the-wall-clock",
        "4.5 The wall clock decides nothing that cannot be undone: a jump does not delete early.",
        "Garbage is due once the wall clock is a lag behind the operation that released it.",
        (Edit(_DUE, _BY_AGE, f"if each.unreferenced_ms <= {_WALL_MS} - self._lag_s * 1000"),),
        Hunt(
            workload="tier2",
            settings=_BUSY,
            cycles=({"ending": "kill", "far_clock": "clock.years-forward"},),
        ),
    ),
    Mutant(
        "kept-while-the-clock-is-behind",
        "4.5 The wall clock decides nothing that cannot be undone: a jump does not keep for ever.",
        "Garbage that the log released at a time that the wall clock has not come to "
        "again is not due.",
        (Edit(_DUE, _BY_AGE, f"{_BY_AGE} and each.unreferenced_ms <= {_WALL_MS}"),),
        Hunt(
            workload="tier2",
            settings=_BUSY,
            cycles=({"ending": "kill", "far_clock": "clock.ahead-for-a-while"},),
        ),
    ),
    Mutant(
        "time-of-another-boot-counted",
        "4.5 Ages for deletion are counted: what passed between two owners counts only "
        "if it is known.",
        "The time since a machine was started is compared with that of another start.",
        (
            Edit(
                "storagewriter.deletion_clock:clock_at",
                "if boot.boot_id == reading.boot_id else 0",
                "if boot.boot_id else 0",
            ),
        ),
        Hunt(workload="tier2", settings=_BUSY),
    ),
)
