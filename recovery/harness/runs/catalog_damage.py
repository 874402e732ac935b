"""Damage to the metadata catalogs on local disk while no process has the store open. They are
copies of what Tier 2 has: no call may fail for it.
"""

from __future__ import annotations

import re
from typing import Final

from recovery.harness.runs.plan import Plan
from recovery.harness.simulation.disk_nodes import Directory, copy_tree
from recovery.harness.simulation.store_world import LOCATION, StoreWorld

FOLDER: Final = f"{LOCATION}/catalog"
_CHECKPOINT: Final = re.compile(FOLDER + r"/\d+/[0-9a-f]{16}(\.files|/.+)")


class CatalogDamage:
    """Does before each process run what its plan says."""

    def __init__(self, world: StoreWorld, plan: Plan) -> None:
        self._world = world
        self._rng = world.random("catalogs")
        self._wanted = any(cycle.catalog for cycle in plan.cycles)
        self._before: Directory | None = None
        """The catalogs as they were before the process run."""

    def strike(self, point: str) -> None:
        """What a fault point says, if there is a catalog; for each process run, "" for nothing."""
        if not self._wanted:
            return
        folder = self._folder()
        before, self._before = self._before, copy_tree(folder)[0] if folder is not None else None
        if folder is None or not point:
            return
        if point == "catalog.lost":
            folder.settle({})
        elif point == "catalog.stale":
            if before is None:
                return
            folder.settle(copy_tree(before)[0].names)
        elif not self._flip_bit():
            return
        self._world.reach(point)

    def _folder(self) -> Directory | None:
        try:
            return self._world.image.get_directory(FOLDER)
        except FileNotFoundError:
            return None

    def _flip_bit(self) -> bool:
        """One of a finished checkpoint, or of its list."""
        image = self._world.image
        paths = [
            path for path in image.files() if _CHECKPOINT.fullmatch(path) and len(image.read(path))
        ]
        if not paths:
            return False
        path = self._rng.choice(paths)
        image.flip_bit(path, self._rng.randrange(len(image.read(path))), self._rng.randrange(8))
        return True
