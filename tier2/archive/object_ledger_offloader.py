"""ObjectLedgerOffloader: an archive of ledgers in an object storage.

Two objects for each ledger, as PIP-17 has them (docs/formats/archive-objects.md). Rules:

- the data object first, by an upload whose parts are its blocks, or by one put if it is one block.
  The index last, in one put: an index that is there says that its ledger is whole;
- names begin with the attempt's uid; what a crash leaves is found by it. A failed attempt cleans up
  nothing itself: `delete_offloaded` is the one way of deletion;
- a deletion ends uploads before it deletes what they may have become, the index before the data,
  and checks by listings that nothing is left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from typing import Final

from segmentstore.contracts.byte_sizes import KIB, MIB
from segmentstore.contracts.errors import (
    DataCorruptionError,
    InvalidArgumentError,
    TierUnavailableError,
)
from segmentstore.contracts.ledgers import LedgerNotFoundError, ReadHandle
from tier2.archive.archive_config import BLOCK_BYTES_DEFAULT, BLOCK_BYTES_MAX
from tier2.archive.archive_errors import ARCHIVE_TIER, archive_errors, reading_errors
from tier2.archive.archive_format_error import ArchiveFormatError
from tier2.archive.archive_names import (
    DATA_ROLE,
    FORMAT_VERSION,
    INDEX_ROLE,
    ROLE_KEY,
    VERSION_KEY,
    archived_data_name,
    archived_index_name,
)
from tier2.archive.archived_ledger import ArchivedLedger
from tier2.archive.data_block import BLOCK_HEADER_BYTES, ENTRY_HEADER_BYTES
from tier2.archive.entry_offsets import EntryOffsets
from tier2.archive.entry_reading import FETCHES_MAX, LedgerPlace
from tier2.archive.index_block import IndexBlock, encode_index, parse_index
from tier2.archive.ledger_blocks import LedgerBlocks
from tier2.archive.ledger_offloader import LedgerOffloader
from tier2.archive.range_reads import RangeReads
from tier2.object_storage import (
    NO_METADATA,
    ObjectExistsError,
    ObjectStorage,
    check_metadata,
)

READ_BYTES_DEFAULT: Final = MIB
MAPPING_BYTES_DEFAULT: Final = 256 * KIB
INDEX_BYTES_MAX: Final = 64 * MIB
MAPPINGS_CACHED_MAX: Final = 262_144
"""Of indices that are kept, 5 MiB."""
EXTRA_BYTES_MAX: Final = 1024


class ObjectLedgerOffloader(LedgerOffloader):
    """An archive at the root of `storage`, which it closes."""

    def __init__(
        self,
        storage: ObjectStorage,
        *,
        block_bytes: int = BLOCK_BYTES_DEFAULT,
        mapping_bytes: int | None = MAPPING_BYTES_DEFAULT,
        read_bytes: int = READ_BYTES_DEFAULT,
    ) -> None:
        """Ledgers go in blocks of `block_bytes`, at least what the storage takes as a part.

        The index has a mapping for each block, and for each `mapping_bytes` inside; None: for
        blocks alone, as Pulsar writes it. Reads are of `read_bytes`.
        """
        least = max(storage.upload_bytes_min, BLOCK_HEADER_BYTES + ENTRY_HEADER_BYTES + 1)
        if not least <= block_bytes <= BLOCK_BYTES_MAX:
            raise InvalidArgumentError(
                "block_bytes", block_bytes, f"it is {least} to {BLOCK_BYTES_MAX}"
            )
        for name, value in (("mapping_bytes", mapping_bytes), ("read_bytes", read_bytes)):
            if value is not None and value < 1:
                raise InvalidArgumentError(name, value, "it is at least 1")
        self._storage = storage
        self._block_bytes = block_bytes
        self._mapping_bytes = mapping_bytes
        self._read_bytes = read_bytes
        self._offsets = EntryOffsets()
        self._indices: OrderedDict[str, IndexBlock] = OrderedDict()
        self._mappings = 0

    @property
    def storage(self) -> ObjectStorage:
        """Where the objects are."""
        return self._storage

    async def offload(
        self, handle: ReadHandle, uid: bytes, extra_metadata: Mapping[str, str] = NO_METADATA
    ) -> None:
        data_name, index_name = _names(handle.ledger_id, uid)
        extra = _checked(extra_metadata)
        work = LedgerBlocks(handle, self._block_bytes, self._mapping_bytes)
        with archive_errors(handle.ledger_id, data_name):
            if await self._storage.head(data_name) is not None:
                raise ObjectExistsError(data_name, "an attempt of this uid has left it")
            await self._store_data(data_name, work, uid, {**extra, **_described(DATA_ROLE)})
            index = encode_index(work.index())
            await self._storage.put(index_name, [index], uid, {**extra, **_described(INDEX_ROLE)})

    async def read_offloaded(self, ledger_id: int, uid: bytes) -> ReadHandle:
        data_name, index_name = _names(ledger_id, uid)
        index = self._indices.get(index_name)
        if index is None:
            with reading_errors(ledger_id, index_name):
                index = await self._read_index(index_name)
                await self._check_data(ledger_id, data_name, index)
            self._keep(index_name, index)
        else:
            self._indices.move_to_end(index_name)
        open_ranges = partial(self._ranges, data_name)
        return ArchivedLedger(
            ledger_id, LedgerPlace(data_name, index, open_ranges, self._offsets, self._read_bytes)
        )

    async def delete_offloaded(self, ledger_id: int, uid: bytes) -> None:
        data_name, index_name = _names(ledger_id, uid)
        self._forget(data_name, index_name)
        with archive_errors(ledger_id, data_name):
            # The prefix is also that of ledgers whose ids have more digits.
            for upload in await self._storage.list_unfinished(data_name):
                if upload.name == data_name:
                    await self._storage.abort_unfinished(upload)
            await self._storage.delete(index_name)
            await self._storage.delete(data_name)
            left = [each.name for each in await self._storage.list_unfinished(data_name)] + [
                each.name async for page in self._storage.list(data_name) for each in page
            ]
        self._forget(data_name, index_name)
        if {data_name, index_name} & set(left):
            raise TierUnavailableError(ARCHIVE_TIER, f"{data_name} was deleted, and is still there")

    async def close(self) -> None:
        await self._storage.close()

    async def _store_data(
        self, name: str, work: LedgerBlocks, uid: bytes, metadata: Mapping[str, str]
    ) -> None:
        if work.is_one_block:
            async with aclosing(work.blocks()) as blocks:
                async for block in blocks:
                    await self._storage.put(name, [block], uid, metadata)
            return
        await self._storage.upload(name, work.blocks(), uid, metadata)
        length = work.index().data_length
        there = await self._storage.head(name)
        if there is None or there.size != length:
            size = None if there is None else there.size
            raise TierUnavailableError(ARCHIVE_TIER, f"{name} has {size} bytes of {length}")

    async def _read_index(self, name: str) -> IndexBlock:
        for left in reversed(range(FETCHES_MAX)):
            whole = await self._storage.get_whole(name, INDEX_BYTES_MAX)
            _check_version(name, whole.metadata)
            try:
                return parse_index(whole.data)
            except ArchiveFormatError as error:
                if not left:
                    raise DataCorruptionError(name, error.reason) from error
        raise AssertionError

    async def _check_data(self, ledger_id: int, name: str, index: IndexBlock) -> None:
        there = await self._storage.head(name)
        if there is None:
            raise LedgerNotFoundError(ledger_id, f"the archive ({name}), though its index is")
        _check_version(name, there.metadata)
        if there.size != index.data_length:
            raise DataCorruptionError(
                name, f"{there.size} bytes, and {index.data_length} by the index"
            )

    def _ranges(self, name: str, offset: int, end: int) -> RangeReads:
        return RangeReads(self._storage, name, offset, end, self._read_bytes)

    def _keep(self, name: str, index: IndexBlock) -> None:
        if name not in self._indices:
            self._indices[name] = index
            self._mappings += len(index)
        while self._mappings > MAPPINGS_CACHED_MAX and len(self._indices) > 1:
            self._mappings -= len(self._indices.popitem(last=False)[1])

    def _forget(self, data_name: str, index_name: str) -> None:
        index = self._indices.pop(index_name, None)
        if index is not None:
            self._mappings -= len(index)
        self._offsets.forget(data_name)


def _names(ledger_id: int, uid: bytes) -> tuple[str, str]:
    try:
        return archived_data_name(ledger_id, uid), archived_index_name(ledger_id, uid)
    except ValueError as error:
        raise InvalidArgumentError("ledger_id, uid", (ledger_id, uid), str(error)) from None


def _described(role: str) -> dict[str, str]:
    return {VERSION_KEY: FORMAT_VERSION, ROLE_KEY: role}


def _checked(extra_metadata: Mapping[str, str]) -> dict[str, str]:
    try:
        extra = check_metadata(extra_metadata)
    except ValueError as error:
        raise InvalidArgumentError("extra_metadata", dict(extra_metadata), str(error)) from None
    if sum(len(key) + len(value) for key, value in extra.items()) > EXTRA_BYTES_MAX:
        raise InvalidArgumentError(
            "extra_metadata", extra, f"more than {EXTRA_BYTES_MAX} bytes of keys and values"
        )
    return extra


def _check_version(name: str, metadata: Mapping[str, str]) -> None:
    version = metadata.get(VERSION_KEY)
    if version != FORMAT_VERSION:
        raise DataCorruptionError(
            name, f"its format version is {version}, and this engine reads {FORMAT_VERSION}"
        )
