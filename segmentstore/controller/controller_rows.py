"""ControllerRows: the rows of the Controller's table, by what they are about
(docs/formats/controller-tables.md).

One table has all, so that rows that belong together change in one batch. Keys are paths: a name has
no `/` in it. Removal is a batch of its own; so a row that is written together with a removal is
written first, and the removal may be repeated.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, NamedTuple

from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.controller.metadata_tables import (
    ANY_VERSION,
    NO_ROW,
    MetadataRow,
    MetadataTables,
    RowConflictError,
)
from segmentstore.controller.names import ROOT_TABLE, ScopedName
from segmentstore.controller.stream_history import StreamHistory
from segmentstore.controller.stream_model import EpochRecord, StreamRecord

FORMAT: Final = 1
_PAGE: Final = 200
_FORMAT_KEY: Final = "controller"
_NUMBERS_KEY: Final = "numbers"
_NUMBERS_MAX: Final = 1 << 30
"""Clients have 31 bits for a number, and a stream gets more of them as it is scaled."""


class RowPut(NamedTuple):
    """A row to write, if it has the version given."""

    key: str
    value: dict[str, Any]
    version: int = ANY_VERSION


class FoundRow(NamedTuple):
    """A row that was read."""

    key: str
    value: dict[str, Any]
    version: int

    @property
    def last(self) -> str:
        """The last part of its key."""
        return self.key.rpartition("/")[2]


class LoadedStream(NamedTuple):
    """A stream, and the version of its row."""

    name: ScopedName
    record: StreamRecord
    version: int


def scope_key(scope: str) -> str:
    """A scope."""
    return f"scope/{scope}"


def stream_key(stream: ScopedName) -> str:
    """The record of a stream."""
    return f"stream/{stream}"


def epoch_key(stream: ScopedName, epoch: int) -> str:
    """An epoch of a stream; epochs are in the order of their keys."""
    return f"epoch/{stream}/{epoch:010}"


def pending_key(kind: str, name: ScopedName) -> str:
    """Of a stream, group or table with a change that is not finished."""
    return f"pending/{kind}/{name}"


def transaction_key(stream: ScopedName, transaction_id: int) -> str:
    """A transaction that has not ended."""
    return f"transaction/{stream}/{transaction_id:032x}"


def ended_key(stream: ScopedName, transaction_id: int) -> str:
    """How a transaction ended."""
    return f"ended/{stream}/{transaction_id:032x}"


def answered_key(request_id: str) -> str:
    """A deletion that is decided, by the request that asked for it."""
    return f"answered/{request_id}"


def retention_key(stream: ScopedName) -> str:
    """Says that a stream has a retention policy, or had one."""
    return f"retention/{stream}"


def cut_key(stream: ScopedName, time_ms: int) -> str:
    """The tail of a stream at a time; tails are in the order of their keys."""
    return f"cut/{stream}/{time_ms:015}"


def group_key(group: ScopedName) -> str:
    """A reader group."""
    return f"group/{group}"


def subscriber_key(stream: ScopedName, group: ScopedName) -> str:
    """What a group that subscribes to a stream has read."""
    return f"subscriber/{stream}/{group}"


def table_key(table: ScopedName) -> str:
    """A key-value table."""
    return f"table/{table}"


class ControllerRows:
    """Reads and writes. Raises RowConflictError, SegmentStoreError."""

    def __init__(self, tables: MetadataTables) -> None:
        self._tables = tables

    async def open(self) -> None:
        """Create the table if there is none. Raises DataCorruptionError for another format."""
        await self._tables.create(ROOT_TABLE)
        found = await self.get(_FORMAT_KEY)
        if found is None:
            await self.put(RowPut(_FORMAT_KEY, {"format": FORMAT}))
        elif found.value["format"] != FORMAT:
            raise DataCorruptionError(
                ROOT_TABLE, f"format {found.value['format']}, this version has {FORMAT}"
            )

    async def confirm(self) -> None:
        """Return when no other process can have written a row before this call."""
        await self._tables.confirm(ROOT_TABLE)

    async def get(self, key: str) -> FoundRow | None:
        (row,) = await self._tables.get(ROOT_TABLE, (key.encode(),))
        return _found(row) if row else None

    async def put(self, *puts: RowPut) -> list[int]:
        """Write all or none; give the new versions."""
        rows = [
            MetadataRow(each.key.encode(), each.version, _json(each.value).encode())
            for each in puts
        ]
        return await self._tables.update(ROOT_TABLE, rows)

    async def remove(self, keys: Iterable[str]) -> None:
        """Remove all or none, there or not. Nothing for no keys."""
        encoded = [key.encode() for key in keys]
        if encoded:
            await self._tables.remove(ROOT_TABLE, encoded)

    async def page(self, prefix: str, after: str, limit: int) -> list[FoundRow]:
        """Rows whose keys are `prefix`, which ends in `/`, and a name behind `after`; by key."""
        rows = await self._tables.scan(ROOT_TABLE, (prefix + after).encode(), limit)
        beginning = prefix.encode()
        return [_found(row) for row in rows if row.key.startswith(beginning)]

    async def scan(self, prefix: str) -> AsyncIterator[FoundRow]:
        """All rows below a prefix that ends in `/`, by key, read in pages."""
        after = ""
        while page := await self.page(prefix, after, _PAGE):
            for row in page:
                yield row
            after = page[-1].key.removeprefix(prefix)

    async def remove_below(self, prefix: str) -> None:
        """Remove all rows below a prefix that ends in `/`."""
        while page := await self.page(prefix, "", _PAGE):
            await self.remove(row.key for row in page)

    # --- numbers of segments ----------------------------------------------------------------------

    async def first_number(self) -> int:
        """The number of the first segment of something new: no segment of a deleted stream or table
        had it. So what is still on its way to those is harmless. Behind 2^30 numbers it is 0.
        """
        row = await self.get(_NUMBERS_KEY)
        first: int = row.value["next"] if row else 0
        return first if first <= _NUMBERS_MAX else 0

    async def use_numbers(self, end: int) -> None:
        """Numbers below `end` are not given to anything new from now on."""
        while (row := await self.get(_NUMBERS_KEY)) is None or row.value["next"] < end:
            try:
                await self.put(RowPut(_NUMBERS_KEY, {"next": end}, row.version if row else NO_ROW))
            except RowConflictError:
                continue  # another deletion was first

    # --- streams ----------------------------------------------------------------------------------

    async def stream(self, name: ScopedName) -> LoadedStream | None:
        """None: there is no such row. One that is being created has a row."""
        row = await self.get(stream_key(name))
        return LoadedStream(name, StreamRecord.from_row(row.value), row.version) if row else None

    async def history(self, name: ScopedName, epochs: int | None = None) -> StreamHistory:
        """The first `epochs` of a stream, or all. O(epochs)."""
        prefix = f"epoch/{name}/"
        if epochs is None:
            rows = [row async for row in self.scan(prefix)]
        else:
            rows = await self.page(prefix, "", epochs)
        return StreamHistory([EpochRecord.from_row(row.value) for row in rows])


def put_epochs(stream: ScopedName, epochs: Sequence[EpochRecord]) -> list[RowPut]:
    """The rows of epochs."""
    return [RowPut(epoch_key(stream, each.epoch), each.to_row()) for each in epochs]


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _found(row: MetadataRow) -> FoundRow:
    key = row.key.decode()
    try:
        return FoundRow(key, json.loads(row.value), row.version)
    except ValueError as error:
        raise DataCorruptionError(ROOT_TABLE, f"the row {key!r} is not JSON: {error}") from error
