"""The steps of an opening: a failure and a close undo in reverse what each step has opened."""

from __future__ import annotations

import asyncio
import gc
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.durable_data_log import DurableDataLog
from durablelog.durable_data_log_factory import LogOptions, StoreIdentity
from durablelog.file.file_log import FileLog
from durablelog.file.file_log_factory import FileLogFactory
from readindex.memory_cache import MemoryCache
from segmentstore.config import StoreConfig
from segmentstore.contracts.errors import StoreInUseError, TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store
from segmentstore.service import SegmentStore
from segmentstore.store_folder import log_directory, logs_folder, write_store_file
from tests.store.harness import LAZY, read_all, run
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage

ALL: Final = ["log 0", "cache", "storage", "tier1"]
"""What is closed of a store that was open, in this order; its lock comes last."""


class Adapters:
    """Parts that write down their ends, and fail where they are asked to."""

    def __init__(self) -> None:
        self.breaks = ""
        self.hangs = ""
        self.overtaken_with = ""
        """The `tier1` of another process that makes the store first: the lock was lost."""
        self.closed: list[str] = []
        self.bucket = MemoryBucket()

    def reached(self, call: str) -> None:
        if call == self.breaks:
            raise TierUnavailableError("tier1", call)

    async def hang(self, call: str) -> None:
        if call == self.hangs:
            loop = asyncio.get_running_loop()
            loop.stop()
            await loop.create_future()

    def logs(
        self, tier1: str, location: str, environment: Mapping[str, str], runtime: Runtime
    ) -> FileLogFactory:
        assert (tier1, environment) == ("file", {})
        return _Logs(self, location, runtime)

    def storage(self, url: str, runtime: Runtime) -> MemoryObjectStorage:
        assert url == "memory://opened"
        self.reached("storage")
        return _Storage(self, runtime)

    def cache(self, location: str, config: StoreConfig, runtime: Runtime) -> MemoryCache:
        return _Cache(self, config.read_index.cache_bytes_max)

    def key_store(
        self, directory: str, identity: KeyStoreIdentity, runtime: Runtime
    ) -> MemoryKeyStore:
        return MemoryKeyStore(directory, identity, runtime)


class _Logs(FileLogFactory):
    def __init__(self, adapters: Adapters, location: str, runtime: Runtime) -> None:
        super().__init__(logs_folder(location), runtime)
        self._adapters = adapters
        self._location = location

    async def open(self) -> None:
        self._adapters.reached("tier1")

    async def close(self) -> None:
        self._adapters.closed.append("tier1")

    def abandon(self) -> None:
        self._adapters.closed.append("tier1 abandoned")

    async def make_or_join_store(self, wished: StoreIdentity) -> tuple[StoreIdentity, bool]:
        self._adapters.reached("identity")
        if self._adapters.overtaken_with:
            other = StoreConfig(tier1=self._adapters.overtaken_with, tier2="memory://opened")
            write_store_file(self._location, str(uuid.uuid4()), other, Runtime(), "other")
        return await super().make_or_join_store(wished)

    async def confirm_store(self, identity: StoreIdentity) -> bool:
        self._adapters.reached("confirmation")
        return await super().confirm_store(identity)

    def make_log(self, container_id: int, store_id: str, options: LogOptions) -> DurableDataLog:
        assert store_id
        return _Log(
            self._adapters, log_directory(self._location, container_id), container_id, options
        )


class _Log(FileLog):
    def __init__(
        self, adapters: Adapters, folder: str, container_id: int, options: LogOptions
    ) -> None:
        super().__init__(
            folder,
            container_id,
            Runtime(),
            file_bytes=options.file_bytes,
            payload_bytes_max=options.payload_bytes_max,
        )
        self._adapters = adapters

    async def open(self) -> None:
        self._adapters.reached("log")
        await super().open()
        await self._adapters.hang("log")

    async def close(self) -> None:
        self._adapters.closed.append("log 0")
        await super().close()


class _Storage(MemoryObjectStorage):
    def __init__(self, adapters: Adapters, runtime: Runtime) -> None:
        super().__init__(runtime, adapters.bucket)
        self._adapters = adapters

    async def close(self) -> None:
        self._adapters.closed.append("storage")
        await super().close()


class _Cache(MemoryCache):
    def __init__(self, adapters: Adapters, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self._adapters = adapters

    async def open(self) -> None:
        self._adapters.reached("cache")
        await self._adapters.hang("cache")
        await super().open()

    async def close(self) -> None:
        self._adapters.closed.append("cache")
        await super().close()


async def opened(folder: Path, adapters: Adapters) -> SegmentStore:
    options = {**LAZY, "tier2": "memory://opened"}
    return SegmentStore(await open_store(str(folder), options, {}, Runtime(), adapters))


def test_a_close_undoes_the_steps_in_reverse(tmp_path: Path) -> None:
    async def main() -> None:
        adapters = Adapters()
        for _ in range(2):
            adapters.closed.clear()
            store = await opened(tmp_path / "s", adapters)
            assert adapters.closed == []
            await store.close()
            assert list(dict.fromkeys(adapters.closed)) == ALL

    run(main())


@pytest.mark.parametrize(
    ("breaks", "again", "closed"),
    [
        ("tier1", False, []),
        ("tier1", True, []),
        ("identity", False, ["tier1"]),
        ("storage", False, ["tier1"]),
        ("storage", True, ["tier1"]),
        ("confirmation", False, ["cache", "storage", "tier1"]),
        ("confirmation", True, ["cache", "storage", "tier1"]),
        ("cache", False, ["cache", "storage", "tier1"]),
        ("log", False, ALL),
        ("log", True, ALL),
    ],
)
def test_an_opening_that_fails_undoes_what_it_had_done(
    tmp_path: Path, breaks: str, closed: list[str], *, again: bool
) -> None:
    async def main() -> None:
        adapters, folder = Adapters(), tmp_path / "s"
        if again:
            async with await opened(folder, adapters) as store:
                await store.create_segment("a")
                await store.append("a", b"kept")
            adapters.closed.clear()
        adapters.breaks = breaks
        with pytest.raises(TierUnavailableError, match=f"{breaks}$"):
            await opened(folder, adapters)
        assert list(dict.fromkeys(adapters.closed)) == closed
        if not again and breaks in {"tier1", "identity"}:
            assert not folder.exists(), "no store was made, and no folder is left"
        adapters.breaks = ""
        async with await opened(folder, adapters) as store:
            if again:
                assert await read_all(store, "a") == b"kept"

    run(main())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("hangs", ["cache", "log"])
def test_an_opening_that_ends_with_its_event_loop_keeps_no_owner_out(
    tmp_path: Path, hangs: str
) -> None:
    adapters, folder = Adapters(), tmp_path / "s"
    adapters.hangs = hangs
    loop = asyncio.new_event_loop()
    opening = loop.create_task(opened(folder, adapters))
    loop.run_forever()
    loop.close()
    del opening
    gc.collect()
    assert adapters.closed == ["tier1 abandoned"], "nothing was awaited"
    adapters.hangs = ""

    async def main() -> None:
        await (await opened(folder, adapters)).close()

    run(main())


@pytest.mark.parametrize("tier1", ["memory", "bookkeeper://127.0.0.1:2181/other"])
def test_a_store_that_was_created_meanwhile_with_other_logs_is_not_opened_with_these(
    tmp_path: Path, tier1: str
) -> None:
    async def main() -> None:
        adapters, folder = Adapters(), tmp_path / "s"
        adapters.overtaken_with = tier1
        with pytest.raises(StoreInUseError, match="has just made the store"):
            await opened(folder, adapters)
        assert adapters.closed == ["tier1"]

    run(main())
    assert sorted(os.listdir(tmp_path / "s")) == ["lock", "store.toml"]


def test_a_store_that_was_created_meanwhile_is_opened(tmp_path: Path) -> None:
    async def main() -> None:
        adapters = Adapters()
        adapters.overtaken_with = "file"
        async with await opened(tmp_path / "s", adapters) as store:
            await store.create_segment("a")

    run(main())
