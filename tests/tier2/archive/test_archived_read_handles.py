"""Archived ledgers against the contract of read handles: as those in bookies, files and memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from recovery.harness.services.s3_servers import S3Proxy, credentials
from recovery.harness.services.shared import shared_server
from segmentstore.contracts.byte_sizes import MIB
from segmentstore.contracts.ledgers import ReadHandle
from segmentstore.contracts.runtime import Runtime
from tests.contracts.ledger_offloader_contract import LEDGER, UID
from tests.contracts.read_handle_contract import HandleWorld, ReadHandleContract
from tests.support.fake_ledger import FakeLedger, pulsar_payload
from tests.support.suites import slow
from tier2.archive.archive_names import archived_data_name
from tier2.archive.object_ledger_offloader import ObjectLedgerOffloader
from tier2.file_object_storage import FileObjectStorage
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_storage import ObjectStorage
from tier2.s3.s3_location import parse_s3_url
from tier2.s3.s3_object_storage import S3ObjectStorage

SIZES = (1, 100, 0, 5_000, 300, 17, 5_001)
LARGE = 40_000
"""More than what is read at once."""


class ArchivedWorld(HandleWorld):
    def __init__(self, offloader: ObjectLedgerOffloader, read_bytes: int) -> None:
        self.offloader = offloader
        self.batch_bytes_max = read_bytes
        self.entries = [
            pulsar_payload(each, LARGE if each == 30 else SIZES[each % len(SIZES)])
            for each in range(90)
        ]

    async def open(self) -> ReadHandle:
        return await self.offloader.read_offloaded(LEDGER, UID)

    async def damage(self, entry: int) -> bool:
        storage, name = self.offloader.storage, archived_data_name(LEDGER, UID)
        whole = await storage.get_whole(name, 64 * MIB)
        data = bytearray(whole.data)
        header = len(self.entries[entry]).to_bytes(4, "big") + entry.to_bytes(8, "big")
        data[data.index(header + self.entries[entry]) + 11] ^= 64
        await storage.delete(name)
        await storage.put(name, [data], UID, whole.metadata)
        return True

    async def delete(self) -> bool:
        await self.offloader.delete_offloaded(LEDGER, UID)
        return True


class TestArchivedInMemory(ReadHandleContract):
    block_bytes: ClassVar[int] = 60_000
    mapping_bytes: ClassVar[int | None] = 8192

    def storage(self, folder: Path) -> ObjectStorage:
        return MemoryObjectStorage(Runtime())

    def make_world(self, tmp_path: Path) -> AbstractAsyncContextManager[HandleWorld]:
        @asynccontextmanager
        async def world() -> AsyncIterator[HandleWorld]:
            offloader = ObjectLedgerOffloader(
                self.storage(tmp_path),
                block_bytes=self.block_bytes,
                mapping_bytes=self.mapping_bytes,
                read_bytes=16_384,
            )
            made = ArchivedWorld(offloader, 16_384)
            await offloader.offload(FakeLedger(made.entries, LEDGER), UID)
            yield made
            await offloader.close()

        return world()


class TestArchivedAsPulsarDoes(TestArchivedInMemory):
    """Without mappings inside blocks."""

    mapping_bytes: ClassVar[int | None] = None


class TestArchivedInAFolder(TestArchivedInMemory):
    def storage(self, folder: Path) -> ObjectStorage:
        return FileObjectStorage(str(folder / "archive"), Runtime())


@slow(5)
class TestArchivedOnS3(TestArchivedInMemory):
    block_bytes = 5 * MIB

    @pytest.fixture(autouse=True)
    def _server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in credentials().items():
            monkeypatch.setenv(name, value)
        shared_server(S3Proxy).make_bucket("read-handles")

    def storage(self, folder: Path) -> ObjectStorage:
        url = shared_server(S3Proxy).location("read-handles", folder.name)
        return S3ObjectStorage(parse_s3_url(url), Runtime())
