"""ReadOnlyObjectStorage: another object storage, of which nothing but reads passes.

For a reader that shows a store without owning it. The storage may be writable, and a put or a
deletion by such a reader would be the deed of a second owner.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Final

from segmentstore.contracts.checksum import Buffer
from tier2.object_storage import (
    NO_METADATA,
    ObjectRange,
    ObjectStorage,
    StorageRefusedError,
    StoredObject,
    UnfinishedUpload,
    WholeObject,
)
from tier2.request_statistics import ObjectStorageStatistics

_REFUSED: Final = "a read-only view of the store changes nothing in Tier 2"


class ReadOnlyObjectStorage(ObjectStorage):
    """Reads of `storage`; every other call raises StorageRefusedError and sends nothing.

    Closing closes `storage`.
    """

    def __init__(self, storage: ObjectStorage) -> None:
        self._storage = storage

    @property
    def url(self) -> str:
        return self._storage.url

    @property
    def is_local(self) -> bool:
        return self._storage.is_local

    @property
    def get_bytes_best(self) -> int:
        return self._storage.get_bytes_best

    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        del parts, unique_id, metadata
        raise _refused(name)

    @property
    def upload_bytes_min(self) -> int:
        return self._storage.upload_bytes_min

    async def upload(
        self,
        name: str,
        parts: AsyncGenerator[Buffer, None],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        del unique_id, metadata
        await parts.aclose()
        raise _refused(name)

    async def compose(self, name: str, ranges: Sequence[ObjectRange], unique_id: bytes) -> None:
        del ranges, unique_id
        raise _refused(name)

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        return await self._storage.get_range(name, offset, length)

    async def get_whole(self, name: str, bytes_max: int) -> WholeObject:
        return await self._storage.get_whole(name, bytes_max)

    async def head(self, name: str) -> StoredObject | None:
        return await self._storage.head(name)

    async def delete(self, name: str) -> None:
        raise _refused(name)

    def list(
        self, prefix: str = "", start_after: str = ""
    ) -> AsyncIterator[Sequence[StoredObject]]:
        return self._storage.list(prefix, start_after)

    async def list_unfinished(self, prefix: str = "") -> Sequence[UnfinishedUpload]:
        return await self._storage.list_unfinished(prefix)

    async def abort_unfinished(self, upload: UnfinishedUpload) -> None:
        raise _refused(upload.name)

    async def check(self) -> None:
        # Its probe is an object that is put.
        raise _refused("check")

    async def close(self) -> None:
        await self._storage.close()

    def health(self) -> Sequence[str]:
        return self._storage.health()

    def statistics(self) -> ObjectStorageStatistics:
        return self._storage.statistics()


def _refused(name: str) -> StorageRefusedError:
    return StorageRefusedError(name, _REFUSED, "read-only")
