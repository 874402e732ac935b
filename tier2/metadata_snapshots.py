"""Reading metadata snapshots: which there are, what one consists of, and its files in a directory.

A snapshot that lacks something, or is damaged, is a `MetadataSnapshotError` that names the object:
the caller takes the one before. Rules of this file:

- what is read once and found wrong is read once more: the way from a store may have spoilt it;
- a directory that is being filled has another name; it gets its own when all in it is checked and
  durable. So one that is there is complete.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Final, ParamSpec, TypeVar

from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.disk import Disk, DiskFile
from segmentstore.contracts.errors import SelfDescribed
from segmentstore.contracts.owned_tasks import gather_outcomes
from segmentstore.contracts.runtime import Runtime
from tier2.metadata_manifest import (
    MANIFEST_BYTES_MAX,
    FileContent,
    MetadataManifest,
    MetadataManifestFormatError,
    SnapshotFile,
    decode_metadata_manifest,
)
from tier2.object_names import (
    MetadataManifestName,
    metadata_manifest_name,
    metadata_prefix,
    parse_metadata_manifest_name,
    parse_metadata_name,
)
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError, ObjectStorage
from tier2.unique_ids import store_tag

FILES_AT_ONCE: Final = 4
PIECE_BYTES: Final = 1024 * 1024
"""Of a file, in one request: with FILES_AT_ONCE it bounds the memory of a download."""
UNFINISHED: Final = ".part"
"""What the name of a directory ends with that is being filled."""
_TRIES: Final = 2

_P = ParamSpec("_P")
_T = TypeVar("_T")


class MetadataSnapshotError(SelfDescribed, Exception):
    """A snapshot cannot be read. `name` is the object that is why."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class SnapshotObjectMissingError(MetadataSnapshotError):
    """There is no such object."""


class SnapshotObjectDamagedError(MetadataSnapshotError):
    """The object is not what it should be."""


async def list_snapshot_manifests(
    storage: ObjectStorage, container_id: int, store_id: uuid.UUID
) -> list[str]:
    """The names of this store's manifests of a container, newest first. One listing.

    Raises StorageUnavailableError.
    """
    found: list[MetadataManifestName] = []
    tag = store_tag(store_id)
    async for page in storage.list(metadata_prefix(container_id)):
        for stored in page:
            named = parse_metadata_name(stored.name)
            if isinstance(named, MetadataManifestName) and named.unique_id.startswith(tag):
                found.append(named)
        if parse_metadata_manifest_name(page[-1].name) is None:
            break  # Files sort behind all manifests.
    return [metadata_manifest_name(*named) for named in sorted(found, reverse=True)]


async def read_snapshot_manifest(
    storage: ObjectStorage, name: str, store_id: uuid.UUID | None = None
) -> MetadataManifest:
    """The manifest of this name, which must be of this store; None: of any. Two requests.

    Raises MetadataSnapshotError, StorageUnavailableError.
    """
    stored = await storage.head(name)
    if stored is None:
        raise SnapshotObjectMissingError(name, "there is no such manifest")
    if not 0 < stored.size <= MANIFEST_BYTES_MAX:
        raise SnapshotObjectDamagedError(name, f"{stored.size:,} bytes are no manifest")
    last: Exception | None = None
    for _ in range(_TRIES):
        try:
            data = await storage.get_range(name, 0, stored.size)
            manifest = decode_metadata_manifest(data, name)
        except ObjectNotFoundError:
            raise SnapshotObjectMissingError(name, "it was deleted meanwhile") from None
        except (MetadataManifestFormatError, InvalidRangeError) as error:
            last = error
            continue
        if store_id not in (None, manifest.store_id):
            raise SnapshotObjectDamagedError(name, f"it is of store {manifest.store_id}")
        return manifest
    raise SnapshotObjectDamagedError(name, str(last))


async def download_snapshot(
    storage: ObjectStorage, manifest: MetadataManifest, directory: str, runtime: Runtime
) -> None:
    """Put the files of a snapshot into `directory`, which is not there and has a parent.

    When it returns all is checked and durable; until then nothing has this name. What an earlier
    attempt left is removed. Memory: FILES_AT_ONCE pieces of PIECE_BYTES. Raises
    MetadataSnapshotError, StorageUnavailableError, OSError.
    """
    executor = runtime.executor("metadata-snapshot", FILES_AT_ONCE)
    try:
        download = _Download(storage, manifest, directory + UNFINISHED, runtime.disk, executor)
        await download.run()
        await download.blocking(_finish, runtime.disk, directory)
    finally:
        executor.shutdown(wait=False)


async def check_snapshot_file(
    storage: ObjectStorage, manifest: MetadataManifest, file: SnapshotFile
) -> None:
    """Read a file of a snapshot, and compare it with the manifest. Memory: PIECE_BYTES.

    Raises MetadataSnapshotError if it is not that, StorageUnavailableError.
    """

    async def put(_piece: bytes, _offset: int) -> None: ...

    name = file.object_name(manifest.container_id)
    if name is not None:
        await _read_file(storage, name, file.content, put)


async def _read_file(
    storage: ObjectStorage,
    name: str,
    content: FileContent,
    put: Callable[[bytes, int], Awaitable[None]],
) -> None:
    """`put` gets the pieces, each with its offset; all of them twice if they were wrong."""
    stored = await storage.head(name)
    if stored is None:
        raise SnapshotObjectMissingError(name, "there is no such file")
    if stored.size != content.size:
        raise SnapshotObjectDamagedError(
            name, f"{stored.size:,} bytes where {content.size:,} are recorded"
        )
    crc = 0
    for _ in range(_TRIES):
        crc = 0
        for offset in range(0, content.size, PIECE_BYTES):
            length = min(PIECE_BYTES, content.size - offset)
            try:
                piece = await storage.get_range(name, offset, length)
            except ObjectNotFoundError:
                raise SnapshotObjectMissingError(name, "it was deleted meanwhile") from None
            except InvalidRangeError as error:
                raise SnapshotObjectDamagedError(name, str(error)) from None
            crc = crc32c(piece, crc)
            await put(piece, offset)
        if crc == content.crc32c:
            return
    raise SnapshotObjectDamagedError(
        name, f"checksum {crc:08x} where {content.crc32c:08x} is recorded"
    )


class _Download:
    """One download into a directory that has no reader yet."""

    def __init__(
        self,
        storage: ObjectStorage,
        manifest: MetadataManifest,
        directory: str,
        disk: Disk,
        executor: Executor,
    ) -> None:
        self._storage = storage
        self._manifest = manifest
        self._directory = directory
        self._disk = disk
        self._executor = executor
        self._left = iter(manifest.files)
        self._failed = False

    async def blocking(self, call: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call it in a thread of the pool."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: call(*args, **kwargs))

    async def run(self) -> None:
        await self.blocking(_begin, self._disk, self._directory)
        workers = (self._work() for _ in range(FILES_AT_ONCE))
        for outcome in await gather_outcomes(*workers, name="metadata snapshot download"):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _work(self) -> None:
        for file in self._left:
            try:
                await self._fetch(file)
            except BaseException:
                self._failed = True
                raise
            if self._failed:
                return

    async def _fetch(self, file: SnapshotFile) -> None:
        name = file.object_name(self._manifest.container_id)
        path = f"{self._directory}/{file.content.local_name}"
        target = await self.blocking(self._disk.open, path, write=True, create=True, exclusive=True)
        try:
            if name is not None:
                await self._fetch_object(name, file, target)
            await self.blocking(target.sync)
        finally:
            await self.blocking(target.close)

    async def _fetch_object(self, name: str, file: SnapshotFile, target: DiskFile) -> None:
        async def put(piece: bytes, offset: int) -> None:
            await self.blocking(target.pwrite, [piece], offset)

        await _read_file(self._storage, name, file.content, put)


def _begin(disk: Disk, directory: str) -> None:
    """An empty directory of this name."""
    if disk.exists(directory):
        for name in disk.list_directory(directory):
            disk.unlink(f"{directory}/{name}")
    else:
        disk.make_directory(directory)


def _finish(disk: Disk, directory: str) -> None:
    disk.sync_directory(directory + UNFINISHED)
    disk.rename(directory + UNFINISHED, directory)
    disk.sync_directory(os.path.dirname(os.path.abspath(directory)))
