"""What an archive in an object storage promises, wherever its objects are. Subclass
`LedgerOffloaderContract` once for each kind of storage.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import ClassVar

import pytest

from segmentstore.contracts.errors import (
    DataCorruptionError,
    InvalidArgumentError,
    TierUnavailableError,
)
from segmentstore.contracts.ledgers import (
    EntryRangeError,
    LedgerEntry,
    LedgerMetadata,
    LedgerNotFoundError,
    ReadHandle,
)
from tests.support.fake_ledger import FakeLedger, pulsar_metadata
from tier2.archive.archive_names import archived_data_name, archived_index_name
from tier2.archive.ledger_offloader import OffloadRefusedError
from tier2.archive.object_ledger_offloader import ObjectLedgerOffloader
from tier2.object_storage import ObjectStorage

UID = bytes(range(16))
OTHER_UID = bytes(range(1, 17))
LEDGER = 7


async def entries_of(handle: ReadHandle, first: int, last: int) -> list[bytes]:
    found: list[bytes] = []
    async with aclosing(handle.read(first, last)) as batches:
        async for batch in batches:
            assert batch
            assert [each.entry_id for each in batch] == list(
                range(first + len(found), first + len(found) + len(batch))
            )
            found += [bytes(each.data) for each in batch]
    return found


async def whole_ledger(offloader: ObjectLedgerOffloader) -> list[bytes]:
    handle = await offloader.read_offloaded(LEDGER, UID)
    await entries_of(handle, handle.last_entry, handle.last_entry)
    return await entries_of(handle, 0, handle.last_entry)


class _Failing(FakeLedger):
    """A ledger whose second half cannot be read."""

    async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        half = len(self.entries) // 2
        async for batch in super().read(first, half):
            yield batch
        raise TierUnavailableError("tier1", "made to fail")


class LedgerOffloaderContract(ABC):
    block_bytes: ClassVar[int] = 40_000
    entry_bytes: ClassVar[int] = 9_000
    """Entries up to this size: a block holds several."""

    @abstractmethod
    def make_storage(self, folder: Path) -> ObjectStorage:
        """A new, empty storage."""

    def make(self, folder: Path) -> ObjectLedgerOffloader:
        return ObjectLedgerOffloader(
            self.make_storage(folder),
            block_bytes=self.block_bytes,
            mapping_bytes=self.entry_bytes * 2,
            read_bytes=self.entry_bytes * 2 // 3,
        )

    def run(self, folder: Path, case: Callable[[ObjectLedgerOffloader], Awaitable[None]]) -> None:
        async def body() -> None:
            offloader = self.make(folder)
            try:
                await case(offloader)
            finally:
                await offloader.close()

        asyncio.run(body())

    def entries(self, blocks: int = 3) -> list[bytes]:
        """Of all sizes from 0 on, some `blocks` blocks of them."""
        source = random.Random(blocks)
        found: list[bytes] = [b""]
        while sum(map(len, found)) < (blocks - 1) * self.block_bytes + self.block_bytes // 2:
            found.append(source.randbytes(source.choice((0, 1, 100, self.entry_bytes))))
        return found

    def test_a_ledger_comes_back_as_it_was(self, tmp_path: Path) -> None:
        async def case(offloader: ObjectLedgerOffloader) -> None:
            ledger = FakeLedger(self.entries(), LEDGER)
            extra = {"managedledgername": "store/container", "software": "test"}
            await offloader.offload(ledger, UID, extra)
            handle = await offloader.read_offloaded(LEDGER, UID)
            assert handle.ledger_id == LEDGER
            assert handle.metadata == ledger.metadata
            assert (handle.last_entry, handle.length) == (ledger.last_entry, ledger.length)
            last = ledger.last_entry
            assert await entries_of(handle, 0, last) == ledger.entries
            for first, end in ((0, 0), (last, last), (last // 2, last // 2), (3, last - 3)):
                assert await entries_of(handle, first, end) == ledger.entries[first : end + 1]
            await handle.close()
            names = {each.name async for page in offloader.storage.list() for each in page}
            assert names == {archived_data_name(LEDGER, UID), archived_index_name(LEDGER, UID)}
            for name, role in zip(sorted(names), ("data", "index"), strict=True):
                there = await offloader.storage.head(name)
                assert there is not None
                assert there.metadata == {
                    **extra,
                    "s3managedledgeroffloaderformatversion": "1",
                    "role": role,
                }
            assert list(await offloader.storage.list_unfinished()) == []

        self.run(tmp_path, case)

    def test_ranges_of_entries_and_closed_handles(self, tmp_path: Path) -> None:
        async def case(offloader: ObjectLedgerOffloader) -> None:
            await offloader.offload(FakeLedger([b"a", b"b", b"c"], LEDGER), UID)
            handle = await offloader.read_offloaded(LEDGER, UID)
            # Pulsar's own reader ends at the end of the ledger when it reads there again.
            for first, last in ((0, 1), (0, 2), (0, 2), (2, 2)):
                assert await entries_of(handle, first, last) == [b"a", b"b", b"c"][first : last + 1]
            for first, last in ((-1, 0), (0, 3), (2, 1), (3, 3)):
                with pytest.raises(EntryRangeError):
                    await entries_of(handle, first, last)
            await handle.close()
            await handle.close()
            with pytest.raises(InvalidArgumentError, match="closed"):
                await entries_of(handle, 0, 1)

        self.run(tmp_path, case)

    def test_many_readers_do_not_disturb_each_other(self, tmp_path: Path) -> None:
        async def case(offloader: ObjectLedgerOffloader) -> None:
            ledger = FakeLedger(self.entries(2), LEDGER)
            await offloader.offload(ledger, UID)
            one = await offloader.read_offloaded(LEDGER, UID)
            two = await offloader.read_offloaded(LEDGER, UID)
            last = ledger.last_entry
            reads = [
                entries_of(handle, first, last)
                for handle in (one, two)
                for first in (0, last // 3, last // 2)
            ]
            found = await asyncio.gather(*reads)
            assert found[:3] == found[3:]
            assert found[:3] == [ledger.entries[first:] for first in (0, last // 3, last // 2)]

        self.run(tmp_path, case)

    def test_what_is_not_there_is_not_found_and_deletion_is_idempotent(
        self, tmp_path: Path
    ) -> None:
        async def case(offloader: ObjectLedgerOffloader) -> None:
            with pytest.raises(LedgerNotFoundError):
                await offloader.read_offloaded(LEDGER, UID)
            await offloader.delete_offloaded(LEDGER, UID)
            for ledger_id, uid in ((LEDGER, UID), (LEDGER, OTHER_UID), (LEDGER * 11, UID)):
                await offloader.offload(FakeLedger([b"1", b"22"], ledger_id), uid)
            handle = await offloader.read_offloaded(LEDGER, UID)
            for _ in range(2):
                await offloader.delete_offloaded(LEDGER, UID)
            with pytest.raises(LedgerNotFoundError):
                await entries_of(handle, 0, 1)
            with pytest.raises(LedgerNotFoundError):
                await offloader.read_offloaded(LEDGER, UID)
            for ledger_id, uid in ((LEDGER, OTHER_UID), (LEDGER * 11, UID)):
                other = await offloader.read_offloaded(ledger_id, uid)
                assert await entries_of(other, 0, 1) == [b"1", b"22"]

        self.run(tmp_path, case)

    def test_ledgers_that_cannot_be_archived_are_refused_and_nothing_can_be_read(
        self, tmp_path: Path
    ) -> None:
        def meaning(**fields: int | bool) -> LedgerMetadata:
            made = pulsar_metadata(2, 2)
            values = {name: getattr(made, name) for name in LedgerMetadata._fields}
            return LedgerMetadata(**{**values, **fields})

        async def case(offloader: ObjectLedgerOffloader) -> None:
            small, large = [b"1", b"2"], [b"1", bytes(self.block_bytes - 139)]
            for ledger, reason in (
                (FakeLedger([], LEDGER), "empty"),
                (FakeLedger(small, LEDGER, meaning(closed=False)), "open"),
                (FakeLedger(large, LEDGER), "does not hold it"),
                (FakeLedger(small, LEDGER, meaning(length=1)), "longer"),
                (FakeLedger(small, LEDGER, meaning(length=3)), "ended"),
                (FakeLedger(small, LEDGER, meaning(last_entry=2)), "ended"),
            ):
                with pytest.raises(OffloadRefusedError, match=reason):
                    await offloader.offload(ledger, UID)
                with pytest.raises(LedgerNotFoundError):
                    await offloader.read_offloaded(LEDGER, UID)
                await offloader.delete_offloaded(LEDGER, UID)
            await offloader.offload(FakeLedger([b"1", bytes(self.block_bytes - 140)], LEDGER), UID)
            handle = await offloader.read_offloaded(LEDGER, UID)
            assert await entries_of(handle, 0, 1) == [b"1", bytes(self.block_bytes - 140)]

        self.run(tmp_path, case)

    def test_bad_arguments_are_refused_at_the_door(self, tmp_path: Path) -> None:
        async def case(offloader: ObjectLedgerOffloader) -> None:
            ledger = FakeLedger([b"1"], LEDGER)
            for uid, extra in (
                (b"short", {}),
                (UID, {"Key": "1"}),
                (UID, {"key": "ä"}),
                (UID, {"key": "x" * 1025}),
            ):
                with pytest.raises(InvalidArgumentError):
                    await offloader.offload(ledger, uid, extra)
            with pytest.raises(InvalidArgumentError):
                await offloader.offload(FakeLedger([b"1"], -1), UID)
            with pytest.raises(InvalidArgumentError):
                await offloader.read_offloaded(LEDGER, b"")
            assert [page async for page in offloader.storage.list()] == []

        self.run(tmp_path, case)

    def test_a_ledger_that_cannot_be_read_to_its_end_leaves_nothing(self, tmp_path: Path) -> None:
        async def case(offloader: ObjectLedgerOffloader) -> None:
            with pytest.raises(TierUnavailableError, match="made to fail"):
                await offloader.offload(_Failing(self.entries(), LEDGER), UID)
            assert list(await offloader.storage.list_unfinished()) == []
            assert [page async for page in offloader.storage.list()] == []
            await offloader.delete_offloaded(LEDGER, UID)

        self.run(tmp_path, case)

    def test_an_attempt_is_not_repeated_under_its_uid(self, tmp_path: Path) -> None:
        async def case(offloader: ObjectLedgerOffloader) -> None:
            await offloader.offload(FakeLedger([b"1", b"2"], LEDGER), UID)
            with pytest.raises(InvalidArgumentError, match="uid"):
                await offloader.offload(FakeLedger([b"3", b"44"], LEDGER), UID)
            handle = await offloader.read_offloaded(LEDGER, UID)
            assert await entries_of(handle, 0, 1) == [b"1", b"2"]

        self.run(tmp_path, case)

    def test_damage_of_an_object_is_noticed_where_the_format_can(self, tmp_path: Path) -> None:
        async def case(offloader: ObjectLedgerOffloader) -> None:
            storage = offloader.storage
            ledger = FakeLedger(self.entries(2), LEDGER)
            await offloader.offload(ledger, UID)
            data_name = archived_data_name(LEDGER, UID)
            index_name = archived_index_name(LEDGER, UID)
            data, index = [
                await storage.get_whole(name, 64 * self.block_bytes)
                for name in (data_name, index_name)
            ]
            for name, good, at in (
                (index_name, index, 0),
                (index_name, index, len(index.data) - 1),
                (data_name, data, 0),
                (data_name, data, 128 + 11),
                (data_name, data, self.block_bytes - 1),
                (data_name, data, self.block_bytes + 27),
            ):
                bad = bytearray(good.data)
                bad[at] ^= 64
                await offloader.delete_offloaded(LEDGER, UID)
                for other, whole in ((data_name, data), (index_name, index)):
                    await storage.put(
                        other, [bad if other == name else whole.data], UID, whole.metadata
                    )
                with pytest.raises(DataCorruptionError) as caught:
                    await whole_ledger(offloader)
                assert caught.value.where.startswith(data_name)

        self.run(tmp_path, case)
