"""The archive of ledgers: its contract in memory and in folders, and the one that refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from segmentstore.contracts.runtime import Runtime
from tests.contracts.ledger_offloader_contract import LEDGER, UID, LedgerOffloaderContract
from tests.support.fake_ledger import FakeLedger
from tier2.archive.ledger_offloader import ArchiveDisabledError, NullLedgerOffloader
from tier2.file_object_storage import FileObjectStorage
from tier2.fsspec_object_storage import FsspecObjectStorage
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_storage import ObjectStorage


class TestInMemory(LedgerOffloaderContract):
    def make_storage(self, folder: Path) -> ObjectStorage:
        return MemoryObjectStorage(Runtime())


class TestInAFolder(LedgerOffloaderContract):
    def make_storage(self, folder: Path) -> ObjectStorage:
        return FileObjectStorage(str(folder / "archive"), Runtime())


class TestOnFsspec(LedgerOffloaderContract):
    def make_storage(self, folder: Path) -> ObjectStorage:
        return FsspecObjectStorage(f"memory://{folder}", Runtime())


def test_a_store_without_an_archive_refuses_every_call() -> None:
    async def case() -> None:
        offloader = NullLedgerOffloader()
        for call in (
            offloader.offload(FakeLedger([b"1"]), UID),
            offloader.read_offloaded(LEDGER, UID),
            offloader.delete_offloaded(LEDGER, UID),
        ):
            with pytest.raises(ArchiveDisabledError, match="archive"):
                await call
        await offloader.close()

    asyncio.run(case())
