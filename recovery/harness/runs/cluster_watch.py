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

from durablelog.bookkeeper.log_metadata import decode_record
from recovery.harness.cluster_record import ClusterRecord, Disorder, MapWrite
from recovery.harness.simulation.cluster_world import ClusterWorld, HostProcess
from recovery.harness.simulation.virtual_loop import MICROSECONDS
from recovery.harness.simulation.world import ProcessDiedError
from segmentstore.cluster.assignment_map import decode_assignment_map
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.cluster.host_record import HostRecord, ReportedState, decode_host_record
from segmentstore.container import HostState
from segmentstore.contracts.errors import SegmentStoreError

INTERVAL_S: Final = 0.5
REPLACED_S: Final = 60.0
"""Within so long a process has noticed that another one has its name."""
STALE_S: Final = 3.0
"""So long at most a host serves what another one has had, once it has acted on a map that gives it
back. A lease takes up to five times as long.
"""
_ASKED_FOR: Final = (SegmentStoreError, OSError, ProcessDiedError)
"""What may stop a container; anything else is a broken assumption inside of it."""


class ClusterWatch:
    """Of one run; a TreeObserver of the nodes."""

    def __init__(self, world: ClusterWorld, record: ClusterRecord, nodes: ClusterNodes) -> None:
        self._world = world
        self._record = record
        self._map_path = nodes.map_path
        self._hosts_path = f"{nodes.hosts_path}/"
        self._owners: dict[int, tuple[HostProcess, int]] = {}
        """By container: which served it last, and in which epoch of its log."""
        self._unserved_since_us = dict.fromkeys(range(world.containers), world.time.now_us)
        self._begun = False
        self._reported: set[int] = set()
        self._records: dict[str, HostRecord] = {}
        """As seen last, by the path of the node."""
        self._containers_path = f"{nodes.root}/containers/"
        self._claims: dict[int, tuple[int, int]] = {}
        """By container: the epoch of its log's record, and since when."""
        self._acted: dict[HostProcess, list[tuple[int, int]]] = {}
        """Epochs of maps that a host has acted on, and when that was seen."""
        self._stale_us: dict[tuple[HostProcess, int], int] = {}
        self._replaced_us: dict[HostProcess, int] = {}
        """Since when one that was replaced has been able to see it."""
        world.bookkeeper.tree.observe(self)

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """See what there is, again and again."""
        while goes_on():
            self.see()
            await asyncio.sleep(INTERVAL_S)

    def see(self) -> None:
        """What is served now."""
        now_us = self._world.time.now_us
        owners = self._owners_now()
        for container in range(self._world.containers):
            owner = owners.get(container)
            if owner is None:
                self._unserved_since_us.setdefault(container, now_us)
                continue
            since_us = self._unserved_since_us.pop(container, None)
            if since_us is not None and container in self._owners:
                unserved_s = (now_us - since_us) / MICROSECONDS
                self._record.longest_unserved_s = max(self._record.longest_unserved_s, unserved_s)
            before = self._owners.get(container)
            if before is not None and before[1] != owner[1]:
                released = _has_released(*before, container)
                self._record.counts["moves" if released else "take-overs"] += 1
            self._owners[container] = owner
        self._see_failures()
        self._see_replaced()
        self._see_stale()

    def touched(self, path: str) -> None:
        """As TreeObserver."""
        if path.startswith(self._hosts_path):
            self._see_record(path)
        if path.startswith(self._containers_path):
            self._see_claim(path)
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

    def _owners_now(self) -> dict[int, tuple[HostProcess, int]]:
        """By container the host that serves it, as far as a client would find it serving; the
        latest one.
        """
        found: dict[int, tuple[HostProcess, int]] = {}
        for host in self._world.all_processes:
            if not host.works:
                continue
            for number in host.served:
                running = host.running(number)
                there = found.get(number)
                if running is not None and (there is None or there[1] < running.epoch):
                    found[number] = host, running.epoch
        return found

    def _see_failures(self) -> None:
        for host in self._world.all_processes:
            for number, status in host.statuses().items():
                cause = status.cause
                if cause is None or isinstance(cause, _ASKED_FOR) or id(cause) in self._reported:
                    continue
                self._reported.add(id(cause))
                detail = f"container {number} of {host.process.name} stopped"
                self._disorder("errors", f"{detail}: {type(cause).__name__}: {cause}")

    def _see_replaced(self) -> None:
        """One whose name another process has starts nothing, once it can know."""
        now_us = self._world.time.now_us
        for host in self._world.replaced:
            nodes = self._world.nodes.get(host.process.name)
            follower = self._world.hosts[host.name]
            zookeeper = self._world.bookkeeper.zookeeper
            if (
                not host.works
                or not follower.works
                or follower.view is None
                or nodes is None
                or nodes.is_cut_off
                or zookeeper.stopped_until_us > now_us
                or self._world.rates
            ):
                self._replaced_us[host] = now_us
                continue
            since_us = self._replaced_us.setdefault(host, now_us)
            kept = [
                number
                for number, status in host.statuses().items()
                if status.state in {HostState.STARTING, HostState.RUNNING}
            ]
            if kept and now_us - since_us > REPLACED_S * MICROSECONDS:
                detail = f"{host.process.name} has been replaced, and has containers {kept}"
                self._disorder("replaced", detail)

    def _see_claim(self, path: str) -> None:
        content = self._world.bookkeeper.tree.content(path)
        if content is None:
            return
        number = int(path.removeprefix(self._containers_path))
        epoch = decode_record(content.data, path).epoch
        if self._claims.get(number, (0, 0))[0] != epoch:
            self._claims[number] = epoch, self._world.time.now_us

    def _see_stale(self) -> None:
        """A host that is given a container back does not serve what it had before another one."""
        now_us = self._world.time.now_us
        found: dict[tuple[HostProcess, int], int] = {}
        for host in self._world.all_processes:
            acted = self._acted.setdefault(host, [])
            if (epoch := host.map_epoch) and (not acted or acted[-1][0] != epoch):
                acted.append((epoch, now_us))
            if self._can_ask(host):
                for number in host.served:
                    if self._is_stale(host, number):
                        found[host, number] = self._stale_us.get((host, number), now_us)
        for (host, number), since_us in found.items():
            if now_us - since_us > STALE_S * MICROSECONDS:
                self._disorder("stale", f"{host.process.name} serves {number}, and was fenced")
        self._stale_us = found

    def _is_stale(self, host: HostProcess, number: int) -> bool:
        running = host.running(number)
        claim_epoch, claimed_us = self._claims.get(number, (0, 0))
        if running is None or running.epoch >= claim_epoch:
            return False
        if host.is_confirming(number):
            return False  # reads wait
        # Since when the maps name the host, without a break; and when it acted on one of these.
        first = 0
        for written in reversed(self._record.maps):
            if written.map.owners.get(number) != host.name:
                break
            first = written.map.epoch
        given_us = next((at_us for epoch, at_us in self._acted[host] if epoch >= first > 0), 0)
        return claimed_us < given_us - INTERVAL_S * MICROSECONDS

    def _can_ask(self, host: HostProcess) -> bool:
        """Whether nothing keeps it from knowing who has a log."""
        nodes = self._world.nodes.get(host.process.name)
        return (
            host.works
            and nodes is not None
            and not nodes.is_cut_off
            and self._world.bookkeeper.zookeeper.stopped_until_us <= self._world.time.now_us
            and self._world.rates.keys() <= {"node.watch.late"}
        )

    def _see_record(self, path: str) -> None:
        """What a host reports was true when it reported it: a start has ended, a stop, too."""
        content = self._world.bookkeeper.tree.content(path)
        record = None if content is None else decode_host_record(content.data)
        before = self._records.pop(path, None)
        if record is None:
            return
        self._records[path] = record
        hosts = [host for host in self._world.all_processes if host.name == record.host_id]
        if len(hosts) != 1 or hosts[0].clock.is_frozen:
            return  # it is not known which one of them it is, or what was when
        for number, status in hosts[0].statuses().items():
            report = record.containers.get(number)
            if (
                report is not None
                and report.state is ReportedState.RUNNING
                and status.state is HostState.STARTING
                and report.since_ms == status.since_ms
            ):
                self._disorder("reports", f"{path} says that {number} runs, which starts")
            was = None if before is None else before.containers.get(number)
            if (
                report is None
                and was is not None
                and was.state is ReportedState.RUNNING
                and status.state in {HostState.STOPPING, HostState.FAILED}
            ):
                detail = f"{path} does not have {number} any more, which is {status.state.value}"
                self._disorder("reports", detail)

    def _disorder(self, kind: str, detail: str) -> None:
        self._record.disorders.append(Disorder(kind, detail))


def _has_released(host: HostProcess, epoch: int, container: int) -> bool:
    if not host.works:
        # One that closed in order has released everything before it ended.
        return host.closing is not None and host.closing.done()
    running = host.running(container)
    if running is not None and running.epoch != epoch:
        return True  # it has had it back since, behind others perhaps
    status = host.statuses().get(container)
    return status is not None and status.state in {HostState.STOPPED, HostState.STARTING}
