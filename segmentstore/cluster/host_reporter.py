"""HostReporter: keeps the record of a host true (loop).

It writes beside the steps of its host: what a host does next waits for no write of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from durablelog.bookkeeper.metadata_node import NodeRefusedError, NodeUnavailableError
from segmentstore.cluster.cluster_nodes import ClusterNodes, HostNode
from segmentstore.cluster.host_record import HostRecord
from segmentstore.cluster.host_reports import LOAD_S, is_newer
from segmentstore.contracts.backoff import Backoff

AGAIN_MIN_S: Final = 0.1
AGAIN_MAX_S: Final = 5.0


class HostReporter:
    """Of one host. `record` gives what is true now; `failed` is called when it was not written."""

    def __init__(
        self,
        nodes: ClusterNodes,
        node: HostNode,
        record: Callable[[], HostRecord],
        failed: Callable[[], object],
        rng: random.Random,
    ) -> None:
        self._nodes = nodes
        self._node = node
        self._current = record
        self._failed = failed
        self._backoff = Backoff(rng, min_s=AGAIN_MIN_S, max_s=AGAIN_MAX_S)
        self._changed = asyncio.Event()
        self._record: HostRecord | None = None
        """As written last."""
        self._written_s = 0.0
        self.trouble: str | None = None
        """Why the record is not what is true."""

    def changed(self) -> None:
        """There may be something to report."""
        self._changed.set()

    async def report(self) -> None:
        """Write the record, if others are to know more than the last one says.

        Raises NodeUnavailableError, NodeRefusedError.
        """
        now_s = asyncio.get_running_loop().time()
        record = self._current()
        if self._record is None or is_newer(self._record, record, now_s - self._written_s):
            await self._nodes.register(self._node, record)
            self._record, self._written_s = record, now_s

    async def run(self) -> None:
        """Report each change, and every LOAD_S the load, if that has changed. Never returns."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            again_s = loop.time() + LOAD_S
            try:
                await self.report()
                self.trouble = None
                self._backoff.reset()
            except (NodeUnavailableError, NodeRefusedError) as error:
                self.trouble = f"host {self._node.host_id} does not report itself: {error}"
                self._failed()
                again_s = loop.time() + self._backoff.next_s()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(again_s):
                    await self._changed.wait()
