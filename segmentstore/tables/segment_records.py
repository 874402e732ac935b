"""Reads of a table's segment: all records from an offset on, or those at given places (adapter).

Nothing here is proportional to the table in one turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from segmentstore.service import SegmentStore
from segmentstore.tables.table_records import (
    KeyLocation,
    MalformedRecordError,
    TableRecord,
    decode_records,
)

SLICE_BYTES: Final = 64 * 1024
"""Decoded in one turn, but for a record that is larger."""
_GAP_BYTES: Final = 4096
"""Read with what is on both sides of it."""
_RUN_BYTES: Final = 256 * 1024


async def record_slices(
    store: SegmentStore, name: str, start: int, end: int
) -> AsyncIterator[tuple[list[TableRecord], bytes]]:
    """The records from `start` to `end` in their order, a slice at a time, with the buffer they
    were decoded from.

    Both are where records begin. Raises MalformedRecordError, and as SegmentStore.read.
    """
    offset, rest = start, b""
    while offset < end:
        data = await store.read(name, offset, min(SLICE_BYTES, end - offset))
        if not data:
            break
        offset += len(data)
        buffer = rest + data if rest else data
        records, used = decode_records(buffer, offset - len(buffer))
        rest = buffer[used:]
        if records:
            yield records, buffer
            # A read of what is in memory does not wait.
            await asyncio.sleep(0)
    if rest:
        raise MalformedRecordError(offset - len(rest), f"it ends at {offset}")


async def read_exactly(store: SegmentStore, name: str, offset: int, length: int) -> bytes:
    """So many bytes, all of which were acknowledged. Raises as SegmentStore.read."""
    data = await store.read(name, offset, length)
    while len(data) < length:
        more = await store.read(name, offset + len(data), length - len(data))
        if not more:
            break
        data += more
    return data


async def read_places(
    store: SegmentStore, name: str, locations: Sequence[KeyLocation]
) -> dict[int, bytes]:
    """The bytes of records, by their offset. Neighbours are read together."""
    found: dict[int, bytes] = {}
    for run in runs_of(locations):
        start = run[0].offset
        data = await read_exactly(store, name, start, run[-1].offset + run[-1].length - start)
        for offset, length, _ in run:
            found[offset] = data[offset - start : offset - start + length]
    return found


def runs_of(locations: Sequence[KeyLocation]) -> list[list[KeyLocation]]:
    """Records by their offset, those together that one read brings."""
    runs: list[list[KeyLocation]] = []
    end = start = 0
    for location in sorted(set(locations)):
        if (
            not runs
            or location.offset > end + _GAP_BYTES
            or location.offset + location.length > start + _RUN_BYTES
        ):
            runs.append([])
            start = location.offset
        runs[-1].append(location)
        end = location.offset + location.length
    return runs
