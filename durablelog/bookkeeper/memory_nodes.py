"""A complete MetadataNodes in memory: for tests and demos.

The `NodeTree` plays the service and outlives its clients. Rules of this file:

- every change happens in one turn of the loop, the reply comes in a later one;
- planted failures are used up in the order they were planted, each by the next call it is meant
  for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeConflictError,
    NodeContent,
    NodeRefusedError,
    NodeUnavailableError,
)

NodeCall = Literal["read", "create", "write", "delete", "children", "hold", "release"]

SESSION_S: Final = 10.0
"""How long a session is kept of a process that says nothing any more, from when that is seen first.

Loop time.
"""


class NodeSession:
    """A client's, as the service sees it.

    `silent` says whether its process has stopped, or is dead.
    """

    def __init__(self, silent: Callable[[], bool]) -> None:
        self.ended = False
        self._silent = silent
        self._silent_since: float | None = None

    def expired(self, now: float) -> bool:
        """Whether the service has given it up. A process that speaks again before is in time."""
        if not self.ended and not self._silent():
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        self.ended = self.ended or (
            self._silent_since is not None and now - self._silent_since >= SESSION_S
        )
        return self.ended


@dataclass(slots=True)
class _Planted:
    call: NodeCall
    error: type[NodeUnavailableError | NodeConflictError | NodeRefusedError]
    happens: bool
    times: int


class NodeTree:
    """The nodes, and what shall go wrong with them. Belongs to one thread at a time."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeContent] = {"/": NodeContent(b"", 0)}
        self._planted: list[_Planted] = []
        self._held: dict[str, NodeSession] = {}
        self.outage = False
        """While it is set nothing happens, and every call fails."""

    def content(self, path: str) -> NodeContent | None:
        """What a node holds, as a tool would see it."""
        return self._nodes.get(path)

    def hold(self, path: str, data: bytes, session: NodeSession) -> None:
        """Make a node that goes with a session; anew, if it was there."""
        self._nodes.pop(path, None)
        self.make(path, data)
        self._held[path] = session

    def expire(self, now: float) -> None:
        """Remove what was held by sessions that are over at this loop time."""
        for path, session in list(self._held.items()):
            if session.expired(now):
                self.drop(path)

    def drop(self, path: str) -> None:
        """Remove a node that is held; nothing happens if it is missing."""
        if self._held.pop(path, None) is not None:
            self._nodes.pop(path, None)

    def put(self, path: str, data: bytes) -> None:
        """Write a node whatever its version, as a tool would; make it if it is not there."""
        there = self._nodes.get(path)
        if there is None:
            self.make(path, data)
        else:
            self._nodes[path] = NodeContent(data, there.version + 1)

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
        self._nodes[path] = NodeContent(data, 0)

    def change(self, path: str, data: bytes, version: int) -> int:
        """Compare and set. Raises NodeConflictError."""
        there = self._nodes.get(path)
        if there is None or there.version != version:
            raise NodeConflictError(
                path, f"it is {'missing' if there is None else f'in version {there.version}'}"
            )
        self._nodes[path] = NodeContent(data, version + 1)
        return version + 1

    def remove(self, path: str, version: int) -> None:
        """Compare and remove. Raises NodeConflictError."""
        there = self._nodes.get(path)
        if there is None:
            return
        if there.version != version or self.names_under(path):
            raise NodeConflictError(path, f"it is in version {there.version}, or has children")
        del self._nodes[path]

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


def parent_of(path: str) -> str:
    """The node above."""
    return path.rpartition("/")[0] or "/"


class HeldNodes:
    """What one client holds, in whatever session it has. `silent` as in NodeSession."""

    def __init__(self, tree: NodeTree, silent: Callable[[], bool]) -> None:
        self._tree = tree
        self._silent = silent
        self._session = NodeSession(silent)
        self._held: dict[str, bytes] = {}

    def hold(self, path: str, data: bytes) -> None:
        """Make it, in the session of now."""
        self._held[path] = data
        self._tree.hold(path, data, self._session)

    def release(self, path: str) -> None:
        """Remove it."""
        self._held.pop(path, None)
        self._tree.drop(path)

    def expire_sessions(self, now: float) -> None:
        """A call comes at this loop time: sessions that are over end; of ours that one another
        begins, with what we hold.
        """
        self._tree.expire(now)
        if self._session.expired(now):
            self._session = NodeSession(self._silent)
            for path, data in self._held.items():
                self._tree.hold(path, data, self._session)

    def end(self, now: float) -> None:
        """In order, unless the process is dead."""
        self.abandon()
        self._tree.expire(now)

    def abandon(self) -> None:
        """As `end`; the next check sees it."""
        self._session.ended = not self._silent()


class MemoryNodes(MetadataNodes):
    """One client of a tree; `process` is its process, an immortal one of its own by default."""

    def __init__(self, tree: NodeTree, process: MemoryProcess | None = None) -> None:
        self._tree = tree
        self._process = process or MemoryProcess()
        self._held = HeldNodes(tree, lambda: self._process.stopped)
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

    async def address(self) -> str:
        return "memory"

    async def close(self) -> None:
        self._closed = True
        self._held.end(asyncio.get_running_loop().time())

    def abandon(self) -> None:
        self._closed = True
        self._held.abandon()

    def health(self) -> str | None:
        return "the nodes do not answer" if self._tree.outage else None

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
