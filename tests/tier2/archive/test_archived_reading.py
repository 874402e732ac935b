"""Reading an archived ledger: how many requests it costs, and what it does about wrong bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from segmentstore.contracts.owned_tasks import owned_tasks
from segmentstore.contracts.runtime import Runtime
from tests.contracts.ledger_offloader_contract import LEDGER, UID, entries_of
from tests.support.fake_ledger import FakeLedger, pulsar_payload
from tier2.archive import entry_reading
from tier2.archive.archive_names import archived_data_name, archived_index_name
from tier2.archive.entry_reading import FETCHES_MAX
from tier2.archive.object_ledger_offloader import ObjectLedgerOffloader
from tier2.archive.range_reads import RANGES_MAX
from tier2.file_object_storage import FileObjectStorage
from tier2.memory_object_storage import MemoryObjectStorage

ENTRY_BYTES = 1000
COUNT = 200
BLOCK_BYTES = 50_000
READ_BYTES = 4096


class Place(MemoryObjectStorage):
    """Counts its ranges and how many are under way; spoils those it is asked to."""

    def __init__(self) -> None:
        super().__init__(Runtime())
        self.ranges: list[tuple[int, int]] = []
        self.under_way = self.most = 0
        self.spoil = 0
        """So many of the next ranges come with wrong bytes."""

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        self.ranges.append((offset, length))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            data = await super().get_range(name, offset, length)
        finally:
            self.under_way -= 1
        if self.spoil:
            self.spoil -= 1
            return bytes(byte ^ 0x55 for byte in data)
        return data


def run(
    case: Callable[[ObjectLedgerOffloader, Place, FakeLedger], Awaitable[None]],
    mapping_bytes: int | None = READ_BYTES // 2,
) -> None:
    async def body() -> None:
        place = Place()
        offloader = ObjectLedgerOffloader(
            place, block_bytes=BLOCK_BYTES, mapping_bytes=mapping_bytes, read_bytes=READ_BYTES
        )
        ledger = FakeLedger([pulsar_payload(each, ENTRY_BYTES) for each in range(COUNT)], LEDGER)
        await offloader.offload(ledger, UID)
        place.ranges.clear()
        await case(offloader, place, ledger)
        assert not owned_tasks()
        await offloader.close()

    asyncio.run(body())


def test_any_one_entry_costs_one_get() -> None:
    async def case(offloader: ObjectLedgerOffloader, place: Place, ledger: FakeLedger) -> None:
        handle = await offloader.read_offloaded(LEDGER, UID)
        place.ranges.clear()
        for entry in range(COUNT):
            assert await entries_of(handle, entry, entry) == [ledger.entries[entry]]
        assert len(place.ranges) == COUNT
        assert max(length for _, length in place.ranges) <= READ_BYTES

    run(case)


def test_an_index_is_read_once_however_many_handles_there_are() -> None:
    async def case(offloader: ObjectLedgerOffloader, place: Place, ledger: FakeLedger) -> None:
        before = place.statistics().requests()
        await offloader.read_offloaded(LEDGER, UID)
        # The index's size and bytes, and the data object's size; S3 gives the first two at once.
        assert place.statistics().requests() == before + 3
        for _ in range(3):
            await offloader.read_offloaded(LEDGER, UID)
        assert place.statistics().requests() == before + 3

    run(case)


def test_a_sequence_costs_its_bytes_and_is_read_ahead_within_the_bound() -> None:
    async def case(offloader: ObjectLedgerOffloader, place: Place, ledger: FakeLedger) -> None:
        handle = await offloader.read_offloaded(LEDGER, UID)
        place.ranges.clear()
        assert await entries_of(handle, 0, COUNT - 1) == ledger.entries
        whole = await place.head(archived_data_name(LEDGER, UID))
        assert whole is not None
        assert len(place.ranges) == -(-whole.size // READ_BYTES)
        assert sum(length for _, length in place.ranges) == whole.size
        assert place.most == RANGES_MAX

    run(case)


def test_a_reader_that_leaves_ends_what_was_asked_for_ahead() -> None:
    async def case(offloader: ObjectLedgerOffloader, place: Place, ledger: FakeLedger) -> None:
        handle = await offloader.read_offloaded(LEDGER, UID)
        place.ranges.clear()
        async with aclosing(handle.read(0, COUNT - 1)) as batches:
            await anext(batches)
            await anext(batches)
        assert len(place.ranges) <= 2 + RANGES_MAX
        assert place.under_way == 0

    run(case)


def test_a_coarse_index_is_refined_by_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_reading, "KNOWN_BYTES", 4000)

    async def case(offloader: ObjectLedgerOffloader, place: Place, ledger: FakeLedger) -> None:
        handle = await offloader.read_offloaded(LEDGER, UID)
        assert await entries_of(handle, 45, 45) == [ledger.entries[45]]
        # From its block's beginning on, as there is no other mapping.
        assert len(place.ranges) > 10
        place.ranges.clear()
        again = await offloader.read_offloaded(LEDGER, UID)
        for entry in (45, 44, 30):
            assert await entries_of(again, entry, entry) == [ledger.entries[entry]]
        assert len(place.ranges) <= 2 * 3

    run(case, mapping_bytes=None)


@pytest.mark.parametrize("wrong", range(FETCHES_MAX + 1))
def test_wrong_bytes_are_fetched_again_and_then_are_corrupt(wrong: int) -> None:
    async def case(offloader: ObjectLedgerOffloader, place: Place, ledger: FakeLedger) -> None:
        handle = await offloader.read_offloaded(LEDGER, UID)
        place.ranges.clear()
        place.spoil = wrong
        if wrong < FETCHES_MAX:
            assert await entries_of(handle, 10, 12) == ledger.entries[10:13]
            assert len(place.ranges) <= 2 * (wrong + 1)
        else:
            with pytest.raises(DataCorruptionError) as caught:
                await entries_of(handle, 10, 12)
            assert caught.value.where.startswith(f"{archived_data_name(LEDGER, UID)}, entry ")
            assert len(place.ranges) == FETCHES_MAX

    run(case)


def test_a_wrong_index_is_read_again_and_then_is_corrupt() -> None:
    async def case(offloader: ObjectLedgerOffloader, place: Place, ledger: FakeLedger) -> None:
        place.spoil = FETCHES_MAX
        with pytest.raises(DataCorruptionError, match="begins with"):
            await offloader.read_offloaded(LEDGER, UID)
        place.spoil = FETCHES_MAX - 1
        handle = await offloader.read_offloaded(LEDGER, UID)
        assert await entries_of(handle, 0, 0) == ledger.entries[:1]

    run(case)


def test_a_storage_that_is_away_is_no_corruption() -> None:
    async def case(offloader: ObjectLedgerOffloader, place: Place, ledger: FakeLedger) -> None:
        handle = await offloader.read_offloaded(LEDGER, UID)
        place.fail("get_range")
        with pytest.raises(TierUnavailableError, match="archive"):
            await entries_of(handle, 0, COUNT - 1)
        assert await entries_of(handle, 0, COUNT - 1) == ledger.entries

    run(case)


@pytest.mark.parametrize("name", [archived_data_name, archived_index_name])
@pytest.mark.parametrize("version", [None, "2"])
def test_another_version_of_the_format_is_refused(
    name: Callable[[int, bytes], str], version: str | None
) -> None:
    async def case(offloader: ObjectLedgerOffloader, place: Place, ledger: FakeLedger) -> None:
        key = "s3managedledgeroffloaderformatversion"
        there = place.bucket.objects[name(LEDGER, UID)]
        metadata = {**there.metadata, key: version} if version else {}
        place.bucket.objects[name(LEDGER, UID)] = there._replace(metadata=metadata)
        with pytest.raises(DataCorruptionError, match="format version"):
            await offloader.read_offloaded(LEDGER, UID)

    run(case)


def test_an_index_whose_data_are_missing_or_cut_is_said_to_be() -> None:
    async def case(offloader: ObjectLedgerOffloader, place: Place, ledger: FakeLedger) -> None:
        name = archived_data_name(LEDGER, UID)
        there = place.bucket.objects[name]
        handle = await offloader.read_offloaded(LEDGER, UID)
        place.bucket.objects[name] = there._replace(data=there.data[:-1])
        with pytest.raises(DataCorruptionError, match="ends too early"):
            await entries_of(handle, COUNT - 1, COUNT - 1)
        other = ObjectLedgerOffloader(place, block_bytes=BLOCK_BYTES)
        with pytest.raises(DataCorruptionError, match="by the index"):
            await other.read_offloaded(LEDGER, UID)

    run(case)


@pytest.mark.parametrize(
    "name", [archived_data_name(LEDGER, UID), archived_index_name(LEDGER, UID)]
)
def test_metadata_that_cannot_be_read_are_damage_and_not_an_outage(
    tmp_path: Path, name: str
) -> None:
    async def body() -> None:
        place = FileObjectStorage(str(tmp_path), Runtime())
        offloader = ObjectLedgerOffloader(place, block_bytes=BLOCK_BYTES)
        await offloader.offload(FakeLedger([b"1"], LEDGER), UID)
        (tmp_path / "~metadata" / name).write_bytes(b"")
        with pytest.raises(DataCorruptionError, match="its metadata cannot be read"):
            await offloader.read_offloaded(LEDGER, UID)
        await offloader.close()

    asyncio.run(body())


def test_an_index_without_bytes_is_damage(tmp_path: Path) -> None:
    async def body() -> None:
        place = FileObjectStorage(str(tmp_path), Runtime())
        offloader = ObjectLedgerOffloader(place, block_bytes=BLOCK_BYTES)
        await offloader.offload(FakeLedger([b"1"], LEDGER), UID)
        (tmp_path / archived_index_name(LEDGER, UID)).write_bytes(b"")
        with pytest.raises(DataCorruptionError):
            await offloader.read_offloaded(LEDGER, UID)
        await offloader.close()

    asyncio.run(body())
