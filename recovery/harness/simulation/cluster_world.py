"""ClusterWorld: a world of hosts of one cluster, each a process with a folder and a wall clock of
its own.

Rules of this file:

- a host whose opening fails for a reason outside of it is opened again, as a supervisor does;
- a host that dies stays dead until it is started again, under the same name and in the same folder,
  or under the same name in another one;
- a client sees a host as serving what that host itself believes to serve. It may be stopped, or
  fenced.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Mapping
from typing import Any, Final, Protocol

from recovery.harness.simulation.clock import SimulatedClock
from recovery.harness.simulation.store_world import StoreWorld
from recovery.harness.simulation.world import SimulatedProcess
from segmentstore.container import ContainerRegistry, ContainerStatus
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    NotPrimaryError,
    StoreInUseError,
    TierUnavailableError,
)
from segmentstore.service import SegmentStore

AGAIN_S: Final = (0.5, 3.0)
"""From an opening that failed to the next one."""
_OUTSIDE: Final = (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    NotPrimaryError,
    StoreInUseError,
    TierUnavailableError,
)
"""What an opening may fail with when nothing is wrong with the host."""


class Owner(Protocol):
    """A container that a host believes to serve."""

    @property
    def epoch(self) -> int:
        """Of its log."""


class HostView(Protocol):
    """An open host as the harness sees it, from outside of its process."""

    def running(self, number: int) -> Owner | None:
        """A container that it believes to serve, if it is that."""

    def statuses(self) -> dict[int, ContainerStatus]:
        """Of its containers."""

    @property
    def served(self) -> list[int]:
        """Containers that it believes to serve."""

    @property
    def leads(self) -> bool:
        """Whether it believes to lead."""

    @property
    def map_epoch(self) -> int:
        """Of the map that it has seen last; 0 before."""

    def is_confirming(self, number: int) -> bool:
        """Whether reads of a container wait until it is known whose its log is."""

    async def close(self) -> None:
        """Leave the cluster, and release everything."""


class StoreView:
    """A `HostView` of a whole store."""

    def __init__(self, store: SegmentStore) -> None:
        self.store = store

    def running(self, number: int) -> Owner | None:
        """As `HostView`."""
        return self._registry.running(number)

    def statuses(self) -> dict[int, ContainerStatus]:
        """As `HostView`."""
        return self._registry.statuses()

    @property
    def served(self) -> list[int]:
        """As `HostView`."""
        return self.store.served

    @property
    def leads(self) -> bool:
        """As `HostView`."""
        stats = self.store._parts.cluster_stats  # noqa: SLF001
        return stats is not None and stats()["leads"]

    @property
    def map_epoch(self) -> int:
        """As `HostView`."""
        stats = self.store._parts.cluster_stats  # noqa: SLF001
        return 0 if stats is None else stats()["map_epoch"]

    def is_confirming(self, number: int) -> bool:
        """As `HostView`."""
        container = self._registry.running(number)
        return container is not None and container._confirming is not None  # noqa: SLF001

    async def close(self) -> None:
        """As `HostView`."""
        await self.store.close()

    @property
    def _registry(self) -> ContainerRegistry:
        return self.store._parts.registry  # noqa: SLF001 - the watch stands outside of the store


class HostProcess:
    """One process that is a host, or was."""

    def __init__(self, name: str, folder: str, process: SimulatedProcess) -> None:
        self.name = name
        self.folder = folder
        self.process = process
        self.clock = SimulatedClock(process.world.time)
        process.runtime = dataclasses.replace(process.runtime, clock=self.clock)
        self.view: HostView | None = None
        """Once it is open."""
        self.opening: asyncio.Task[None] | None = None
        self.closing: asyncio.Task[None] | None = None
        self.is_followed = False
        """It died, and a task sees to it that it is started again."""

    @property
    def store(self) -> SegmentStore | None:
        """The store of one that has a whole one, once it is open."""
        return self.view.store if isinstance(self.view, StoreView) else None

    @property
    def is_dead(self) -> bool:
        return self.process.dead

    @property
    def works(self) -> bool:
        """Whether it is alive, and not stopped."""
        return not self.process.dead and not self.process.paused

    def running(self, number: int) -> Owner | None:
        """A container that it believes to serve, if it is that; None once it is dead."""
        view = self._living
        return None if view is None else view.running(number)

    def statuses(self) -> dict[int, ContainerStatus]:
        """Of its containers; none once it is dead."""
        view = self._living
        return {} if view is None else view.statuses()

    def is_confirming(self, number: int) -> bool:
        """Whether reads of a container wait until it is known whose its log is."""
        view = self._living
        return view is not None and view.is_confirming(number)

    @property
    def served(self) -> list[int]:
        """Containers that it believes to serve; none once it is dead."""
        view = self._living
        return [] if view is None else view.served

    @property
    def map_epoch(self) -> int:
        """Of the map that it has seen last; 0 before, and once it is dead."""
        view = self._living
        return 0 if view is None else view.map_epoch

    @property
    def leads(self) -> bool:
        """Whether it believes to lead."""
        view = self._living
        return view is not None and view.leads

    @property
    def _living(self) -> HostView | None:
        return None if self.process.dead else self.view


class ClusterWorld(StoreWorld):
    """Hosts by name; `containers` of the store among them."""

    def __init__(
        self,
        seed: str,
        *,
        containers: int,
        settings: Mapping[str, Any],
        rates: Mapping[str, float] | None = None,
        keep_trace: bool = False,
    ) -> None:
        super().__init__(
            seed,
            settings={**settings, "containers": containers},
            rates=rates,
            tier1="bookkeeper",
            keep_trace=keep_trace,
        )
        self.containers = containers
        self.hosts: dict[str, HostProcess] = {}
        """Of each name the process that was started last."""
        self.replaced: list[HostProcess] = []
        """Those that another one has followed while they lived."""
        self.openings = 0
        self.unforeseen: list[BaseException] = []
        """Unforeseen errors of openings and closes."""

    def start_host(self, name: str, folder: str = "") -> HostProcess:
        """Begin a process that opens the store as a host. It is the host of this name from now
        on.
        """
        before = self.hosts.get(name)
        if before is not None and not before.is_dead:
            self.replaced.append(before)
        host = HostProcess(name, folder, self.process(name))
        self.hosts[name] = host
        host.opening = host.process.start(self._open(host))
        return host

    def close_host(self, host: HostProcess) -> None:
        """Begin to stop it in order; its process dies when that is over."""
        if host.closing is None and not host.is_dead:
            host.closing = host.process.start(self._close(host))

    @property
    def all_processes(self) -> list[HostProcess]:
        """Every living one, those too that were replaced."""
        return [each for each in (*self.hosts.values(), *self.replaced) if not each.is_dead]

    def serving(self, container: int) -> list[HostProcess]:
        """Which believe to serve it, stopped ones and fenced ones among them."""
        return [each for each in self.all_processes if each.running(container) is not None]

    def heal(self) -> None:
        """No fault any more: everything runs, and reaches everything."""
        self.rates = {}
        self.bucket.heal()
        self.bookkeeper.heal()
        for nodes in self.nodes.values():
            nodes.heal()
        for host in self.all_processes:
            host.process.dies_at = None
            host.process.dies_before = host.process.dies_after = ""
            host.clock.thaw()
            host.process.resume()

    async def open_view(self, host: HostProcess) -> HostView:
        """Open what this world's hosts have. Runs in the host's process."""
        return StoreView(await self.open_host(host.process, host.name, host.folder))

    async def _open(self, host: HostProcess) -> None:
        rng: random.Random = self.random(f"supervisor/{host.process.name}")
        while host.closing is None:
            try:
                host.view = await self.open_view(host)
            except _OUTSIDE:
                await asyncio.sleep(rng.uniform(*AGAIN_S))
            except Exception as error:  # noqa: BLE001 - it is what the run has shown
                if host.is_dead:
                    return  # it has ended in the middle of whatever it did
                self.unforeseen.append(error)
                await asyncio.sleep(rng.uniform(*AGAIN_S))
            else:
                self.openings += 1
                return

    async def _close(self, host: HostProcess) -> None:
        view = host.view
        if view is not None:
            try:
                await view.close()
            except _OUTSIDE:
                pass  # a tier is away: what it has is in the log
            except Exception as error:  # noqa: BLE001 - as above
                if not host.is_dead:  # as above
                    self.unforeseen.append(error)
        asyncio.get_running_loop().call_soon(self.kill, host.process)
