"""What is left of a table that could not be opened: nothing for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from segmentstore import SegmentNotFoundError
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.service import SegmentStore
from segmentstore.tables.errors import NotATableError
from segmentstore.tables.table_service import TableService
from tests.tables.harness import with_tables


@pytest.mark.parametrize("kind", [SegmentNotFoundError, NotATableError])
def test_the_error_is_freed_with_its_caller(kind: type[SegmentStoreError]) -> None:
    async def refused(tables: TableService) -> weakref.ref[BaseException]:
        try:
            await tables.get("t", [b"key"])
        except kind as error:
            return weakref.ref(error)
        raise AssertionError

    async def work(tables: TableService, store: SegmentStore) -> None:
        if kind is NotATableError:
            await store.create_segment("t")
        gc.collect()
        gc.disable()
        try:
            error = await refused(tables)
            await asyncio.sleep(0)
            assert error() is None
        finally:
            gc.enable()

    with_tables(work)
