"""Tables in a simulated world: virtual time, tiny sizes, processes that die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from durablelog.catalog.key_store import KeyStore
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.memory_key_store import MemoryKeyStore
from recovery.harness.simulation.store_world import LOCATION, StoreWorld
from segmentstore.service import SegmentStore
from segmentstore.tables import stored_index
from segmentstore.tables.index_files import index_directory
from segmentstore.tables.open_tables import TableLimits
from segmentstore.tables.table_service import TableService
from tests.store.harness import LAZY

T = TypeVar("T")

IDENTITY = KeyStoreIdentity("5f6a2c9e-0000-4000-8000-000000000001", 0)
SETTINGS = {**LAZY, "containers": 1, "append_bytes_max": 16384}
TINY_LIMITS = TableLimits(
    tables_max=2, index_bytes_max=1 << 20, memory_index_bytes_max=1 << 20, dead_bytes_min=200
)
ON_DISK = TableLimits(
    tables_max=2, index_bytes_max=1 << 20, memory_index_bytes_max=1000, dead_bytes_min=200
)
"""Four keys, and the index is on disk."""


class TableWorld:
    """One store with tables, in a process that may die."""

    def __init__(
        self, seed: str = "tables", limits: TableLimits = TINY_LIMITS, **settings: object
    ) -> None:
        self.world = StoreWorld(seed, settings={**SETTINGS, **settings})
        self.limits = limits
        self._open: tuple[SegmentStore, TableService] | None = None
        self.process = self.world.process("owner")
        self.world.run_task(self.process, self._start())

    @property
    def store(self) -> SegmentStore:
        assert self._open is not None
        return self._open[0]

    @property
    def tables(self) -> TableService:
        assert self._open is not None
        return self._open[1]

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return self.world.run_task(self.process, main)

    def begin(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begun, and not waited for."""
        return self.process.start(main)

    def make_keys(self) -> KeyStore:
        return MemoryKeyStore(index_directory(LOCATION), IDENTITY, self.process.runtime)

    async def _start(self) -> None:
        store = await self.world.open_store(self.process)
        self._open = store, TableService(store, self.make_keys, self.limits)

    async def _stop(self) -> None:
        await self.tables.close()
        await self.store.close()

    def reopen(self) -> None:
        """The process ends in good order, and another opens the store."""
        self.run(self._stop())
        self.world.kill(self.process)
        self._begin_process()

    def crash(self, *, power: bool = False) -> None:
        """The process dies, if it is not dead yet, and another opens the store."""
        if power:
            self.world.cut_power()
        else:
            self.world.kill(self.process)
        self._begin_process()

    def renew_tables(self) -> None:
        """The store stays open; nothing of tables is in memory."""
        self.run(self.tables.close())
        self._open = self.store, TableService(self.store, self.make_keys, self.limits)

    def _begin_process(self) -> None:
        self.process = self.world.process("owner")
        self.world.run_task(self.process, self._start())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.world.close()
        assert error is not None or self.world.unhandled == []


def with_tables(
    work: Callable[[TableService, SegmentStore], Awaitable[None]],
    limits: TableLimits = TINY_LIMITS,
    *,
    seed: str = "tables",
    **settings: object,
) -> None:
    """Run `work` in a world of its own."""
    with TableWorld(seed, limits, **settings) as world:
        world.run(_whole(world, work))


async def _whole(
    world: TableWorld, work: Callable[[TableService, SegmentStore], Awaitable[None]]
) -> None:
    await work(world.tables, world.store)
    await world._stop()


def tiny_writes(monkeypatch: Any) -> None:
    """Indexes on disk are written every few keys."""
    monkeypatch.setattr(stored_index, "WRITE_KEYS", 3)


@contextmanager
def full_queue(store: SegmentStore, bytes_max: int) -> Iterator[None]:
    """The queue of the first container holds so much meanwhile, and callers do not wait for room:
    what comes beyond it is refused.
    """
    processor = store._containers[0]._processor
    assert processor is not None
    room = processor.room
    before, request = room._bytes_max, room.request

    def no_wait(size: int) -> asyncio.Future[None] | None:
        del size
        return None

    room._bytes_max, room.request = bytes_max, no_wait  # type: ignore[method-assign]
    room.note_left(room.left)
    yield
    room._bytes_max, room.request = before, request  # type: ignore[method-assign]
    room.note_left(room.left)
