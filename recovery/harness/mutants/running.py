"""Mutants of how a container runs (DESIGN 4.5): what throttles, and what must go on under full
throttle.
"""

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

_CANCELLED: Final = (
    {
        "ending": "close",
        "dies_at": None,
        "closes_at": None,
        "cancelled_at": 60,
        "cancelled_again": 1,
    },
    {
        "ending": "close",
        "dies_at": None,
        "closes_at": None,
        "cancelled_at": 90,
        "cancelled_again": 4,
    },
)

RUNNING: Final = (
    Mutant(
        "relief-throttled",
        "4.5 Throttling comes from un-flushed operations: the storage writer's own, "
        "which relieve it, are never throttled.",
        "Storage updates wait in the queue for a throttle that nothing else can ease.",
        (
            Edit(
                f"{_PROCESSOR}._fill_frames",
                "queue = self._own_queue or self._requests()",
                "queue = self._own_queue or self._queue\nif queue and "
                "self._held_back():\n    break",
            ),
        ),
        Hunt(workload="tier2", settings=_FULL),
    ),
    Mutant(
        "paced-in-another-order",
        "4.5 Throttling delays appends, and of one segment in the order of their calls.",
        "At the pace of Tier 2 the youngest of the appends that wait goes first.",
        (
            Edit(
                "durablelog.fair_admission:FairAdmission.release",
                "self.deferred.popleft()",
                "self.deferred.pop()",
            ),
        ),
        Hunt(workload="tier2", settings=_FULL),
    ),
    Mutant(
        "writer-ends-unnoticed",
        "4.5 Whatever the embedding program does (cancels every task), answers stay "
        "true, and the store closes.",
        "A program that cancels all tasks of its loop ends the storage writer, and the "
        "store does not notice: a flush waits for ever.",
        (
            Edit(
                "storagewriter.storage_writer:StorageWriter.start",
                "self._task = own_task(self._run(), name=name, on_failure=self._ended)",
                "self._task = asyncio.get_running_loop().create_task(self._run(), name=name)",
            ),
            Edit(
                "segmentstore.cancellation_watch:CancellationWatch._run",
                "self._cancelled()",
                "pass",
            ),
        ),
        Hunt(workload="tier2", settings=BUSY, cycles=_CANCELLED),
    ),
    Mutant(
        "close-gives-up",
        "4.5 Whatever the embedding program does (cancels every task), the store closes.",
        "Cancelled in the middle, a close leaves the lock and all that it had not come to.",
        (
            Edit(
                "segmentstore.store_parts:StoreParts.begin_close",
                'own_task(self.undo.unwind(), name="close store")',
                'asyncio.get_running_loop().create_task(self.undo.unwind(), name="close store")',
            ),
        ),
        Hunt(workload="default", settings=BUSY, cycles=_CANCELLED),
    ),
)
