"""Shared folders: beside the store process runs another one that keeps its objects in the same
place, by mistake.

The other store writes and flushes once the first one is made, and closes. Then it sleeps while
process runs of the first store continue, of later and later epochs. To a sweep that only checks
containers and epochs every object of the other one is an orphan. Rules of this file:

- whatever the first store does, no object of the other one is deleted, but by the other one itself;
- in the end the other store reads back all that it wrote.
"""

from __future__ import annotations

from typing import Final

from recovery.harness.history import Violation
from recovery.harness.runs.plan import Cycle
from recovery.harness.runs.scenario import Scenario
from recovery.harness.simulation.world import SimulatedProcess
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.service import SegmentStore
from tier2.object_names import is_of_store
from tier2.store_markers import stores_at

NAME: Final = "shared"
SEGMENT: Final = "neighbour"
APPENDS: Final = 12


class SharedFolders(Scenario):
    """A plan carried out with a neighbour.

    The neighbour meets no faults: it is what is checked, not what is tried.
    """

    _theirs: frozenset[str] = frozenset()

    def _cycle(self, cycle: Cycle) -> None:
        super()._cycle(cycle)
        # Not before: the creator of a store needs an empty folder, and objects in files lie in that
        # of the first one.
        if not self._theirs and self._is_known():
            self._live_next_door()
        elif self._theirs:
            self._check_objects()

    def _finish(self) -> None:
        super()._finish()
        if self._theirs:
            self._check_objects()
        self._live_next_door()

    def _is_known(self) -> bool:
        """Whether the first store has its marker: without one it would be refused once the other
        one is there.
        """
        process = self.world.process("look")
        rates, self.world.rates = self.world.rates, {}
        try:
            return self.world.run_task(process, self._has_marker(process))
        finally:
            self.world.kill(process)
            self.world.rates = rates

    async def _has_marker(self, process: SimulatedProcess) -> bool:
        storage = self.world.object_storage(process)
        try:
            return bool(await stores_at(storage))
        finally:
            await storage.close()

    def _live_next_door(self) -> None:
        """The neighbour opens, reads what it has, writes what it has not, flushes and closes.

        It has no archive: the watch knows the parts of one store.
        """
        world, rates, settings = self.world, self.world.rates, self.world.settings
        world.rates = {}
        world.settings = {
            **{
                name: value
                for name, value in self.plan.settings.items()
                if not name.startswith(("archive", "offload"))
            },
            "consolidation": False,
            "orphan_sweep_interval_s": 0.0,
        }
        process = world.process("neighbour")
        try:
            world.run_task(process, self._next_door())
        except SegmentStoreError as error:
            self._unforeseen.append(
                Violation(NAME, f"the other store: {type(error).__name__}: {error}")
            )
        finally:
            world.kill(process)
            world.rates, world.settings = rates, settings

    async def _next_door(self) -> None:
        process = self.world.processes[-1]
        store = await self.world.open_neighbour(process)
        if not self._theirs:
            await _write(store)
        elif await _read(store) != _data():
            self._unforeseen.append(
                Violation(NAME, "the other store has other bytes than it wrote")
            )
        await store.close()
        self._theirs = await self._listed(process)

    def _check_objects(self) -> None:
        process = self.world.process("look")
        rates, self.world.rates = self.world.rates, {}
        try:
            there = self.world.run_task(process, self._listed(process))
        finally:
            self.world.kill(process)
            self.world.rates = rates
        gone = sorted(self._theirs - there)
        if gone:
            self._unforeseen.append(
                Violation(NAME, f"{gone[0]} of the other store is gone, and {len(gone) - 1} more")
            )
            self._theirs = there

    async def _listed(self, process: SimulatedProcess) -> frozenset[str]:
        tag = self.world.neighbour_tag
        assert tag is not None
        storage = self.world.object_storage(process)
        found = [
            stored.name
            async for page in storage.list()
            for stored in page
            if is_of_store(stored.name, tag)
        ]
        await storage.close()
        return frozenset(found)


def _data() -> bytes:
    return b"".join(b"%04d of the other store, " % number for number in range(APPENDS))


async def _write(store: SegmentStore) -> None:
    await store.create_segment(SEGMENT)
    for number in range(APPENDS):
        await store.append(SEGMENT, b"%04d of the other store, " % number)
        await store.flush()


async def _read(store: SegmentStore) -> bytes:
    return b"".join([piece async for piece in store.reader(SEGMENT)])
