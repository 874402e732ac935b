"""The door to the engine: the part of its public API the benches use, and how to inspect its
numbers.

The engine is imported when a store is opened, not before: floor and skeleton run in processes that
never load more of it than its contracts.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, cast

from bench.workspace import BenchError
from segmentstore.contracts.checksum import crc32c

SEGMENT = "bench/segment"
_SETTLED_S = 3.0
"""Without a consolidation for so long, there is none to come: searches are a second apart."""


class Reader(Protocol):
    """Chunks of a segment in order; `offset` is where the next one begins."""

    @property
    def offset(self) -> int:
        """Where the next chunk begins."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The reader itself."""

    async def __anext__(self) -> bytes:
        """The next chunk."""


class Store(Protocol):
    """What the benches call of `segmentstore.SegmentStore`."""

    async def create_segment(self, name: str) -> object:
        """Make a segment."""

    def append(
        self, name: str, data: bytes, *, expected_offset: int | None = None
    ) -> Awaitable[int]:
        """Enqueue when called; the awaitable gives the offset."""

    def append_batch(self, name: str, data: Sequence[bytes]) -> Awaitable[int]:
        """Enqueue a batch when called; the awaitable gives the first offset."""

    def reader(self, name: str, *, offset: int = 0, follow: bool = False) -> Reader:
        """Iterate over the bytes."""

    async def flush(self, name: str | None = None) -> None:
        """Everything acknowledged is in Tier 2 when this returns."""

    async def checkpoint(self) -> None:
        """Checkpoint and truncate the log."""

    def stats(self) -> object:
        """Numbers, by container and part."""

    async def close(self) -> None:
        """Stop."""


def open_store(location: Path, **options: object) -> AbstractAsyncContextManager[Store]:
    """`segmentstore.open(location, **options)`: to be entered with `async with`, or awaited."""
    opened = importlib.import_module("segmentstore").open(str(location), **options)
    return cast("AbstractAsyncContextManager[Store]", opened)


async def flush_and_settle(store: Store) -> None:
    """Have all bytes in Tier 2, in the objects in which they stay: a consolidation would read and
    write beside what is measured next. Takes some seconds.
    """
    await store.flush()
    joined = -1
    while joined != (found := sum_of(store.stats(), "storage_writer", "consolidations")):
        joined = found
        await asyncio.sleep(_SETTLED_S)
    await store.checkpoint()


async def read_through(store: Store, name: str, length: int, checksum: int) -> tuple[float, float]:
    """Read a segment from its beginning to its tail; seconds to there, and to its first bytes.

    BenchError if it has others than these.
    """
    received = found = 0
    begun = time.perf_counter()
    first: float | None = None
    async for data in store.reader(name, offset=0):
        first = first or time.perf_counter() - begun
        found = crc32c(data, found)
        received += len(data)
    seconds = time.perf_counter() - begun
    if (received, found) != (length, checksum):
        message = (
            f"{name}: {received:,} bytes with CRC {found:08x}, not {length:,} with {checksum:08x}"
        )
        raise BenchError(message)
    return seconds, first or 0.0


def sum_of(stats: object, part: str, name: str) -> int:
    """Sum over `stats` of all numbers `name` that stand directly in a part called `part`, however
    deep it lies.

    Raises BenchError if there is none: a figure that is not there must not read as 0.
    """
    found = [value for path, value in _numbers(stats) if path[-2:] == (part, name)]
    if not found:
        there = sorted({".".join(path[-2:]) for path, _ in _numbers(stats)})
        message = f"store.stats() has no number {part}.{name}; it has {', '.join(there)}"
        raise BenchError(message)
    return sum(found)


def _numbers(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield path, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _numbers(inner, (*path, str(name)))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _numbers(getattr(value, field.name), (*path, field.name))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _numbers(inner, path)
