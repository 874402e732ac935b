"""Mutants of how a container runs (DESIGN 4.5): what throttles, and what must go on under full throttle."""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_PROCESSOR: Final = "durablelog.operation_processor:OperationProcessor"
_FULL: Final = {
    **BUSY,
    "flush_bytes": 300,
    "flush_age_s": 0.05,
    "unflushed_target_bytes": 300,
    "unflushed_bytes_max": 2000,
}
"""The throttle is at its maximum most of the time."""

RUNNING: Final = (
    Mutant(
        "relief-throttled",
        "4.5 Throttling comes from un-flushed operations: the storage writer's own, which relieve it, are never throttled.",
        "Storage updates wait in the queue for a throttle that nothing else can ease.",
        (
            Edit(
                f"{_PROCESSOR}._fill_frames",
                "queue = self._own_queue\nif not queue:\n    queue = self._queue\n    if queue and self._held_back():\n        break",
                "queue = self._own_queue or self._queue\nif queue and self._held_back():\n    break",
            ),
        ),
        Hunt(workload="tier2", settings=_FULL),
    ),
)
