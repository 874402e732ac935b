"""ClusterHost: this process as a host of its store's cluster. It registers, and starts and stops
containers as the assignment map says (loop).

Rules of this file:

- the map decides what is served here; nothing else starts or stops a container of this store;
- a record says what is true already. A container is running in it when it serves, and is missing
  in it when all of it is released: on that the next owner starts;
- no ownership hangs on the record or the session. A host that was cut off goes on until the log of
  a container is fenced by its next owner; then that container fails here, and is reported;
- a change of the map or of a record is reported by a watch. Our own record is written beside the
  steps (host_reporter.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Final, Protocol

from durablelog.bookkeeper.metadata_node import NodeRefusedError, NodeUnavailableError
from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.cluster_nodes import ClusterNodes, HostNode
from segmentstore.cluster.cluster_view import ClusterView
from segmentstore.cluster.follow_plan import Steps, steps
from segmentstore.cluster.host_record import HostLoad, HostRecord
from segmentstore.cluster.host_reporter import AGAIN_MAX_S, AGAIN_MIN_S, HostReporter
from segmentstore.cluster.host_reports import HostIdentity, record_of
from segmentstore.cluster.move_times import MoveTimes
from segmentstore.container import PRESENT, ContainerStatus, HostState
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import (
    ContainerNotServedError,
    SegmentStoreError,
    describe,
)
from segmentstore.contracts.owned_tasks import gather_outcomes, own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import outlast

_log = logging.getLogger(__name__)

CHECK_S: Final = 10.0
"""What is due by time alone is done after so long: the start of one that has failed."""
LEAVE_S_MAX: Final = 20.0
"""How long a host that leaves waits until others have its containers. Those that end a process wait
for 30 s: Kubernetes, and ourselves behind the end of a program's loop.
"""
_END_S: Final = 2.0


class HostedContainers(Protocol):
    """The containers of this process: `ContainerRegistry`."""

    on_change: Callable[[], object]
    """Called behind each change of a status."""

    def statuses(self) -> dict[int, ContainerStatus]:
        """Of each container that was asked for."""

    async def start(self, number: int) -> None:
        """Return when it serves."""

    async def hand_over(self, number: int, is_wanted: Callable[[], bool]) -> None:
        """Prepare the stop while it serves; then, if it is wanted still, as `stop`."""

    async def stop(self, number: int) -> None:
        """Return when all of it is released."""

    def confirm(self, number: int) -> None:
        """Have one that serves checked for another owner of its log; reads wait for that."""


class ClusterHost:
    """One process of the cluster; begun by `join`, ended by `leave`, both once."""

    def __init__(
        self,
        nodes: ClusterNodes,
        containers: HostedContainers,
        me: HostIdentity,
        load: Callable[[], HostLoad],
        runtime: Runtime,
        failed_again_s: float | None = None,
    ) -> None:
        """A container that failed here is started again after `failed_again_s`, at a check; None:
        when the map says so.
        """
        self._failed_again_s = failed_again_s
        self._nodes = nodes
        self._containers = containers
        self._me = me
        self._load = load
        self._runtime = runtime
        tag = f"{runtime.random.getrandbits(64):016x}"
        self._node = HostNode(me.host_id, runtime.clock.time_ms(), tag)
        self._changed = asyncio.Event()
        self._view = ClusterView(nodes, self._changed.set)
        self._draining = False
        self._drained = asyncio.Event()
        """While it drains: no more can be done about that now."""
        self._leaving = False
        self._waited_since_s: dict[int, float] = {}
        self._reporter = HostReporter(
            nodes, self._node, self._current_record, self._changed.set, runtime.random
        )
        self._map = AssignmentMap()
        self._nodes_seen: dict[str, HostNode] = {}
        self._trouble: str | None = None
        self._is_replaced = False
        self.moves = MoveTimes()
        self.starts = 0
        """Containers that have begun to serve here."""
        self.start_failures = 0
        self.stops = 0
        self._handing_over: set[int] = set()
        self._acted_epoch = 0
        """Of the last map that we did what it says."""
        self._working: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._reporting: asyncio.Task[None] | None = None

    @property
    def host_id(self) -> str:
        """The name of this host."""
        return self._me.host_id

    @property
    def assigned(self) -> AssignmentMap:
        """The map as seen last."""
        return self._map

    @property
    def nodes_seen(self) -> Mapping[str, HostNode]:
        """The hosts that were registered at the last change, by id."""
        return self._nodes_seen

    def health(self) -> str | None:
        """What keeps this host from following the map, a sentence for people."""
        if self._is_replaced:
            return (
                f"another process has joined as host {self.host_id} since: nothing is served "
                "here; give one of them another host_id"
            )
        return self._trouble or self._reporter.trouble

    def waits_for(self) -> list[str]:
        """What keeps this host from serving all that is assigned to it, a sentence each.

        By the map as seen last: a host that ZooKeeper does not answer is ready while it serves.
        """
        if self._is_replaced:
            return [f"another process has joined as host {self.host_id} since"]
        if self._draining:
            return [f"host {self.host_id} leaves the cluster"]
        arrival = self._map.arrivals.get(self.host_id)
        if arrival is None or arrival.started_ms != self._node.started_ms:
            return [f"no leader has assigned containers since host {self.host_id} joined"]
        statuses = self._containers.statuses()
        return [
            f"container {number} is assigned to host {self.host_id} and does not serve"
            for number in self.moves.missing(_running(statuses))
        ]

    async def join(self) -> None:
        """Register, and follow the map from now on.

        Raises NodeUnavailableError, NodeRefusedError: then nothing is left.
        """
        try:
            await self._reporter.report()
        except BaseException:
            await self._withdraw()
            raise
        self._containers.on_change = self._status_changed
        self._reporting = own_task(
            self._reporter.run(), name="report-host", on_failure=self._failed
        )
        self._following = own_task(self._follow(), name="follow-map", on_failure=self._failed)

    def _status_changed(self) -> None:
        self._reporter.changed()
        self._changed.set()

    async def drain(self) -> None:
        """Ask for others to take the containers over, and take none any more; stay registered.

        Returns when no container is left here, no other host may take one, or ZooKeeper does not
        answer. A host that comes later takes what is left. Cancelled, the host drains on.
        """
        self._draining = True
        if self._following is not None and not self._following.done():
            self._drained.clear()
            self._status_changed()
            await self._drained.wait()

    async def leave(self) -> None:
        """Ask for others to take the containers over, wait for that, and be a host no more.

        Waits while another host may take them, LEAVE_S_MAX at most. Containers that are left are
        stopped. Idempotent.
        """
        if self._following is None:
            return
        self._leaving = True
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S_MAX):
                await self.drain()
        await self._end()

    async def _end(self) -> None:
        for task in (self._following, self._reporting):
            assert task is not None
            task.cancel()
            await outlast(task)
        self._following = self._reporting = None
        self._view.close()
        self._containers.on_change = _nothing
        # What no host took in time: others wait for the record, and would fence it while it drains.
        # That cancels what starts. One that does not stop in order says so when the store closes.
        left = [n for n, each in self._containers.statuses().items() if each.state in PRESENT]
        await gather_outcomes(*map(self._containers.stop, left), name="stop container")
        for task in tuple(self._working):
            await outlast(task)
        await self._withdraw()

    async def _withdraw(self) -> None:
        # What does not succeed soon ends with the session.
        with suppress(NodeUnavailableError, NodeRefusedError, TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._nodes.withdraw(self._node)

    # --- following --------------------------------------------------------------------------------

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._runtime.random, min_s=AGAIN_MIN_S, max_s=AGAIN_MAX_S)
        while True:
            self._changed.clear()
            again_s = loop.time() + CHECK_S
            try:
                done = await self._step()
                self._trouble = None
                backoff.reset()
                if self._draining and self._reporter.trouble is not None:
                    # No host could be asked to take over: others do when this one has closed.
                    self._drained.set()
                if self._drained.is_set() and self._leaving:
                    return
                if done.again_s is not None:
                    again_s = min(done.again_s, again_s)
            except (NodeUnavailableError, NodeRefusedError, SegmentStoreError) as error:
                self._trouble = f"host {self.host_id} does not follow the map: {error}"
                if self._draining:
                    self._drained.set()
                    if self._leaving:
                        return
                again_s = loop.time() + backoff.next_s()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(again_s):
                    await self._changed.wait()

    def _failed(self, error: BaseException) -> None:
        """A broken assumption of ours, or our own cancellation."""
        if not isinstance(error, asyncio.CancelledError):
            self._trouble = f"host {self.host_id} follows the map no more: {describe(error)}"
            _log.error("%s", self._trouble, exc_info=error)
        self._drained.set()

    async def _step(self) -> Steps:
        # What is not read is not watched any more. As long as the records matter they stay watched,
        # for a new watch is a change.
        records = self._draining or self._lacks(self._map)
        seen = await self._view.read(records=records)
        if seen.stored is not None:
            self._map = seen.stored.map
        self._nodes_seen = seen.nodes
        self._is_replaced = seen.nodes.get(self.host_id, self._node) > self._node
        assigned = AssignmentMap() if self._is_replaced else self._map
        self.moves.follow(asyncio.get_running_loop().time(), self.host_id, assigned)
        self._confirm_returned()
        if not records and self._lacks(assigned):
            # What may be started depends on what others still have.
            seen = await self._view.read(records=True)
        todo = steps(
            asyncio.get_running_loop().time(),
            self.host_id,
            assigned,
            seen.records,
            self._statuses(assigned),
            self._waited_since_s,
        )
        for number in todo.stops:
            if number not in self._handing_over:
                self._handing_over.add(number)
                self._begin(self._hand_over(number), f"stop-container-{number}")
        for number in todo.starts:
            self._begin(self._start(number), f"start-container-{number}")
        self._acted_epoch = self._map.epoch
        if self._draining and self._has_left(seen.records):
            self._drained.set()
        return todo

    def _statuses(self, assigned: AssignmentMap) -> dict[int, ContainerStatus]:
        """Of the containers here, but for failed ones that are to be started again."""
        found = self._containers.statuses()
        if self._failed_again_s is not None:
            failed_ms = self._runtime.clock.time_ms() - int(self._failed_again_s * 1000)
            for number, status in list(found.items()):
                is_ours = assigned.owners.get(number) == self.host_id
                if is_ours and status.state is HostState.FAILED and status.since_ms <= failed_ms:
                    del found[number]
        return found

    def _confirm_returned(self) -> None:
        """Have containers checked that another host may have had, and that we serve all the same.

        A map that we did not act on may have given them away, and a later one back.
        """
        has_missed = self._map.epoch > self._acted_epoch + 1
        for number, status in self._containers.statuses().items():
            if (
                status.state is HostState.RUNNING
                and self._is_ours(number)
                and (has_missed or number in self._handing_over)
            ):
                self._containers.confirm(number)

    def _lacks(self, assigned: AssignmentMap) -> bool:
        """Whether the map gives this host a container that it does not have."""
        statuses = self._containers.statuses()
        return any(
            owner == self.host_id
            and ((status := statuses.get(number)) is None or status.state not in PRESENT)
            for number, owner in assigned.owners.items()
        )

    def _has_left(self, hosts: Mapping[str, HostRecord]) -> bool:
        """Nothing is here any more, or there is no host that could take it."""
        present = any(each.state in PRESENT for each in self._containers.statuses().values())
        return not present or all(
            host.host_id == self.host_id or host.draining for host in hosts.values()
        )

    def _current_record(self) -> HostRecord:
        return record_of(
            self._me,
            self._node.started_ms,
            self._containers.statuses(),
            self._load(),
            draining=self._draining,
        )

    # --- starts and stops -------------------------------------------------------------------------

    def _begin(self, work: Coroutine[object, object, None], name: str) -> None:
        task = own_task(work, name=name)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _start(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            await self._containers.start(number)
        except ContainerNotServedError:
            pass  # it was taken from this host meanwhile
        except Exception as error:  # noqa: BLE001 - reported by the registry's status
            self.start_failures += 1
            _log.warning("container %d does not start: %s", number, describe(error))
        else:
            self.starts += 1
            self.moves.started(number, begun_s, loop.time())
            _log.info("container %d is served by host %s", number, self.host_id)
        self._changed.set()

    async def _hand_over(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        begun_s: float | None = None

        def is_wanted() -> bool:
            nonlocal begun_s
            if not self._is_ours(number):
                begun_s = loop.time()
            return begun_s is not None

        try:
            await self._containers.hand_over(number, is_wanted)
        except Exception as error:  # noqa: BLE001 - its status has it, and the next step goes on
            _log.warning("container %d does not stop in order: %s", number, describe(error))
        else:
            if begun_s is not None:
                self.stops += 1
                self.moves.stopped(number, begun_s, loop.time())
                _log.info("container %d is not served by host %s any more", number, self.host_id)
            else:
                self.moves.kept(number)
        self._handing_over.discard(number)
        self._changed.set()

    def _is_ours(self, number: int) -> bool:
        """By the map as seen last."""
        return not self._is_replaced and self._map.owners.get(number) == self.host_id


def _running(statuses: Mapping[int, ContainerStatus]) -> list[int]:
    return [number for number, each in statuses.items() if each.state is HostState.RUNNING]


def _nothing() -> None:
    pass
