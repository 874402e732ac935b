"""Compaction of a table: copies what lives from the beginning of its segment to the end, and
truncates.

So a table has at most as many dead bytes as live ones, above DEAD_BYTES_MIN, and an index is built
again in time that is bounded by what lives. A copy keeps the version that its record had.

An update that is made meanwhile is never lost. A record is copied only if it is the newest of its
key in what is pending. Nothing is awaited between that check and the append, and what is appended
later is behind the copy. The segment is truncated when all copies are durable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from segmentstore.service import SegmentStore
from segmentstore.tables.segment_records import record_slices
from segmentstore.tables.table_pipeline import TablePipeline
from segmentstore.tables.table_records import REMOVAL, TableRecord, copy_length

DEAD_BYTES_MIN: Final = 1024 * 1024
"""Not compacted below that."""
_TRUNCATED_BYTES: Final = 1024 * 1024
"""Truncated at once: a truncation is an operation in the log."""


def is_due(dead_bytes: int, live_bytes: int, dead_bytes_min: int) -> bool:
    """Whether a table is to be compacted."""
    return dead_bytes > max(live_bytes, dead_bytes_min)


def is_enough(dead_bytes: int, live_bytes: int, dead_bytes_min: int) -> bool:
    """Whether a compaction has done enough: each one frees a share of what lives, so that the bytes
    copied are bounded by the bytes written.
    """
    return dead_bytes <= max(live_bytes, dead_bytes_min) // 2


async def compact(
    store: SegmentStore, pipeline: TablePipeline, start_offset: int, dead_bytes_min: int
) -> int:
    """Compact a table whose segment begins at `start_offset`; where it begins then.

    Raises StaleTableError, IndexFailedError, and as SegmentStore.read, append and truncate. What
    was copied by then is right.
    """
    table = pipeline.table
    end = table.index.end
    position = start_offset
    async for records, data in record_slices(store, table.name, start_offset, end):
        for part in parts_of(records, store.config.append_bytes_max):
            await pipeline.copy(part, data)
        position = records[-1].location.offset + records[-1].location.length
        index = table.index
        dead_bytes = index.end - position - index.live_bytes
        enough = is_enough(dead_bytes, index.live_bytes, dead_bytes_min)
        if enough or position - start_offset >= _TRUNCATED_BYTES:
            pipeline.check_held()
            await store.truncate(table.name, position)
            start_offset = position
        if enough:
            return start_offset
    pipeline.check_held()
    await store.truncate(table.name, position)
    return position


def parts_of(records: Sequence[TableRecord], bytes_max: int) -> Iterator[list[TableRecord]]:
    """The puts and copies among them, in parts whose copies fit one append each."""
    part: list[TableRecord] = []
    room = bytes_max
    for record in records:
        if record.kind == REMOVAL:
            continue
        length = copy_length(record.key, record.value_end - record.value_start)
        if part and length > room:
            yield part
            part, room = [], bytes_max
        part.append(record)
        room -= length
    if part:
        yield part
