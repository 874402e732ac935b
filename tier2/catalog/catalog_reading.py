"""Tables of a snapshot, read: whole, or the row groups that hold some shards or some segments.

Rules of this file:

- no byte is decoded unchecked: a table by its checksum, a part of it by the footer's and those of
  its pages;
- what fails a check is fetched anew (`checked_fetches`);
- what is not there, or is other than the manifest says, is CatalogFormatError with the object's
  name.

Coroutines over ObjectStorage, as in `catalog_snapshots`. All may raise StorageUnavailableError.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.owned_tasks import gather_owned
from tier2.catalog.catalog_files import (
    ByteRange,
    FetchedGroups,
    PartialFile,
    chosen_schema,
    read_whole,
)
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.catalog.catalog_manifest import Manifest, TableFile
from tier2.catalog.catalog_schema import OBJECTS, SCHEMAS, check_version
from tier2.checked_fetches import fetch_checked
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError, ObjectStorage

REQUESTS_AT_ONCE: Final = 4
"""Of the parts of one table."""
PIECE_BYTES: Final = 16 * 1024 * 1024
"""A table is fetched in pieces of this size."""


async def read_table(
    storage: ObjectStorage,
    manifest: Manifest,
    name: str,
    *,
    columns: Sequence[str] | None = None,
    shard: int | range | None = None,
    segment_ids: Collection[int] | None = None,
) -> pa.Table:
    """A table of a snapshot, whole or in part: `shard` is for "objects", `segment_ids` for
    "segments" and "chunks".

    Whole, every byte is fetched and checked. In part, the footer and the row groups that may hold
    such rows are, by one request and one for each run of adjacent ones. The rows come as they lie
    in the table. ValueError for a column, shard or table there is none of.
    """
    schema = SCHEMAS.get(name)
    if schema is None:
        raise ValueError(f"there is no table {name}; there are {', '.join(SCHEMAS)}")
    if (shard is not None and name != "objects") or (segment_ids is not None and name == "objects"):
        raise ValueError(f"rows of {name} cannot be chosen so")
    if shard is not None:
        first, last = (
            (shard, shard)
            if isinstance(shard, int)
            else (min(shard, default=0), max(shard, default=-1))
        )
        shards = range(first, last + 1)
        return await (await fetch_shards(storage, manifest, shards, columns)).read(shards)
    file = manifest.tables[name]
    wanted = None if columns is None else list(columns)
    chosen_schema(schema, wanted)
    try:
        check_version(file.schema_version, "table")
        if segment_ids is None:
            return await fetch_checked(
                partial(_read_whole, storage, file, schema, wanted), CatalogFormatError
            )
        return await _read_segments(storage, file, schema, wanted, sorted(set(segment_ids)))
    except CatalogFormatError as error:
        raise CatalogFormatError(f"{file.object}: {error}") from error


class FetchedShards:
    """Some shards of `objects`: their row groups' bytes, decoded as they are asked for.

    Not for two tasks at once.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        file: TableFile,
        footer: PartialFile,
        groups: list[int],
        fetched: FetchedGroups,
    ) -> None:
        self._storage = storage
        self._file = file
        self._footer = footer
        self._groups = groups
        self._fetched: FetchedGroups | None = fetched

    def row_count(self, shards: Sequence[int]) -> int:
        """How many rows `read` gives of these shards."""
        return self._footer.row_count(self._footer.choose_shards(shards, self._groups))

    async def read(self, shards: Sequence[int]) -> pa.Table:
        """The rows of these, as they lie in the table; none of shards that were not fetched.

        What fails a check is fetched anew. Raises CatalogFormatError, StorageUnavailableError.
        """
        try:
            return await fetch_checked(partial(self._decode, shards), CatalogFormatError)
        except CatalogFormatError as error:
            raise CatalogFormatError(f"{self._file.object}: {error}") from error

    async def _decode(self, shards: Sequence[int]) -> pa.Table:
        if self._fetched is None:
            self._fetched = await fetch_groups(
                self._storage, self._file, self._footer, self._groups
            )
        try:
            return self._fetched.read(self._footer.choose_shards(shards, self._groups))
        except CatalogFormatError:
            self._fetched = None
            raise


async def fetch_shards(
    storage: ObjectStorage,
    manifest: Manifest,
    shards: Sequence[int],
    columns: Sequence[str] | None = None,
) -> FetchedShards:
    """These shards of a snapshot's `objects`, ascending; the requests are those of `read_table`,
    and so is what it raises.
    """
    file, wanted = manifest.tables["objects"], None if columns is None else list(columns)
    chosen_schema(OBJECTS, wanted)
    if shards and not 0 <= shards[0] <= shards[-1] <= 0xFF:
        raise ValueError(f"{shards} are not shards, which are 0 to 255")
    try:
        check_version(file.schema_version, "table")
        footer = await _open(storage, file, OBJECTS, wanted)
        groups = footer.choose_shards(shards)
        fetched = await fetch_groups(storage, file, footer, groups)
    except CatalogFormatError as error:
        raise CatalogFormatError(f"{file.object}: {error}") from error
    return FetchedShards(storage, file, footer, groups, fetched)


async def open_table(
    storage: ObjectStorage, file: TableFile, schema: pa.Schema, columns: list[str] | None
) -> PartialFile:
    """The footer of a table, checked.

    One request. Raises CatalogFormatError, which names the object.
    """
    try:
        check_version(file.schema_version, "table")
        return await _open(storage, file, schema, columns)
    except CatalogFormatError as error:
        raise CatalogFormatError(f"{file.object}: {error}") from error


async def _read_whole(
    storage: ObjectStorage, file: TableFile, schema: pa.Schema, columns: list[str] | None
) -> pa.Table:
    data = b"".join(
        [
            await _get(
                storage, file.object, ByteRange(position, min(PIECE_BYTES, file.size - position))
            )
            for position in range(0, file.size, PIECE_BYTES)
        ]
    )
    _check_sum("checksum", data, file.crc32c)
    table = read_whole(data, schema, columns)
    if table.num_rows != file.rows:
        raise CatalogFormatError(f"{table.num_rows:,} rows where {file.rows:,} are recorded")
    return table


async def _read_segments(
    storage: ObjectStorage,
    file: TableFile,
    schema: pa.Schema,
    columns: list[str] | None,
    segment_ids: list[int],
) -> pa.Table:
    # The column that rows are chosen by is read even if the caller did not ask for it.
    fetched = None if columns is None else list(dict.fromkeys([*columns, "segment_id"]))
    footer = await _open(storage, file, schema, fetched)
    groups = footer.choose_segments(segment_ids)
    table = _of_segments(await read_groups(storage, file, footer, groups), segment_ids)
    return table if columns is None else table.select(columns)


def _of_segments(table: pa.Table, segment_ids: list[int]) -> pa.Table:
    """The rows of these segments.

    A segment's rows lie together, and so do mostly those of neighbours: no row is copied then.
    """
    if not table.num_rows:
        return table
    column: Any = table["segment_id"].to_numpy()
    starts = np.flatnonzero(np.append(True, column[1:] != column[:-1]))
    ends = np.append(starts[1:], len(column))
    wanted = np.isin(column[starts], np.array(segment_ids, np.int64))
    runs = np.flatnonzero(wanted)
    if not len(runs):
        return table.slice(0, 0)
    start, end = int(starts[runs[0]]), int(ends[runs[-1]])
    # A slice keeps all of what it is cut from in memory.
    if runs[-1] - runs[0] + 1 == len(runs) and 2 * (end - start) >= len(column):
        return table.slice(start, end - start)
    return table.filter(pa.array(np.repeat(wanted, ends - starts)))


async def _open(
    storage: ObjectStorage, file: TableFile, schema: pa.Schema, columns: list[str] | None
) -> PartialFile:
    async def fetch() -> bytes:
        footer = await _get(
            storage, file.object, ByteRange(file.size - file.footer_size, file.footer_size)
        )
        _check_sum("footer checksum", footer, file.footer_crc32c)
        return footer

    return PartialFile(file.size, await fetch_checked(fetch, CatalogFormatError), schema, columns)


async def read_groups(
    storage: ObjectStorage, file: TableFile, footer: PartialFile, groups: list[int]
) -> pa.Table:
    """The rows of these row groups. Raises CatalogFormatError."""

    async def fetch() -> pa.Table:
        return (await fetch_groups(storage, file, footer, groups)).read(groups)

    return await fetch_checked(fetch, CatalogFormatError)


async def fetch_groups(
    storage: ObjectStorage, file: TableFile, footer: PartialFile, groups: list[int]
) -> FetchedGroups:
    """The bytes of these row groups, a few requests at a time. Raises CatalogFormatError."""
    ranges = footer.ranges(groups)
    pieces: list[tuple[int, bytes]] = []
    for first in range(0, len(ranges), REQUESTS_AT_ONCE):
        some = ranges[first : first + REQUESTS_AT_ONCE]
        data = await gather_owned(
            *(_get(storage, file.object, each) for each in some), name="read catalog"
        )
        pieces += zip((each.offset for each in some), data, strict=True)
    return footer.fetched(pieces)


def _check_sum(what: str, data: bytes, recorded: int) -> None:
    actual = crc32c(data)
    if actual != recorded:
        raise CatalogFormatError(f"{what} {actual:08x} where {recorded:08x} is recorded")


async def _get(storage: ObjectStorage, name: str, wanted: ByteRange) -> bytes:
    try:
        return await storage.get_range(name, wanted.offset, wanted.length)
    except ObjectNotFoundError:
        raise CatalogFormatError(f"there is no object {name}") from None
    except InvalidRangeError as error:
        raise CatalogFormatError(f"it is shorter than its manifest says: {error}") from None
