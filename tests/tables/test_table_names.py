"""Reads of a table that is deleted, and whose name another one has, while they go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from segmentstore import SegmentNotFoundError
from segmentstore.service import SegmentStore
from segmentstore.tables import segment_records
from segmentstore.tables.open_tables import TableLimits
from segmentstore.tables.table_service import TableService
from segmentstore.tables.table_types import NO_VERSION
from tests.tables.harness import with_tables


@pytest.mark.parametrize("count", [0, 20], ids=["empty", "alike"])
def test_a_delta_beside_a_deletion_is_of_one_table(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    read = SegmentStore.read

    async def slow(store: SegmentStore, *arguments: Any) -> bytes:
        await asyncio.sleep(0.01)
        return await read(store, *arguments)

    def values(number: int, value: bytes) -> list[tuple[bytes, int, bytes]]:
        return [(b"%02d" % each, NO_VERSION, value) for each in range(number)]

    async def work(tables: TableService, store: SegmentStore) -> None:
        pages = 0
        for delay in range(20):
            await tables.create("t")
            await tables.update("t", values(20, b"former"))
            reading = asyncio.create_task(tables.delta("t", 0, 100))
            await asyncio.sleep(0.01 * delay)
            await tables.delete("t")
            await tables.create("t")
            if count:
                await tables.update("t", values(count, b"latter"))
            try:
                page = await reading
            except SegmentNotFoundError:
                pass
            else:
                pages += 1
                assert len({entry.value for entry in page.entries}) <= 1
            await tables.delete("t")
        assert pages

    monkeypatch.setattr(SegmentStore, "read", slow)
    monkeypatch.setattr(segment_records, "SLICE_BYTES", 60)
    with_tables(work, TableLimits(dead_bytes_min=1 << 30))
