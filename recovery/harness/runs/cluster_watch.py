"""ClusterWatch: sees what hosts serve and how the map changes while a simulated cluster runs.

It stands outside: it changes nothing, and takes no time of any process. What it counts:

- a *take-over*: a container is served by another owner than before, and the one before had not
  released it. It died, hangs, was fenced or failed;
- a *move*: the same behind an owner that had released it;
- the time without owner of a container, in steps of its own interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from recovery.harness.cluster_record import ClusterRecord, Disorder, MapWrite
from recovery.harness.simulation.cluster_world import ClusterWorld, HostProcess
from recovery.harness.simulation.virtual_loop import MICROSECONDS
from recovery.harness.simulation.world import ProcessDiedError
from segmentstore.cluster.assignment_map import decode_assignment_map
from segmentstore.container import HostState
from segmentstore.contracts.errors import SegmentStoreError

INTERVAL_S: Final = 0.5
_ASKED_FOR: Final = (SegmentStoreError, OSError, ProcessDiedError)
"""What may stop a container; anything else is a broken assumption inside of it."""


class ClusterWatch:
    """Of one run; a TreeObserver of the nodes."""

    def __init__(self, world: ClusterWorld, record: ClusterRecord, map_path: str) -> None:
        self._world = world
        self._record = record
        self._map_path = map_path
        self._owners: dict[int, tuple[HostProcess, int]] = {}
        """By container: which served it last, and in which epoch of its log."""
        self._unserved_since_us = dict.fromkeys(range(world.containers), world.time.now_us)
        self._begun = False
        self._reported: set[int] = set()
        world.bookkeeper.tree.observe(self)

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """See what there is, again and again."""
        while goes_on():
            self.see()
            await asyncio.sleep(INTERVAL_S)

    def see(self) -> None:
        """What is served now."""
        now_us = self._world.time.now_us
        for container in range(self._world.containers):
            owner = self._owner(container)
            if owner is None:
                self._unserved_since_us.setdefault(container, now_us)
                continue
            since_us = self._unserved_since_us.pop(container, None)
            if since_us is not None and container in self._owners:
                unserved_s = (now_us - since_us) / MICROSECONDS
                self._record.longest_unserved_s = max(self._record.longest_unserved_s, unserved_s)
            before = self._owners.get(container)
            if before is not None and before[1] != owner[1]:
                released = _has_released(before[0], container)
                self._record.counts["moves" if released else "take-overs"] += 1
            self._owners[container] = owner
        self._see_failures()

    def touched(self, path: str) -> None:
        """As TreeObserver."""
        if path != self._map_path:
            return
        content = self._world.bookkeeper.tree.content(path)
        if content is None:
            self._record.disorders.append(Disorder("map", "the map was deleted"))
            return
        written = decode_assignment_map(content.data, path)
        self._record.counts["map writes"] += 1
        self._record.maps.append(
            MapWrite(content.version, written, content.data, self._world.time.now_us)
        )

    def service_changed(self, *, down: bool) -> None:
        """As TreeObserver."""

    def _owner(self, container: int) -> tuple[HostProcess, int] | None:
        """The host that serves it, as far as a client would find it serving; the latest one."""
        found = [
            (host, running.epoch)
            for host in self._world.all_processes
            if host.works and (running := host.running(container)) is not None
        ]
        return max(found, key=lambda each: each[1], default=None)

    def _see_failures(self) -> None:
        for host in self._world.all_processes:
            for number, status in host.statuses().items():
                cause = status.cause
                if cause is None or isinstance(cause, _ASKED_FOR) or id(cause) in self._reported:
                    continue
                self._reported.add(id(cause))
                detail = f"container {number} of {host.process.name} stopped"
                self._record.disorders.append(
                    Disorder("errors", f"{detail}: {type(cause).__name__}: {cause}")
                )


def _has_released(host: HostProcess, container: int) -> bool:
    if not host.works:
        # One that closed in order has released everything before it ended.
        return host.closing is not None and host.closing.done()
    status = host.statuses().get(container)
    return status is not None and status.state in {HostState.STOPPED, HostState.STARTING}
