"""A complete MetadataNodes in memory: for tests and demos.

The `NodeTree` plays the service and outlives its clients. Rules of this file:

- every change happens in one turn of the loop, the reply comes in a later one;
- planted failures are used up in the order they were planted, each by the next call it is meant
  for.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.bookkeeper.memory_sessions import HeldNodes, NodeSession, SessionChecks
from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeConflictError,
    NodeContent,
    NodeRefusedError,
    NodeUnavailableError,
    NodeWatch,
)
from durablelog.bookkeeper.node_elections import ElectionCalls, NodeElections
from durablelog.bookkeeper.node_watches import NodeWatches

NodeCall = Literal[
    "read", "create", "write", "delete", "children", "hold", "release", "lead", "resign"
]
"""`lead` is the creation of a candidate's node, `resign` its deletion; candidates are listed by
`children`.
"""


@dataclass(slots=True)
class _Planted:
    call: NodeCall
    error: type[NodeUnavailableError | NodeConflictError | NodeRefusedError]
    happens: bool
    times: int


class TreeObserver(Protocol):
    """A client that watches nodes."""

    def touched(self, path: str) -> None:
        """This node has changed, or its children. Called inside of the change."""

    def service_changed(self, *, down: bool) -> None:
        """An outage begins, or is over."""


class NodeTree:
    """The nodes, and what shall go wrong with them. Belongs to one thread at a time."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeContent] = {"/": NodeContent(b"", 0)}
        self._planted: list[_Planted] = []
        self._held: dict[str, NodeSession] = {}
        self._entered: dict[str, int] = {}
        """Numbered nodes so far, by the node above."""
        self._observers: dict[TreeObserver, None] = {}
        self._outage = False
        self.clients = 0
        """So far."""

    @property
    def outage(self) -> bool:
        """While it is set nothing happens, every call fails, and nothing is reported."""
        return self._outage

    @outage.setter
    def outage(self, down: bool) -> None:
        if down != self._outage:
            self._outage = down
            for observer in list(self._observers):
                observer.service_changed(down=down)

    def observe(self, observer: TreeObserver) -> None:
        """Report changes to it from now on. Idempotent."""
        self._observers[observer] = None

    def observe_no_more(self, observer: TreeObserver) -> None:
        """Idempotent."""
        self._observers.pop(observer, None)

    def content(self, path: str) -> NodeContent | None:
        """What a node holds, as a tool would see it."""
        return self._nodes.get(path)

    def hold(self, path: str, data: bytes, session: NodeSession) -> None:
        """Have a node that goes with a session: written, if it has it already; else anew."""
        there = self._nodes.get(path)
        if there is None or self._held.get(path) is not session:
            self._forget(path)
            self.make(path, data)
            self._held[path] = session
        elif there.data != data:
            self.put(path, data)

    def enter(self, path: str, prefix: str, data: bytes, session: NodeSession) -> None:
        """Make a node below this one that goes with a session, numbered, with parents as needed."""
        number = self._entered.get(path, 0)
        self._entered[path] = number + 1
        name = f"{path}/{prefix}{number:010d}"
        self.make(name, data)
        self._held[name] = session

    def expire(self, now: float) -> None:
        """Remove what was held by sessions that are over at this loop time."""
        for path, session in list(self._held.items()):
            if session.expired(now):
                self.drop(path)

    def drop(self, path: str) -> None:
        """Remove a node that is held; nothing happens if it is missing."""
        if self._held.pop(path, None) is not None:
            self._forget(path)

    def put(self, path: str, data: bytes) -> None:
        """Write a node whatever its version, as a tool would; make it if it is not there."""
        there = self._nodes.get(path)
        if there is None:
            self.make(path, data)
        else:
            self._set(path, NodeContent(data, there.version + 1))

    def make(self, path: str, data: bytes, *, parents: bool = True) -> None:
        """A new node, with parents as needed, or only if they are there.

        Raises NodeConflictError.
        """
        if path in self._nodes:
            raise NodeConflictError(path, "it is there")
        parent = parent_of(path)
        if parent not in self._nodes:
            if not parents:
                raise NodeConflictError(path, "the node above is not there")
            self.make(parent, b"")
        self._set(path, NodeContent(data, 0))
        self._touch(parent)

    def change(self, path: str, data: bytes, version: int) -> int:
        """Compare and set. Raises NodeConflictError."""
        there = self._nodes.get(path)
        if there is None or there.version != version:
            raise NodeConflictError(
                path, f"it is {'missing' if there is None else f'in version {there.version}'}"
            )
        self._set(path, NodeContent(data, version + 1))
        return version + 1

    def remove(self, path: str, version: int) -> None:
        """Compare and remove. Raises NodeConflictError."""
        there = self._nodes.get(path)
        if there is None:
            return
        if there.version != version or self.names_under(path):
            raise NodeConflictError(path, f"it is in version {there.version}, or has children")
        self._held.pop(path, None)
        self._forget(path)

    def names_under(self, path: str) -> list[str]:
        """Names of the children."""
        return sorted(
            node.rpartition("/")[2]
            for node in self._nodes
            if node != "/" and parent_of(node) == path
        )

    def fail(self, call: NodeCall, *, happens: bool = False, times: int = 1) -> None:
        """Let the next `times` such calls end without an answer; with `happens` they were done all
        the same.
        """
        self._planted.append(_Planted(call, NodeUnavailableError, happens, times))

    def conflict(
        self, call: Literal["create", "write"], *, happens: bool = False, times: int = 1
    ) -> None:
        """Let the next `times` such calls end with a conflict; with `happens` with themselves, as
        when a client whose connection broke sends a call a second time.
        """
        self._planted.append(_Planted(call, NodeConflictError, happens, times))

    def refuse(self, call: NodeCall, times: int = 1) -> None:
        """Let the next `times` such calls be refused for want of rights."""
        self._planted.append(_Planted(call, NodeRefusedError, happens=False, times=times))

    def planted(self, call: NodeCall) -> _Planted | None:
        """The failure meant for this call, used up by it."""
        for planted in self._planted:
            if planted.call == call:
                planted.times -= 1
                if not planted.times:
                    self._planted.remove(planted)
                return planted
        return None

    def _set(self, path: str, content: NodeContent) -> None:
        self._nodes[path] = content
        self._touch(path)

    def _forget(self, path: str) -> None:
        if self._nodes.pop(path, None) is not None:
            self._touch(path)
            self._touch(parent_of(path))

    def _touch(self, path: str) -> None:
        for observer in list(self._observers):
            observer.touched(path)


def parent_of(path: str) -> str:
    """The node above."""
    return path.rpartition("/")[0] or "/"


class MemoryNodes(MetadataNodes):
    """One client of a tree; `process` is its process, an immortal one of its own by default."""

    def __init__(self, tree: NodeTree, process: MemoryProcess | None = None) -> None:
        self._tree = tree
        self._process = process or MemoryProcess()
        self._watches = NodeWatches(self._soon)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held = HeldNodes(tree, lambda: self._process.stopped, self._watches.report_all)
        self._checks = SessionChecks(self._check_sessions)
        tree.clients += 1
        calls = ElectionCalls(
            enter=self._enter, children=self.children, remove=self._remove, watch=self.watch
        )
        rng = random.Random(tree.clients)  # noqa: S311 - it keeps the clients' tokens apart
        self._elections = NodeElections(calls, rng)
        self._closed = False

    async def read(self, path: str) -> NodeContent | None:
        planted = await self._begin("read", path)
        content = self._tree.content(path)
        await self._end(planted, path)
        return content

    async def create(self, path: str, data: bytes, *, parents: bool = True) -> int:
        planted = await self._begin("create", path)
        self._tree.make(path, data, parents=parents)
        await self._end(planted, path)
        return 0

    async def write(self, path: str, data: bytes, version: int) -> int:
        planted = await self._begin("write", path)
        after = self._tree.change(path, data, version)
        await self._end(planted, path)
        return after

    async def delete(self, path: str, version: int) -> None:
        planted = await self._begin("delete", path)
        self._tree.remove(path, version)
        await self._end(planted, path)

    async def children(self, path: str) -> Sequence[str]:
        planted = await self._begin("children", path)
        names = self._tree.names_under(path)
        await self._end(planted, path)
        return names

    async def hold(self, path: str, data: bytes) -> None:
        planted = await self._begin("hold", path)
        self._held.hold(path, data)
        await self._end(planted, path)

    async def release(self, path: str) -> None:
        planted = await self._begin("release", path)
        self._held.release(path)
        await self._end(planted, path)

    def watch(self, path: str, changed: Callable[[], object]) -> NodeWatch:
        watch = self._watches.add(path, changed)
        self._loop = asyncio.get_running_loop()
        self._tree.observe(self)
        self._checks.begin()
        if not self._tree.outage:
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
        """End the client's session now, as the service does after too long without a message.

        The client learns of it with its next call, or check.
        """
        self._held.lose_session(asyncio.get_running_loop().time())

    async def address(self) -> str:
        return "memory"

    async def close(self) -> None:
        self._stop()
        await self._elections.close()
        self._held.end(asyncio.get_running_loop().time())

    def abandon(self) -> None:
        self._stop()
        self._held.abandon()

    def health(self) -> str | None:
        return "the nodes do not answer" if self._tree.outage else None

    # --- the service ------------------------------------------------------------------------------

    def touched(self, path: str) -> None:
        """As TreeObserver."""
        if not self._tree.outage:
            self._watches.report(path)

    def service_changed(self, *, down: bool) -> None:
        """As TreeObserver."""
        self._soon(self._elections.disconnected if down else self._watches.report_all)

    def _soon(self, call: Callable[[], None]) -> None:
        """On our loop; in a process that sleeps, when it wakes up."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(self._process.soon, call)

    def _check_sessions(self) -> bool:
        if not self._process.stopped and not self._tree.outage:
            self._held.expire_sessions(asyncio.get_running_loop().time())
        return not self._process.dead and len(self._watches) > 0

    def _stop(self) -> None:
        self._closed = True
        self._tree.observe_no_more(self)
        self._watches.close()
        self._checks.end()

    # --- calls ------------------------------------------------------------------------------------

    async def _enter(self, path: str, prefix: str, data: bytes) -> None:
        planted = await self._begin("lead", path)
        self._held.enter(path, prefix, data)
        await self._end(planted, path)

    async def _remove(self, path: str) -> None:
        planted = await self._begin("resign", path)
        self._held.release(path)
        await self._end(planted, path)

    async def _begin(self, call: NodeCall, path: str) -> _Planted | None:
        """Returns when the call may happen."""
        if not path.startswith("/"):
            raise ValueError(f"{path!r}: a path begins with /")
        await self._process.enter(f"node {call}")
        if self._closed:
            raise NodeUnavailableError(path, "the session was closed")
        if self._tree.outage:
            raise NodeUnavailableError(path, "the service is down")
        self._held.expire_sessions(asyncio.get_running_loop().time())
        planted = self._tree.planted(call)
        if planted is not None and not planted.happens:
            raise planted.error(path, "made to fail")
        return planted

    async def _end(self, planted: _Planted | None, path: str) -> None:
        """The call has happened: the reply, or its loss."""
        await self._process.leave()
        if planted is not None:
            raise planted.error(path, "the reply was lost")
