"""The archive of ledgers on real S3 servers: its contract, and what a crash leaves."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import ClassVar, Final

import pytest

from recovery.harness.services.s3_servers import (
    Moto,
    S3Proxy,
    S3Server,
    VersityGateway,
    credentials,
)
from recovery.harness.services.shared import shared_server
from segmentstore.contracts.byte_sizes import MIB
from segmentstore.contracts.ledgers import LedgerEntry
from segmentstore.contracts.runtime import Runtime
from tests.contracts.ledger_offloader_contract import (
    LEDGER,
    OTHER_UID,
    UID,
    LedgerOffloaderContract,
    entries_of,
)
from tests.support.fake_ledger import FakeLedger
from tests.support.suites import slow
from tier2.archive.archive_names import archived_data_name
from tier2.archive.object_ledger_offloader import ObjectLedgerOffloader
from tier2.object_storage import ObjectStorage
from tier2.s3.s3_location import parse_s3_url
from tier2.s3.s3_object_storage import S3ObjectStorage

BUCKET: Final = "archive"
PREFIXES: Final = itertools.count()


class S3OffloaderContract(LedgerOffloaderContract):
    # The smallest part that S3 takes.
    block_bytes = 5 * MIB
    entry_bytes = MIB
    kind: ClassVar[type[S3Server]]

    def __init_subclass__(cls, kind: type[S3Server]) -> None:
        cls.kind = kind

    @pytest.fixture(autouse=True)
    def _credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in credentials().items():
            monkeypatch.setenv(name, value)
        shared_server(self.kind).make_bucket(BUCKET)

    def make_storage(self, folder: Path) -> ObjectStorage:
        url = shared_server(self.kind).location(BUCKET, f"test-{next(PREFIXES)}")
        return S3ObjectStorage(parse_s3_url(url), Runtime())


@slow(15)
class TestOnS3Proxy(S3OffloaderContract, kind=S3Proxy):
    pass


@slow(10)
class TestOnMoto(S3OffloaderContract, kind=Moto):
    pass


if shutil.which("go"):

    @slow(10)
    class TestOnVersityGateway(S3OffloaderContract, kind=VersityGateway):
        pass


class _Hanging(FakeLedger):
    """A ledger of which the second half does not come."""

    def __init__(self, entries: Sequence[bytes]) -> None:
        super().__init__(entries, LEDGER)
        self.reached = asyncio.Event()

    async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        async for batch in super().read(first, last // 2):
            yield batch
        self.reached.set()
        await asyncio.Event().wait()


def test_what_a_crash_leaves_is_deleted_by_the_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    server = shared_server(S3Proxy)
    server.make_bucket(BUCKET)
    url = server.location(BUCKET, f"test-{next(PREFIXES)}")
    entries = [bytes([number]) * MIB for number in range(12)]

    def offloader() -> ObjectLedgerOffloader:
        return ObjectLedgerOffloader(
            S3ObjectStorage(parse_s3_url(url), Runtime()), block_bytes=5 * MIB
        )

    async def case() -> None:
        # As a process that dies: its upload is there, and no request of it follows.
        dead, other = offloader(), offloader()
        hanging = _Hanging(entries)
        work = asyncio.create_task(dead.offload(hanging, UID))
        await hanging.reached.wait()
        (left,) = await other.storage.list_unfinished()
        assert left.name == archived_data_name(LEDGER, UID)
        await other.delete_offloaded(LEDGER, UID)
        assert list(await other.storage.list_unfinished()) == []
        await other.offload(FakeLedger(entries, LEDGER), OTHER_UID)
        handle = await other.read_offloaded(LEDGER, OTHER_UID)
        assert await entries_of(handle, 0, 11) == entries
        work.cancel()
        await asyncio.wait([work])
        for each in (dead, other):
            await each.close()

    asyncio.run(case())
