"""What a task reads back of the object it wrote, before it proposes it: the beginnings of its
blocks.

A beginning is header and extent table: whose bytes the block holds, and the checksum of each
extent, as they were reckoned when it was built. An object that has the same beginnings has the
bytes of this attempt, or some that the next read finds to be wrong. The owner, which reads no
bodies either, cannot know as much: it does not know the checksums.

Coroutines over ObjectStorage and Runtime; no pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tier2.checked_fetches import fetch_checked
from tier2.object_builder import BlockBeginning
from tier2.object_storage import ObjectStorage
from tier2.spark.compact.sources import several, with_retries

WINDOW_BYTES: Final = 1024 * 1024
"""Most bytes that one GET fetches, but for a beginning that is longer."""
GAP_BYTES: Final = 64 * 1024
"""Bytes of bodies that are fetched rather than make another request."""
WINDOWS_AT_ONCE: Final = 16


class _Window(NamedTuple):
    """Bytes [start, end) of the object, and the beginnings in them."""

    start: int
    end: int
    beginnings: tuple[BlockBeginning, ...]


async def check_written(
    storage: ObjectStorage, runtime: Runtime, name: str, beginnings: Iterable[BlockBeginning]
) -> None:
    """Raise DataCorruptionError unless these, in the order of their places, are in the object of
    this name.

    Another beginning is fetched anew before it counts. Also raises ObjectNotFoundError,
    InvalidRangeError, StorageUnavailableError.
    """

    async def check_once(window: _Window) -> None:
        data = await with_retries(
            runtime, lambda: storage.get_range(name, window.start, window.end - window.start)
        )
        for place, built in window.beginnings:
            if data[place - window.start : place - window.start + len(built)] != built:
                raise DataCorruptionError(
                    f"object {name} block at {place}",
                    "its header and extent table are not those that were just written",
                )

    async def check(window: _Window) -> None:
        await fetch_checked(partial(check_once, window), DataCorruptionError)

    await several(check, _windows(beginnings), WINDOWS_AT_ONCE)


def _windows(beginnings: Iterable[BlockBeginning]) -> list[_Window]:
    windows: list[_Window] = []
    held: list[BlockBeginning] = []
    start = end = 0
    for each in beginnings:
        each_end = each.block_offset + len(each.data)
        if held and (each.block_offset - end > GAP_BYTES or each_end - start > WINDOW_BYTES):
            windows.append(_Window(start, end, tuple(held)))
            held = []
        if not held:
            start = each.block_offset
        end = each_end
        held.append(each)
    if held:
        windows.append(_Window(start, end, tuple(held)))
    return windows
