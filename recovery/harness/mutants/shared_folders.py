"""Mutants of a place that two stores share (DESIGN 4.3): a store deletes only what provably is its
own.
"""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY
from recovery.harness.runs.shared_folders import SharedFolders

_SWEEPER: Final = "storagewriter.orphan_sweeper:OrphanSweeper"
_SWEPT: Final = Hunt(
    workload="default",
    settings={**BUSY, "orphan_sweep_interval_s": 0.01},
    process_runs=3,
    scenario=SharedFolders,
    cycles=(
        {
            "ending": "close",
            "operations": 20,
            "dies_at": None,
            "closes_at": None,
            "under_load": False,
            "checked": False,
        },
    ),
)

SHARED_FOLDERS: Final = (
    Mutant(
        "stranger-swept",
        "4.3 A store deletes only what provably is its own: every Tier 2 has the markers "
        "of the stores that use it.",
        "The sweeper takes for an orphan whatever its log does not name, whoever made "
        "it, and asks for no marker.",
        (
            Edit(
                "storagewriter.orphan_rules:classify_object",
                "is_known = name in metadata.objects or name in metadata.garbage",
                'is_known, tag = name in metadata.objects or name in metadata.garbage, b""',
            ),
            Edit(
                f"{_SWEEPER}.mark_for_deletion",
                "is_of_store(stored.name, self._tag) and judge(stored)",
                "judge(stored)",
            ),
            Edit(f"{_SWEEPER}.check_alone", "if self.stopped_by is not None:", "if False:"),
            Edit(
                "storagewriter.garbage_collector:GarbageCollector._provably_ours",
                "if await self._shared_with() is None:",
                "if True:",
            ),
        ),
        _SWEPT,
    ),
)
