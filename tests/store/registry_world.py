"""A store whose logs, objects and cache are in memory, in virtual time; starts, frames and uploads
wait where a test asks for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.durable_data_log import DurableDataLog
from durablelog.durable_data_log_factory import LogOptions
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from durablelog.memory_log_factory import MemoryLogFactory
from readindex.memory_cache import MemoryCache
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore import SegmentStore
from segmentstore.config import StoreConfig
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.open_steps import open_store
from tests.store.harness import LAZY
from tests.support.loop_clock import LoopClock
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage
from tier2.object_storage import NO_METADATA

T = TypeVar("T")

COUNT = 4
"""Containers of a store."""


def name_in(number: int, tag: str = "s") -> str:
    """A name that is alive in this container."""
    return next(
        name for each in range(1000) if container_of(name := f"{tag}{each}", COUNT) == number
    )


class Gate:
    """Open, unless a test has shut it."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.waiting = 0
        self._calls: list[Callable[[], None]] = []

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()
        calls, self._calls = self._calls, []
        for call in calls:
            asyncio.get_running_loop().call_soon(call)

    def call(self, callback: Callable[[], None]) -> None:
        """Call it, once the gate is open."""
        if self._open.is_set():
            callback()
        else:
            self._calls.append(callback)

    async def passed(self) -> None:
        self.waiting += 1
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1


class World:
    """The services, and the adapters of every store on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memory = MemoryLogStore()
        self.bucket = MemoryBucket()
        self.starts = {number: Gate() for number in range(COUNT)}
        self.frames = {number: Gate() for number in range(COUNT)}
        self.closes = Gate()
        """Of logs."""
        self.uploads = Gate()
        self.refused: dict[int, Exception] = {}
        """What the opening of a log ends in."""
        self.starting: set[int] = set()
        self.starting_max = 0
        self.opened: dict[int, MemoryDataLog] = {}
        self.caches: list[MemoryCache] = []

    async def open(self, **options: Any) -> SegmentStore:
        runtime = Runtime(clock=LoopClock(), random=random.Random(1), executor=inline_executor)
        chosen = {
            **LAZY,
            "tier1": "memory",
            "tier2": "memory://world",
            "containers": COUNT,
            **options,
        }
        return SegmentStore(await open_store(str(self.folder), chosen, {}, runtime, self))

    # --- StoreAdapters ----------------------------------------------------------------------------

    def logs(
        self, tier1: str, location: str, environment: Mapping[str, str], runtime: Runtime
    ) -> MemoryLogFactory:
        assert (tier1, environment) == ("memory", {})
        return _Logs(self)

    def storage(self, url: str, runtime: Runtime) -> MemoryObjectStorage:
        assert url == "memory://world"
        return _Storage(self, runtime)

    def cache(self, location: str, config: StoreConfig, runtime: Runtime) -> MemoryCache:
        self.caches.append(MemoryCache(config.read_index.cache_bytes_max))
        return self.caches[-1]

    def key_store(
        self, directory: str, identity: KeyStoreIdentity, runtime: Runtime
    ) -> MemoryKeyStore:
        return MemoryKeyStore(directory, identity, runtime)


class _Logs(MemoryLogFactory):
    def __init__(self, world: World) -> None:
        super().__init__(world.memory)
        self._world = world

    def make_log(self, container_id: int, store_id: str, options: LogOptions) -> DurableDataLog:
        return _Log(self._world, container_id, options)


class _Log(MemoryDataLog):
    def __init__(self, world: World, container_id: int, options: LogOptions) -> None:
        super().__init__(world.memory, container_id, options.payload_bytes_max)
        self._world = world
        self._number = container_id

    async def open(self) -> None:
        world, number = self._world, self._number
        assert number not in world.opened, "one at a time"
        world.starting.add(number)
        world.starting_max = max(world.starting_max, len(world.starting))
        try:
            await world.starts[number].passed()
            if number in world.refused:
                raise world.refused[number]
            await super().open()
            world.opened[number] = self
        finally:
            world.starting.discard(number)

    def _complete(self) -> None:
        self._world.frames[self._number].call(super()._complete)

    async def close(self) -> None:
        await self._world.closes.passed()
        if self._world.opened.get(self._number) is self:
            del self._world.opened[self._number]
        await super().close()


class _Storage(MemoryObjectStorage):
    def __init__(self, world: World, runtime: Runtime) -> None:
        super().__init__(runtime, world.bucket)
        self._world = world

    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        await self._world.uploads.passed()
        await super().put(name, parts, unique_id, metadata)


def scenario(
    body: Callable[[World], Coroutine[Any, Any, None]],
) -> Callable[[Path], None]:
    """A test of a world, in virtual time."""

    def test(tmp_path: Path) -> None:
        async def main() -> None:
            world = World(tmp_path / "s")
            await body(world)
            assert world.opened == {}, "no log is left open"

        run_virtual(main())

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


NAMES = [name_in(number) for number in range(COUNT)]


async def opened(world: World, **options: Any) -> SegmentStore:
    """A store with a segment in each container that is served."""
    store = await world.open(**options)
    for number in store.served:
        await store.create_segment(NAMES[number])
        await store.append(NAMES[number], b"begin")
    return store


def state(store: SegmentStore, number: int) -> str:
    return store.stats()["container_states"][number]["state"]


async def error_of(call: Awaitable[object]) -> SegmentStoreError:
    try:
        await call
    except SegmentStoreError as error:
        return error
    raise AssertionError("it ended without an error")


def begin(call: Awaitable[object]) -> asyncio.Future[Any]:
    return asyncio.ensure_future(call)


async def settle() -> None:
    await asyncio.sleep(0.01)
