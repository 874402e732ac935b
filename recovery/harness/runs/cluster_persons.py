"""Persons: they edit the assignment map of a simulated cluster, from a process of their own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from durablelog.bookkeeper.metadata_node import NodeUnavailableError
from recovery.harness.cluster_record import ClusterRecord
from recovery.harness.simulation.bookkeeper_nodes import SimulatedNodes
from recovery.harness.simulation.cluster_world import ClusterWorld
from recovery.harness.simulation.world import SimulatedProcess
from segmentstore.cluster import map_edits
from segmentstore.cluster.administration import edit_map
from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.contracts.errors import InvalidArgumentError, TierUnavailableError

Change = Callable[[AssignmentMap], AssignmentMap]


class Persons:
    """Of one run. `root` is the node of the store."""

    def __init__(
        self, world: ClusterWorld, record: ClusterRecord, root: str, rng: random.Random
    ) -> None:
        self._world = world
        self._record = record
        self._random = rng
        self.process: SimulatedProcess = world.process("persons")
        self.nodes = ClusterNodes(SimulatedNodes(world.bookkeeper, self.process), root)
        self._edits: list[asyncio.Task[None]] = []

    def edit(self, hosts: Sequence[str]) -> None:
        """Begin one edit of those there are."""
        self._edits.append(self.process.start(self.change(self._draw(hosts))))

    async def undo_all(self) -> None:
        """Take back everything that persons asked for, and what they still ask for."""
        if self._edits:
            await asyncio.wait(self._edits)
        await self.change(_unasked)

    async def change(self, change: Change) -> None:
        """Make one edit, as often as it takes; one that is refused is none."""
        while True:
            try:
                await edit_map(self.nodes, change)
            except NodeUnavailableError:
                continue  # it may have happened, and is harmless again
            except (InvalidArgumentError, TierUnavailableError):
                return  # another edit is in its way, or the map changes too fast
            self._record.counts["edits"] += 1
            return

    def _draw(self, hosts: Sequence[str]) -> Change:
        rng, count = self._random, self._world.containers
        host, container = rng.choice(hosts), rng.randrange(count)
        changes: Sequence[Change] = (
            lambda map_: map_edits.pin(map_, count, container, host),
            lambda map_: map_edits.pin(map_, count, container, host),
            lambda map_: map_edits.unpin(map_, count, container),
            lambda map_: map_edits.drain(map_, host),
            lambda map_: map_edits.undrain(map_, host),
            lambda map_: map_edits.forbid(map_, count, container, host),
            lambda map_: map_edits.allow(map_, count, container, host),
        )
        return rng.choice(changes)


def _unasked(before: AssignmentMap) -> AssignmentMap:
    if not before.pins and not before.draining and not before.forbidden:
        return before
    return replace(
        before, epoch=before.epoch + 1, pins={}, draining=frozenset(), forbidden=frozenset()
    )
