"""ZooKeeper's nodes as one process of a simulated world has them: linearizable, slow, and away at
times.

Rules of this file:

- a call happens at one moment between its beginning and its end, whatever becomes of its caller: of
  a process that dies, what it had sent arrives or not;
- a call that ends in NodeUnavailableError has happened, has not, or happens later, but before any
  later call of this client;
- what is refused for a version was refused by the service, at that moment;
- a watched change takes its time to this process, as an answer does, or seconds. None is missed
  with a broken connection: all watches are reported behind it;
- a process that is cut off from the service learns of nothing, and its calls end without an answer.
  Its session ends, unless the cut is a short one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from durablelog.bookkeeper.memory_sessions import HeldNodes, SessionChecks
from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeConflictError,
    NodeContent,
    NodeUnavailableError,
    NodeWatch,
)
from durablelog.bookkeeper.node_elections import ElectionCalls, NodeElections
from durablelog.bookkeeper.node_watches import NodeWatches
from recovery.harness.simulation.bookkeeper_bookies import BookKeeperServers
from recovery.harness.simulation.bookkeeper_gateway import AWAY_S
from recovery.harness.simulation.bookkeeper_network import LATE, LOST, NetworkClient, NetworkProcess
from recovery.harness.simulation.virtual_loop import MICROSECONDS

TIMEOUT_S: Final = 10.0
SLOW_WATCH_S: Final = (0.05, 20.0)
"""Of a watched change that is late."""


class SimulatedNodes(MetadataNodes):
    """One process's session, with the faults of the group `node.`."""

    def __init__(self, servers: BookKeeperServers, process: NetworkProcess) -> None:
        self._tree = servers.tree
        self._servers = servers
        self._process = process
        self._session: NetworkClient | None = None
        self._waiting: list[asyncio.Future[Any]] = []
        self._closed = False
        self._watches = NodeWatches(self._soon)
        self._held = HeldNodes(
            servers.tree,
            lambda: process.dead or process.paused or self.is_cut_off,
            self._watches.report_all,
        )
        self._cut_until_us = 0
        self._checks = SessionChecks(self._check_sessions)
        calls = ElectionCalls(
            enter=self._enter, children=self.children, remove=self.release, watch=self.watch
        )
        self._elections = NodeElections(calls, process.random)

    async def read(self, path: str) -> NodeContent | None:
        found = await self._call(path, lambda: self._tree.content(path))
        if self._process.world.strikes("node.read.failed"):
            raise NodeUnavailableError(path, "the connection was lost")
        assert found is None or isinstance(found, NodeContent)
        return found

    async def create(self, path: str, data: bytes, *, parents: bool = True) -> int:
        await self._change(
            "node.create", path, lambda: self._tree.make(path, data, parents=parents)
        )
        return 0

    async def write(self, path: str, data: bytes, version: int) -> int:
        await self._change("node.write", path, lambda: self._tree.change(path, data, version))
        return version + 1

    async def delete(self, path: str, version: int) -> None:
        # For people's tools alone: no log does so, and no fault point is kept for it.
        await self._call(path, lambda: self._tree.remove(path, version))

    async def children(self, path: str) -> Sequence[str]:
        names = await self._call(path, lambda: self._tree.names_under(path))
        assert isinstance(names, list)
        return names

    async def hold(self, path: str, data: bytes) -> None:
        # Nothing that must be right depends on it: no fault point is kept for it.
        await self._call(path, lambda: self._held.hold(path, data))

    async def release(self, path: str) -> None:
        await self._call(path, lambda: self._held.release(path))

    def watch(self, path: str, changed: Callable[[], object]) -> NodeWatch:
        watch = self._watches.add(path, changed)
        self._connection()
        self._tree.observe(self)
        self._checks.begin()
        self._watches.report(path)
        return watch

    async def lead(
        self, path: str, identity: str, ended: Callable[[], object] | None = None
    ) -> None:
        await self._elections.lead(path, identity, ended)

    def leads(self, path: str) -> bool:
        return self._elections.leads(path)

    async def resign(self, path: str) -> None:
        await self._elections.resign(path)

    def lose_session(self) -> None:
        """The service ends the session of this process now, as if it had received nothing from it
        for too long.

        The process learns of it with its next call, or check.
        """
        self._held.lose_session(self._now_s)

    def cut_off(self, seconds: float) -> None:
        """Nothing passes between this process and the service for so long."""
        until_us = self._process.world.time.now_us + round(seconds * MICROSECONDS)
        self._cut_until_us = max(self._cut_until_us, until_us)

    @property
    def is_cut_off(self) -> bool:
        """Whether nothing passes now."""
        return self._process.world.time.now_us < self._cut_until_us

    def heal(self) -> None:
        """Let everything pass."""
        self._cut_until_us = 0

    async def address(self) -> str:
        return "simulated"

    async def close(self) -> None:
        self._closed = True
        self._tree.observe_no_more(self)
        self._watches.close()
        self._checks.end()
        await self._elections.close()
        self._held.end(self._now_s)
        if self._session is not None:
            self._session.die()
        for future in self._waiting:
            if not future.done():
                future.set_result(LOST)

    def touched(self, path: str) -> None:
        """As TreeObserver."""
        self._watches.report(path)

    def service_changed(self, *, down: bool) -> None:
        """As TreeObserver. What is down here is the server, and no whole tree."""

    @property
    def _now_s(self) -> float:
        return self._process.world.time.now_us / MICROSECONDS

    def _connection(self) -> NetworkClient:
        if self._session is None:
            self._session = NetworkClient(
                self._servers.timeline, self._process, (self._servers.zookeeper,)
            )
        return self._session

    def _soon(self, call: Callable[[], None]) -> None:
        """Have a call come to this process from the service."""
        connection, zookeeper = self._connection(), self._servers.zookeeper
        sent_us = max(connection.now_us, zookeeper.stopped_until_us, zookeeper.down_until_us)
        sent_us = max(sent_us, self._cut_until_us)
        is_late = self._process.world.strikes("node.watch.late")
        travels_us = connection.draw_us(SLOW_WATCH_S) if is_late else connection.draw_us()
        connection.timeline.at(sent_us + travels_us, lambda: self._arrives(call))

    def _arrives(self, call: Callable[[], None]) -> None:
        if self._process.dead or self._closed:
            return
        if self.is_cut_off:
            self._soon(call)
        else:
            self._connection().loop.call_soon(call)

    def _check_sessions(self) -> bool:
        if not self._process.paused and not self.is_cut_off:
            self._held.expire_sessions(self._now_s)
        return not self._process.dead and len(self._watches) > 0

    async def _enter(self, path: str, prefix: str, data: bytes) -> None:
        await self._call(path, lambda: self._held.enter(path, prefix, data))

    async def _change(self, kind: str, path: str, apply: Callable[[], object]) -> None:
        world = self._process.world
        self._check_open(path)
        self._process.effect(kind, path)
        if self._process.paused:
            await asyncio.sleep(0)
        if world.strikes("node.change.lost"):
            await self._call(path, lambda: None)
            raise NodeUnavailableError(path, "the connection was lost")
        await self._call(path, apply)
        if world.strikes("node.change.lost-reply"):
            raise NodeUnavailableError(path, "the connection was lost")

    async def _call(self, path: str, apply: Callable[[], object]) -> object:
        """Have something done in the service. Raises what it raises, and NodeUnavailableError."""
        self._check_open(path)
        if self.is_cut_off:
            await self._time_out(path)
        world, rng = self._process.world, self._process.random
        if world.strikes("node.away"):
            self._servers.zookeeper.stop(world.time.now_us, rng.uniform(*AWAY_S))
        connection = self._connection()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._held.expire_sessions(self._now_s)
        connection.send(
            0, lambda: _outcome(apply), lambda answer: _resolve(future, answer), timeout_s=TIMEOUT_S
        )
        try:
            answer = await future
        finally:
            self._waiting.remove(future)
        if answer == LOST:
            self._elections.disconnected()
            self._watches.report_all()
        if answer in (LOST, LATE):
            raise NodeUnavailableError(path, "no answer")
        if isinstance(answer, NodeConflictError):
            world.reach("node.change.conflict")
            raise answer
        return answer

    async def _time_out(self, path: str) -> None:
        """A call that reaches no server."""
        self._process.world.reach("node.cut-off")
        self._elections.disconnected()
        await asyncio.sleep(TIMEOUT_S)
        self._watches.report_all()
        raise NodeUnavailableError(path, "no connection")

    def _check_open(self, path: str) -> None:
        if not path.startswith("/"):
            raise ValueError(f"{path!r}: a path begins with /")
        if self._closed:
            raise NodeUnavailableError(path, "the session was closed")


def _outcome(apply: Callable[[], object]) -> object:
    try:
        return apply()
    except NodeConflictError as error:
        return error


def _resolve(future: asyncio.Future[Any], answer: object) -> None:
    if not future.done():
        future.set_result(answer)
