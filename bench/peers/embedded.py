"""What embedded peers share: no server, and a group commit of callers on a thread of its own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from bench.floor import files_under
from bench.peers.peer import UNLIMITED
from bench.skeleton import BATCH_BYTES_MAX, BATCHES_IN_FLIGHT

Records = tuple[int, Sequence[bytes]]
"""A segment, and what one call appends to it."""
READ_BYTES: Final = 1 << 20
"""About so many are handed out at a time."""
T = TypeVar("T")


class EmbeddedPeer:
    """A `Peer` that has no process of its own."""

    segments_max: int = UNLIMITED
    in_flight_max: int = UNLIMITED
    embedded: bool = True

    def __init__(self, name: str, install: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self._install = install

    def install(self) -> None:
        self._install()

    def start(self, folder: Path) -> None:
        """Nothing runs."""

    def address(self, folder: Path) -> str:
        return str(folder)

    def processes(self) -> list[int]:
        return []

    def kill(self) -> None:
        """Its process is the one that presses on it."""

    def restart(self, *, kill: bool = False) -> None:
        """It is opened again by the next process."""

    def data_files(self, folder: Path) -> list[Path]:
        return files_under(folder)

    def stop(self) -> None:
        """Nothing runs."""


class GroupedLog(ABC):
    """A `PeerLog` over a store with transactions: what waits while a commit is under way goes into
    the next one, as the skeleton does it.

    One thread has the store. Of two batches in flight, one is packed while the other is synced.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="group-commit")
        self._waiting: list[tuple[Records, asyncio.Future[None]]] = []
        self._taken = 0
        self._scheduled = False
        self._in_flight = 0
        self._next: dict[int, int] = {}
        self._committed: asyncio.Future[None] = self._loop.create_future()
        self.commits = 0

    # --- of the store, each on its thread ---------------------------------------------------------

    @abstractmethod
    def _open(self) -> None:
        """Open the store, and create it if it is not there."""

    @abstractmethod
    def _commit(self, batch: Sequence[Records]) -> None:
        """One transaction, durable when it returns. `_numbers` names the records."""

    @abstractmethod
    def _last(self, segment: int) -> int:
        """The highest number of a record of a segment; -1 if there is none."""

    @abstractmethod
    def _read(self, segment: int, first: int, length: int) -> tuple[int, list[bytes]]:
        """Records from number `first` on, of about `length` bytes; the number after them."""

    @abstractmethod
    def _close(self) -> None:
        """Close the store."""

    def _numbers(self, segment: int, count: int) -> range:
        """The numbers of the next `count` records of a segment."""
        first = self._next.get(segment)
        if first is None:
            first = self._last(segment) + 1
        self._next[segment] = first + count
        return range(first, first + count)

    # --- of the log -------------------------------------------------------------------------------

    async def open(self) -> None:
        """Once, before all else."""
        await self._run(self._open)

    def append(self, segment: int, data: bytes) -> asyncio.Future[None]:
        return self.append_batch(segment, (data,))

    def append_batch(self, segment: int, records: Sequence[bytes]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(((segment, records), future))
        if not self._scheduled and self._in_flight < BATCHES_IN_FLIGHT:
            self._scheduled = True
            self._loop.call_soon(self._pack)
        return future

    async def read(self, segment: int, *, follow: bool = False) -> AsyncIterator[bytes]:
        number = 0
        while True:
            committed = self._committed
            number, records = await self._run(partial(self._read, segment, number, READ_BYTES))
            if records:
                yield b"".join(records)
            elif not follow:
                return
            else:
                await asyncio.shield(committed)

    async def flush(self) -> None:
        """There is one place alone."""
        return

    async def delete(self) -> None:
        """The folder is removed."""
        return

    async def close(self) -> None:
        await self._run(self._close)
        self._thread.shutdown()

    async def _run(self, call: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._thread, call)

    def _pack(self) -> None:
        self._scheduled = False
        while self._taken < len(self._waiting) and self._in_flight < BATCHES_IN_FLIGHT:
            start = self._taken
            index = start + _fitting(iter(self._waiting[start:]))
            batch = self._waiting[start:index]
            if index == len(self._waiting):
                self._waiting, self._taken = [], 0
            else:
                self._taken = index
            self._submit(batch)

    def _submit(self, batch: list[tuple[Records, asyncio.Future[None]]]) -> None:
        self._in_flight += 1

        def done(committed: ThreadFuture[None]) -> None:
            self._loop.call_soon_threadsafe(self._resolve, batch, committed)

        records = [each for each, _ in batch]
        self._thread.submit(self._commit, records).add_done_callback(done)

    def _resolve(
        self, batch: list[tuple[Records, asyncio.Future[None]]], committed: ThreadFuture[None]
    ) -> None:
        self._in_flight -= 1
        error = committed.exception()
        for _, future in batch:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        self.commits += error is None
        self._committed.set_result(None)
        self._committed = self._loop.create_future()
        if self._taken < len(self._waiting) and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pack)


def _fitting(waiting: Iterator[tuple[Records, object]]) -> int:
    """How many of them go into one batch; at least one."""
    length = count = 0
    for (_, records), _ in waiting:
        count += 1
        length += sum(map(len, records))
        if length >= BATCH_BYTES_MAX:
            break
    return count
