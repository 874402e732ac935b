"""Assigner: writes the assignment map, on the host that leads (loop).

Rules of this file:

- what is decided is a pure function of the records and the map (assignment.py); all it remembers is
  in the map. So the next leader goes on where this one ended;
- the map is written by compare-and-set: one that another has written meanwhile is read again;
- what has changed is read again, and nothing is written that would change nothing.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from durablelog.bookkeeper.metadata_node import (
    NodeConflictError,
    NodeRefusedError,
    NodeUnavailableError,
)
from segmentstore.cluster.assignment import assign
from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.cluster.cluster_view import ClusterSeen, ClusterView
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import SegmentStoreError, describe
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import outlast

_log = logging.getLogger(__name__)

CHECK_S: Final = 2.0
"""What is due by time alone is done after so long: the end of a damping, of a passing over."""
SETTLE_S: Final = 1.0
"""How long more hosts are waited for while none has a container."""
_END_S: Final = 2.0
_AGAIN_S_MIN: Final = 0.1
_AGAIN_S_MAX: Final = 5.0


class Assigner:
    """Of one host. It stands for election from `start` to `stop`, both once."""

    def __init__(
        self, nodes: ClusterNodes, host_id: str, containers: int, runtime: Runtime
    ) -> None:
        self._nodes = nodes
        self._host_id = host_id
        self._count = containers
        self._runtime = runtime
        self._changed = asyncio.Event()
        self._view = ClusterView(nodes, self._changed.set)
        self._task: asyncio.Task[None] | None = None
        self._leads = False
        self._trouble: str | None = None

    @property
    def leads(self) -> bool:
        """Whether this host writes the map."""
        return self._leads

    def health(self) -> str | None:
        """What keeps the leader from assigning, a sentence for people."""
        return self._trouble

    def start(self) -> None:
        """Stand for election, and assign while elected."""
        self._task = own_task(self._run(), name="assign-containers", on_failure=self._failed)

    async def stop(self) -> None:
        """Lead no more."""
        if self._task is None:
            return
        self._task.cancel()
        await outlast(self._task)
        self._task = None

    def _failed(self, error: BaseException) -> None:
        """A broken assumption of ours, or our own cancellation. Another host is to lead."""
        if not isinstance(error, asyncio.CancelledError):
            self._trouble = f"host {self._host_id} leads no more: {describe(error)}"
            _log.error("%s", self._trouble, exc_info=error)

    async def _run(self) -> None:
        backoff = Backoff(self._runtime.random, min_s=_AGAIN_S_MIN, max_s=_AGAIN_S_MAX)
        try:
            while True:
                try:
                    await self._nodes.lead(self._host_id, self._changed.set)
                    self._leads = True
                    _log.info("host %s leads the cluster", self._host_id)
                    await self._lead(backoff)
                except (NodeUnavailableError, NodeRefusedError) as error:
                    self._trouble = f"host {self._host_id} cannot assign containers: {error}"
                    await asyncio.sleep(backoff.next_s())
                finally:
                    self._leads = False
                    self._view.close()
        finally:
            # What does not succeed soon ends with the session.
            with suppress(NodeUnavailableError, NodeRefusedError, TimeoutError):
                async with asyncio.timeout(_END_S):
                    await self._nodes.resign()

    async def _lead(self, backoff: Backoff) -> None:
        while self._nodes.leads():
            self._changed.clear()
            try:
                await self._assign()
                self._trouble = None
                backoff.reset()
            except NodeConflictError:
                # A person wrote, or another that believed to lead.
                self._view.reread_map()
                continue
            except SegmentStoreError as error:
                self._trouble = f"host {self._host_id} cannot assign containers: {error}"
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._changed.wait()

    async def _assign(self) -> None:
        seen = await self._view.read(records=True)
        if not seen.records.keys() & set(_map_of(seen).owners.values()):
            # Hosts that start together, or whose sessions have ended together, come one by one. The
            # first one alone would be given everything, and have most of it moved again.
            await asyncio.sleep(SETTLE_S)
            seen = await self._view.read(records=True)
        # Of the version that it is written at: an edit may have come meanwhile.
        before = _map_of(seen)
        after = assign(self._runtime.clock.time_ms(), self._count, seen.records, before)
        if after is not before:
            self._view.take_map(await self._nodes.write_map(after, seen.stored))
            _log.info("the assignment map has epoch %d", after.epoch)


def _map_of(seen: ClusterSeen) -> AssignmentMap:
    return AssignmentMap() if seen.stored is None else seen.stored.map
