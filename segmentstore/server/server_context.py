"""ServerContext: what all connections of a wire server share."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.server.outstanding import OutstandingBytes
from segmentstore.server.segment_kinds import SegmentKinds
from segmentstore.service import SegmentStore
from segmentstore.tables.table_service import TableService

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 10_000
HELLO_S: Final = 10.0
"""Longest until a connection's Hello."""
STOP_S: Final = 5.0
"""Longest that an orderly stop waits for appends on their way."""
LOG_INTERVAL_S: Final = 10.0
"""Lines about one kind of trouble are at least so far apart."""
_KINDS_MAX: Final = 1_000
_NUMBERS: Final = re.compile(r"-?\d+")
"""In a reason: clients choose them."""


@dataclass(slots=True, kw_only=True)
class ServerCounts:
    """What the server has done, for statistics."""

    connections: int = 0
    connections_refused: int = 0
    appends: int = 0
    append_bytes: int = 0
    reads_waiting: int = 0
    """Reads that have no reply yet."""
    refusals: dict[str, int] = field(default_factory=dict)
    """By the name of the reply, or the reason for which a connection was closed."""

    def refused(self, reason: str) -> None:
        """Count one refusal."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1


class WritersInFlight:
    """Which writers have appends on their way to which segments, on any connection.

    Appends are counted: a refused one settles before those in front of it.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, bytes], int] = {}
        self._waiting: dict[tuple[str, bytes], asyncio.Event] = {}
        self._watched: dict[tuple[str, bytes], set[asyncio.Event]] = {}

    def begun(self, segment: str, writer_id: bytes) -> None:
        """One more."""
        key = (segment, writer_id)
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._watched:
            for event in self._watched.get(key, ()):
                event.set()

    def settled(self, segment: str, writer_id: bytes) -> None:
        """One less."""
        key = (segment, writer_id)
        count = self._counts.pop(key) - 1
        if count:
            self._counts[key] = count
        elif (waiting := self._waiting.pop(key, None)) is not None:
            waiting.set()

    @contextmanager
    def watch(self, segment: str, writer_id: bytes) -> Iterator[asyncio.Event]:
        """Set once the writer begins one, though it may have settled by the end of the block."""
        key = (segment, writer_id)
        event = asyncio.Event()
        self._watched.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            self._watched[key].remove(event)
            if not self._watched[key]:
                del self._watched[key]

    async def none(self, segment: str, writer_id: bytes) -> None:
        """Wait until the writer has nothing on its way to the segment."""
        key = (segment, writer_id)
        while key in self._counts:
            await self._waiting.setdefault(key, asyncio.Event()).wait()


class ServerContext:
    """The store, the accounts and the tasks of one server."""

    def __init__(
        self,
        store: SegmentStore,
        tables: TableService,
        runtime: Runtime,
        outstanding: OutstandingBytes | None = None,
    ) -> None:
        self.store: Final = store
        self.tables: Final = tables
        self.kinds: Final = SegmentKinds(store)
        self.clock: Final = runtime.clock
        self.random: Final = runtime.random
        self.outstanding: Final = outstanding or OutstandingBytes()
        self.counts: Final = ServerCounts()
        self.in_flight: Final = WritersInFlight()
        self.transients: set[str] = set()
        """Transient segments whose connection is open."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged: dict[str, float] = {}

    def report_end(self, peer: str, reason: str) -> None:
        """The server ends a connection: one line, of each reason once in a while, whatever the
        numbers in it.
        """
        self.counts.refused("connection ended")
        kind = _NUMBERS.sub("", reason)
        self._log_some(logging.WARNING, kind, f"the connection of {peer} ends: {reason}", None)

    def report_bug(self, what: str, error: BaseException) -> None:
        """An error of a request that is none of the engine's own."""
        self._log_some(logging.ERROR, f"{what} {type(error)}", f"{what} failed", error)

    def report_failure(self, what: str, error: SegmentStoreError) -> None:
        """Work for which no caller waits has failed."""
        self._log_some(logging.WARNING, what, f"{what}: {error}", None)

    def _log_some(self, level: int, kind: str, text: str, error: BaseException | None) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._logged.get(kind, float("-inf")) < LOG_INTERVAL_S:
            return
        if len(self._logged) >= _KINDS_MAX:
            self._logged.clear()
        self._logged[kind] = now
        _log.log(level, "%s", text, exc_info=error)

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Have work done that no connection owns; `stop` waits for it."""
        task = own_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for what `begin` was given."""
        while self._tasks:
            await asyncio.wait(self._tasks)
