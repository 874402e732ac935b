"""ZookeeperWatches: watches that stand, of ZooKeeper's, which report one change each.

ZooKeeper has two for a node: of the node itself, there or not, and of its children, if it is there.
Each is set by a read. kazoo forgets all of them when the connection is lost. (ZooKeeper 3.6 has
persistent watches; kazoo 2.11 does not speak of them.) Rules of this file:

- a change is reported when the watch that reported it is set again, so that a read behind the call
  sees all that happened in between;
- a watch counts as set from when that is asked for. What it reports may arrive before the answer;
- with each connection all are set again, and everything is reported;
- kazoo is handed the same callback for a node each time: it keeps a set of them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from durablelog.bookkeeper.metadata_node import (
    NodeRefusedError,
    NodeUnavailableError,
    NodeWatch,
)
from durablelog.bookkeeper.node_watches import NodeWatches
from durablelog.bookkeeper.waiting import pause
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.owned_tasks import own_task

_log = logging.getLogger(__name__)

AGAIN_MIN_S: Final = 0.1
AGAIN_MAX_S: Final = 10.0

SetWatch = Callable[[str, Callable[[Any], None]], Awaitable[bool]]
"""Sets a watch of ZooKeeper's on a node; whether the node is there. Raises NodeUnavailableError,
NodeRefusedError. The callback is kazoo's to call, on its thread.
"""


def hand_over(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    """Have the loop call it; on any thread. Nothing happens if the loop is closed."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        pass  # No caller waits any more.


class ZookeeperWatches:
    """Of one client. `watch_node` also stands for a node that is missing; `watch_children` sets
    nothing then.
    """

    def __init__(self, watch_node: SetWatch, watch_children: SetWatch, rng: random.Random) -> None:
        self._watch_node = watch_node
        self._watch_children = watch_children
        self._rng = rng
        self._watches = NodeWatches(lambda call: asyncio.get_running_loop().call_soon(call))
        self._nodes: dict[str, _WatchedNode] = {}
        """Also of nodes without a watcher, until their watch has reported a last change."""

    def add(self, path: str, changed: Callable[[], object]) -> NodeWatch:
        """As MetadataNodes.watch."""
        watch = self._watches.add(path, changed)
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = _WatchedNode(asyncio.get_running_loop(), self._fired, path)
        if node.stands:
            self._watches.report(path)
        else:
            self._set_again(node)
        return watch

    def connected(self) -> None:
        """There is a connection, and no watch of ZooKeeper's any more."""
        for path, node in list(self._nodes.items()):
            node.itself = node.children = False
            if self._watches.watched(path):
                self._set_again(node)
            else:
                del self._nodes[path]

    async def close(self) -> None:
        """End all. Idempotent."""
        self._watches.close()
        nodes, self._nodes = self._nodes, {}
        tasks = [node.task for node in nodes.values() if node.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _fired(self, node: _WatchedNode, *, children: bool) -> None:
        """A watch of ZooKeeper's has reported, and is no more."""
        if children:
            node.children = False
        else:
            node.itself = False
        if self._nodes.get(node.path) is not node:
            return
        if self._watches.watched(node.path):
            self._set_again(node)
        elif not node.itself and not node.children and not node.busy:
            del self._nodes[node.path]

    def _set_again(self, node: _WatchedNode) -> None:
        node.news.set()
        if not node.busy:
            node.task = own_task(self._set(node), name="set watches")

    async def _set(self, node: _WatchedNode) -> None:
        """Until all of this node stand."""
        backoff = Backoff(self._rng, min_s=AGAIN_MIN_S, max_s=AGAIN_MAX_S)
        while not node.stands and self._watches.watched(node.path):
            node.news.clear()
            try:
                await self._set_once(node)
            except (NodeUnavailableError, NodeRefusedError) as error:
                # Set or not: a second one more is no harm.
                node.itself = node.children = False
                level = logging.WARNING if isinstance(error, NodeRefusedError) else logging.INFO
                _log.log(level, "%s is not watched yet: %s", node.path, error)
                await pause(node.news, backoff.next_s())
        self._watches.report(node.path)

    async def _set_once(self, node: _WatchedNode) -> None:
        if not node.itself:
            node.itself = True
            node.there = await self._watch_node(node.path, node.on_change)
        if node.there and not node.children:
            node.children = True
            if not await self._watch_children(node.path, node.on_children):
                # Deleted since: the watch of the node itself is about to report that.
                node.there = node.children = False


class _WatchedNode:
    """What stands in ZooKeeper for one node."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fired: Callable[..., None], path: str
    ) -> None:
        self.path = path
        self.itself = False
        self.children = False
        self.there = False
        """As of when the watch of the node itself was set."""
        self.news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

        def on_change(_event: object) -> None:
            hand_over(loop, lambda: fired(self, children=False))

        def on_children(_event: object) -> None:
            hand_over(loop, lambda: fired(self, children=True))

        self.on_change, self.on_children = on_change, on_children

    @property
    def stands(self) -> bool:
        return self.itself and (self.children or not self.there)

    @property
    def busy(self) -> bool:
        return self.task is not None and not self.task.done()
