"""A caller that is cancelled leaves its work to go on. If that fails, asyncio complains of it to no
log.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

import segmentstore
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.operations import DeletionClockOperation
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import note_end

ERROR = RuntimeError("the bug of a test")


def complaints_of(case: Callable[[], Awaitable[None]]) -> list[str]:
    """What asyncio says of futures that were left alone."""
    said: list[str] = []

    async def body() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append(context["message"]))
        await case()
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(body())
    return said


async def begin_and_cancel(work: Awaitable[object]) -> None:
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # `shield` forgets it in the next turn.
    await asyncio.sleep(0)


@pytest.mark.parametrize("noted", [False, True])
def test_asyncio_complains_of_what_is_shielded_unless_its_end_is_noted(noted: bool) -> None:
    async def case() -> None:
        future = asyncio.get_running_loop().create_future()
        if noted:
            future.add_done_callback(note_end)
        await begin_and_cancel(asyncio.shield(future))
        future.set_exception(ERROR)
        await asyncio.sleep(0)

    assert len(complaints_of(case)) == (0 if noted else 1)


def test_the_end_of_what_was_cancelled_itself_may_be_noted() -> None:
    async def case() -> None:
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(note_end)
        future.cancel()
        await asyncio.sleep(0)

    assert complaints_of(case) == []


def test_a_commit_of_the_storage_writer_may_fail_behind_it(tmp_path: Path) -> None:
    async def case() -> None:
        async with segmentstore.open(tmp_path / "store", containers=1) as store:
            (container,) = store._parts.containers
            source = container._writer._source
            await begin_and_cancel(source.commit(DeletionClockOperation(0, b"", 0, 0)))
            container._failed(ERROR)

    assert complaints_of(case) == []


def test_a_reading_of_the_catalog_may_fail_behind_it(tmp_path: Path) -> None:
    begun, gate = threading.Event(), threading.Event()

    class GatedKeyStore(RocksDbKeyStore):
        def _get(self, keys: Sequence[bytes]) -> list[bytes | None]:
            if keys == [b"key"]:
                begun.set()
                gate.wait()
                raise ERROR
            return super()._get(keys)

    async def case() -> None:
        store = GatedKeyStore(str(tmp_path), KeyStoreIdentity("0" * 32, 0), Runtime())
        await store.open()
        await begin_and_cancel(store.get([b"key"]))
        await asyncio.to_thread(begun.wait)
        gate.set()
        await store.close()

    assert complaints_of(case) == []
