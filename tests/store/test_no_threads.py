"""A store where the system begins no more threads: RLIMIT_NPROC, or `pids.max` of a container."""

from __future__ import annotations

import gc
import os
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from segmentstore import blocking
from segmentstore.contracts import rocksdb_process
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY
from tests.store.harness import open_tiny, run, until

DATA = b"0123456789" * 300
MANY = 60
"""More threads than an opening begins."""


def no_thread_for(executor: str) -> AbstractContextManager[object]:
    return pytest.raises(TierUnavailableError, match=f"no thread for '{executor}'")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class Limit:
    """Threads of this process that still begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        start = threading.Thread.start

        def limited(thread: threading.Thread) -> None:
            if self.left is not None:
                if not self.left:
                    raise RuntimeError("can't start new thread")
                self.left -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    return Limit(monkeypatch)


def test_an_open_store_needs_none(tmp_path: Path, limit: Limit) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", archive="file://" + str(tmp_path / "a")) as store:
            limit.left = 0
            for name in ("a", "b"):
                await store.create_segment(name)
                await store.append(name, DATA)
            await store.flush()
            await store.checkpoint()
            assert b"".join([piece async for piece in store.reader("a")]) == DATA
            await store.merge("a", "b")
            await store.flush()
        limit.left = None
        async with open_tiny(tmp_path / "s") as store:
            assert (await store.get_info("a")).length == 2 * len(DATA)

    run(main())


def test_an_opening_says_that_there_is_none_and_leaves_nothing(
    tmp_path: Path, limit: Limit
) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await store.create_segment("a")
            await store.append("a", DATA)
        running, files = threading.active_count(), open_files()
        limit.left = MANY
        store = await open_tiny(tmp_path / "s")
        begun = MANY - limit.left
        await store.close()
        assert begun > 5
        for left in (0, 1, begun // 2):
            limit.left = left
            with pytest.raises(TierUnavailableError, match="no thread"):
                await open_tiny(tmp_path / "s")
            # Those of what was not opened whole end as it is dropped.
            gc.collect()
            await until(lambda: threading.active_count() <= running)
            assert open_files() <= files
        limit.left = None
        async with open_tiny(tmp_path / "s") as store:
            assert await store.read("a", 0, 10) == DATA[:10]

    run(main())


def test_a_blocking_store_says_so_too(tmp_path: Path, limit: Limit) -> None:
    limit.left = 0
    with no_thread_for("segmentstore"):
        blocking.open(tmp_path / "s")
    limit.left = None
    with blocking.open(tmp_path / "s") as store:
        store.create_segment("a")


def test_rocksdb_is_not_opened_where_it_would_end_the_process(
    tmp_path: Path, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of a thread of its own."""

    async def main() -> None:
        for left in (4, None):
            limit.left = left
            monkeypatch.setattr(rocksdb_process, "_has_threads", False)
            keys = RocksDbKeyStore(str(tmp_path / "keys"), IDENTITY, Runtime())
            with nullcontext() if left is None else no_thread_for("keys"):
                await keys.open()
            limit.left = None
            await keys.close()

    run(main())
