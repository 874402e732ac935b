"""Pulsar's own offloader reads what we archive, and we read what it archives, byte by byte."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

import segmentstore
from recovery.harness.services.pulsar_offloader import PulsarOffloader, WitnessError
from recovery.harness.services.s3_servers import (
    ACCESS_KEY,
    SECRET_KEY,
    S3Proxy,
    S3Server,
    VersityGateway,
    credentials,
)
from recovery.harness.services.shared import shared_server
from segmentstore.contracts.byte_sizes import MIB
from segmentstore.contracts.runtime import Runtime
from tests.contracts.ledger_offloader_contract import entries_of
from tests.support.fake_ledger import FakeLedger, pulsar_ledger
from tests.support.suites import slow
from tier2.archive.archive_names import (
    archived_data_name,
    archived_index_name,
    parse_archived_name,
)
from tier2.archive.data_block import BLOCK_HEADER_BYTES, ENTRY_HEADER_BYTES
from tier2.archive.index_block import parse_index
from tier2.archive.object_ledger_offloader import ObjectLedgerOffloader
from tier2.s3.s3_location import parse_s3_url
from tier2.s3.s3_object_storage import S3ObjectStorage

BUCKET: Final = "pulsar-witness"
OURS: Final = uuid.UUID(int=1)
THEIRS: Final = uuid.UUID(int=2)
LEDGER: Final = 7
BROKEN_CONNECTION: Final = "Error writing request body to server"
SERVERS: Final = (S3Proxy, VersityGateway) if shutil.which("go") else (S3Proxy,)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def pulsar(request: pytest.FixtureRequest) -> Iterator[PulsarOffloader]:
    server = shared_server(request.param)
    server.make_bucket(BUCKET)
    with PulsarOffloader(server.url, BUCKET, ACCESS_KEY, SECRET_KEY) as started:
        yield started


def digest_of(entries: Sequence[bytes]) -> str:
    """As the program around Pulsar's offloader makes it."""
    digest = hashlib.sha256()
    for number, entry in enumerate(entries):
        digest.update(number.to_bytes(8, "big") + len(entry).to_bytes(4, "big") + entry)
    return digest.hexdigest()


def run(
    server: type[S3Server],
    block_bytes: int,
    case: Callable[[ObjectLedgerOffloader], Awaitable[None]],
    mapping_bytes: int | None = None,
) -> None:
    async def body() -> None:
        storage = S3ObjectStorage(parse_s3_url(shared_server(server).location(BUCKET)), Runtime())
        offloader = ObjectLedgerOffloader(
            storage, block_bytes=block_bytes, mapping_bytes=mapping_bytes
        )
        try:
            for uid in (OURS, THEIRS):
                await offloader.delete_offloaded(LEDGER, uid.bytes)
            await case(offloader)
        finally:
            await offloader.close()

    asyncio.run(body())


async def offload_by_pulsar(
    pulsar: PulsarOffloader, offloader: ObjectLedgerOffloader, rule: str, block_bytes: int
) -> None:
    """As a broker does it: Pulsar's client does not repeat a part whose connection broke, so the
    whole ledger is offloaded again.
    """
    for _ in range(2):
        try:
            await asyncio.to_thread(pulsar.ask, "offload", THEIRS, LEDGER, rule, block_bytes)
        except WitnessError as error:
            if BROKEN_CONNECTION not in str(error):
                raise
            await offloader.delete_offloaded(LEDGER, THEIRS.bytes)
        else:
            return
    await asyncio.to_thread(pulsar.ask, "offload", THEIRS, LEDGER, rule, block_bytes)


async def both_ways(
    pulsar: PulsarOffloader, offloader: ObjectLedgerOffloader, rule: str, block_bytes: int
) -> None:
    ledger = pulsar_ledger(rule, LEDGER)
    count, last = len(ledger.entries), ledger.last_entry
    await offloader.offload(ledger, OURS.bytes, {"managedledgername": "ours"})
    answer = await asyncio.to_thread(pulsar.ask, "read", OURS, LEDGER)
    assert list(answer) == [
        *(str(count), str(ledger.length), digest_of(ledger.entries)),
        *(str(last), str(ledger.length), "true", "1700000000000", "CRC32C", "application"),
    ]
    await offload_by_pulsar(pulsar, offloader, rule, block_bytes)
    handle = await offloader.read_offloaded(LEDGER, THEIRS.bytes)
    assert handle.metadata == ledger.metadata
    assert await entries_of(handle, 0, last) == ledger.entries
    for entry in (0, count // 3, last):
        assert await entries_of(handle, entry, entry) == [ledger.entries[entry]]
    storage = offloader.storage
    for name in (archived_data_name, archived_index_name):
        ours, theirs = [
            await storage.get_whole(name(LEDGER, uid.bytes), 256 * MIB) for uid in (OURS, THEIRS)
        ]
        assert ours.data == theirs.data
        keys = ("role", "s3managedledgeroffloaderformatversion")
        assert [ours.metadata[key] for key in keys] == [theirs.metadata[key] for key in keys]
        assert theirs.metadata["managedledgername"] == "witness"
    await asyncio.to_thread(pulsar.ask, "delete", OURS, LEDGER)
    await offloader.delete_offloaded(LEDGER, THEIRS.bytes)
    assert [page async for page in storage.list()] == []


@pytest.mark.parametrize("pulsar", [S3Proxy], indirect=True)
def test_pulsar_reads_and_writes_the_same_objects(pulsar: PulsarOffloader) -> None:
    golden = ["185", "6d09db6c92823f00", "116", "454366c8507ca095"]
    assert [word[:16] for word in pulsar.ask("local", "small3", 5 * MIB)] == golden
    run(S3Proxy, 5 * MIB, lambda offloader: both_ways(pulsar, offloader, "small3", 5 * MIB))


@slow(20)
@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("rule", ["mix", "large"])
def test_ten_thousand_entries_of_up_to_a_mebibyte(kind: type[S3Server], rule: str) -> None:
    block_bytes = 5 * MIB if rule == "mix" else 16 * MIB
    server = shared_server(kind)
    server.make_bucket(BUCKET)
    with PulsarOffloader(server.url, BUCKET, ACCESS_KEY, SECRET_KEY) as pulsar:
        run(kind, block_bytes, lambda offloader: both_ways(pulsar, offloader, rule, block_bytes))


@slow(10)
@pytest.mark.parametrize("pulsar", [SERVERS[-1]], indirect=True)
def test_pulsar_reads_through_an_index_with_mappings_inside_blocks(
    pulsar: PulsarOffloader,
) -> None:
    async def case(offloader: ObjectLedgerOffloader) -> None:
        ledger = pulsar_ledger("mix", LEDGER)
        await offloader.offload(ledger, OURS.bytes)
        index = await offloader.storage.get_whole(archived_index_name(LEDGER, OURS.bytes), 64 * MIB)
        assert len(parse_index(index.data)) > 4 * 4
        answer = await asyncio.to_thread(pulsar.ask, "read", OURS, LEDGER)
        assert answer[:3] == [
            str(len(ledger.entries)),
            str(ledger.length),
            digest_of(ledger.entries),
        ]
        for entry in (1, 2715, 2716, 5000, 9999):
            found = await asyncio.to_thread(pulsar.ask, "entry", OURS, LEDGER, entry)
            assert bytes.fromhex("".join(found)) == ledger.entries[entry]

    run(SERVERS[-1], 5 * MIB, case, 256 * 1024)


@slow(10)
@pytest.mark.parametrize("pulsar", [SERVERS[-1]], indirect=True)
def test_what_pulsar_gets_wrong_is_done_right_here(pulsar: PulsarOffloader) -> None:
    async def case(offloader: ObjectLedgerOffloader) -> None:
        # Blocks that entries fill exactly: no padding.
        entry = (5 * MIB - BLOCK_HEADER_BYTES) // 8 - ENTRY_HEADER_BYTES
        ledger = FakeLedger([bytes([number]) * entry for number in range(24)], LEDGER)
        await offloader.offload(ledger, OURS.bytes)
        answer = await asyncio.to_thread(pulsar.ask, "read", OURS, LEDGER)
        assert answer[2] == digest_of(ledger.entries)
        with pytest.raises(WitnessError, match="NullPointerException"):
            await asyncio.to_thread(pulsar.ask, "read", THEIRS, LEDGER)

    run(SERVERS[-1], 5 * MIB, case)


@slow(15)
def test_pulsar_reads_the_log_of_a_store(tmp_path: Path) -> None:
    server, bucket = shared_server(SERVERS[-1]), "pulsar-store"
    server.make_bucket(bucket)
    url = server.location(bucket)

    async def fill() -> None:
        async with segmentstore.open(
            tmp_path / "store", archive=url, log_file_bytes=2 * MIB, containers=1
        ) as store:
            await store.create_segment("logged")
            await asyncio.gather(*(store.append("logged", bytes(5000)) for _ in range(1000)))
            await store.offload_prefix()

    async def ours(ledger_id: int, uid: bytes) -> list[bytes]:
        offloader = ObjectLedgerOffloader(S3ObjectStorage(parse_s3_url(url), Runtime()))
        handle = await offloader.read_offloaded(ledger_id, uid)
        entries = await entries_of(handle, 0, handle.last_entry)
        await offloader.close()
        return entries

    asyncio.run(fill())
    listed = server.client().list_objects_v2(Bucket=bucket)["Contents"]
    names = [parse_archived_name(each["Key"]) for each in listed]
    found = [name for name in names if name is not None and not name.is_index]
    assert len(found) > 1
    with PulsarOffloader(server.url, bucket, ACCESS_KEY, SECRET_KEY) as pulsar:
        for name in found:
            entries = asyncio.run(ours(name.ledger_id, name.uid))
            answer = pulsar.ask("read", uuid.UUID(bytes=name.uid), name.ledger_id)
            assert answer[2] == digest_of(entries)
