"""StoreTables: the store's own tables as `MetadataTables`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from segmentstore.contracts.attributes import AttributeUpdate, UpdateType
from segmentstore.contracts.errors import SegmentExistsError
from segmentstore.controller.metadata_tables import ANY_VERSION, MetadataRow, RowConflictError
from segmentstore.service import SegmentStore
from segmentstore.tables.errors import BadKeyVersionError, KeyNotFoundError
from segmentstore.tables.page_tokens import encode_token
from segmentstore.tables.table_service import TableService

_CONFIRMED: Final = AttributeUpdate(
    uuid.UUID("c6c0d6a1-6a52-4f0a-8f6c-3d7f9a5b1e42"), UpdateType.REPLACE, 1
)
"""Of the table's segment; means nothing."""


class StoreTables:
    """Hash tables, whose iteration is by key for keys as short as those of the Controller."""

    def __init__(self, store: SegmentStore, tables: TableService) -> None:
        self._store = store
        self._tables = tables

    async def create(self, table: str) -> None:
        try:
            await self._tables.create(table)
        except SegmentExistsError:
            pass

    async def get(self, table: str, keys: Sequence[bytes]) -> list[MetadataRow | None]:
        entries = await self._tables.get(table, keys)
        return [MetadataRow(*entry) if entry else None for entry in entries]

    async def update(self, table: str, rows: Sequence[MetadataRow]) -> list[int]:
        try:
            return await self._tables.update(table, rows)
        except (BadKeyVersionError, KeyNotFoundError) as error:
            raise RowConflictError(str(error)) from error

    async def remove(self, table: str, keys: Sequence[bytes]) -> None:
        await self._tables.remove(table, [(key, ANY_VERSION) for key in keys])

    async def confirm(self, table: str) -> None:
        # The log acknowledges a change: no other owner had fenced it when the change was sent.
        await self._store.update_attributes(table, (_CONFIRMED,))

    async def scan(self, table: str, after: bytes, limit: int) -> list[MetadataRow]:
        # A token says behind which key to go on; that key need not be there.
        info = await self._store.get_info(table)
        token = encode_token(info.container_id, info.segment_id, after) if after else b""
        page = await self._tables.entries(table, limit, token=token)
        return [MetadataRow(*entry) for entry in page.entries]
