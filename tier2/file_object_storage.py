"""FileObjectStorage: an object storage in a folder.

One object, one file, byte for byte, at root/name.

A put writes and syncs a staging file, then links it to its name: the link is the put-if-absent, and
a reader never sees a part. Folders get durable as FileTree says. Rules of this file:

- "one's own object" is recognised by its bytes: a file has no place for the unique id that would
  not make it another file. Under one name, equal bytes are the same object; other bytes are
  ObjectExistsError;
- a name whose durability is unknown (found there by a retried put) is replaced by the freshly
  synced copy of the same bytes. A failed sync is never repeated on the same file and believed;
- metadata that an object is put with are a file of their own, root/~metadata/name, there before the
  object and removed before it;
- several processes, and several stores, may use one root at the same time.
"""

from __future__ import annotations

import errno
import os.path
import posixpath
from collections.abc import Iterator, Mapping, Sequence

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.runtime import Runtime
from tier2.file_growing import GrowingFile
from tier2.file_staging import StagingFolder
from tier2.file_tree import FileTree
from tier2.file_urls import printable
from tier2.metadata_files import metadata_path, metadata_text, parse_metadata_text
from tier2.object_names import is_name_part
from tier2.object_storage import (
    NO_METADATA,
    InvalidRangeError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageUnavailableError,
    StoredObject,
)
from tier2.synced_writing import SYNCED_BYTES, SyncSizes, write_synced
from tier2.threaded_object_storage import PAGE_OBJECTS, ThreadedObjectStorage

COMPARE_BYTES = 1024 * 1024

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class _Files:
    """The blocking half: what one thread does for one call.

    Raises ObjectStorageError and OSError.
    """

    def __init__(self, runtime: Runtime, root: str, tag: int) -> None:
        self._disk = runtime.disk
        self._lock = runtime.lock
        self._root = root
        self._staging = StagingFolder(runtime, root, tag)
        self._tree = FileTree(runtime, root)
        self._boot = runtime.boot
        self._sync_sizes = SyncSizes()

    def put(
        self, name: str, parts: Sequence[Buffer], unique_id: bytes, metadata: Mapping[str, str]
    ) -> None:
        self._publish(name, self._stage(parts, unique_id), unique_id, metadata)

    def grow(self, name: str, unique_id: bytes, metadata: Mapping[str, str]) -> GrowingFile:
        def publish(staged: str) -> None:
            self._publish(name, staged, unique_id, metadata)

        return GrowingFile(self._disk, self._staging, unique_id, self._lock(), publish)

    def _publish(
        self, name: str, staged: str, unique_id: bytes, metadata: Mapping[str, str]
    ) -> None:
        """Give a staged file, which is discarded in any case, its name."""
        target = self._path(name)
        try:
            if metadata and not self._disk.exists(target):
                self._describe(name, unique_id, metadata)
            try:
                self._tree.link(staged, target)
            except FileExistsError:
                if not self._same_bytes(staged, target):
                    raise ObjectExistsError(name, "taken by an object with other bytes") from None
                self._tree.replace(staged, target)
            except NotADirectoryError:
                raise ObjectExistsError(name, "a folder of this name is an object") from None
        finally:
            self._staging.discard(staged)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        try:
            file = self._disk.open(self._path(name))
        except _ABSENT:
            raise ObjectNotFoundError(name, "no such object") from None
        try:
            data = file.pread(offset, length)
            if len(data) < length:
                raise InvalidRangeError(
                    name, f"bytes {offset} to {offset + length} of {file.size()}"
                )
        except IsADirectoryError:
            raise ObjectNotFoundError(name, "no such object") from None
        finally:
            file.close()
        return data

    def head(self, name: str) -> StoredObject | None:
        found = self._listed(name)
        return None if found is None else found._replace(metadata=self._metadata(name))

    def _listed(self, name: str) -> StoredObject | None:
        path = self._path(name)
        try:
            if self._disk.is_directory(path):
                return None
            return StoredObject(name, self._disk.size(path), self._disk.modified_ms(path))
        except _ABSENT:
            return None

    def _metadata(self, name: str) -> Mapping[str, str]:
        try:
            file = self._disk.open(metadata_path(self._root, name))
        except _ABSENT:
            return NO_METADATA
        try:
            return parse_metadata_text(name, file.pread(0, file.size()))
        finally:
            file.close()

    def _describe(self, name: str, unique_id: bytes, metadata: Mapping[str, str]) -> None:
        staged = self._stage([metadata_text(metadata)], unique_id)
        try:
            self._tree.replace(staged, metadata_path(self._root, name))
        finally:
            self._staging.discard(staged)

    def delete(self, name: str) -> None:
        described = metadata_path(self._root, name)
        if self._disk.exists(described):
            self._unlink(described)
        self._unlink(self._path(name))

    def _unlink(self, path: str) -> None:
        folder = posixpath.dirname(path)
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            # An earlier delete may have got this far and then failed to sync: absent is not yet
            # durably absent.
            pass
        except (NotADirectoryError, IsADirectoryError):
            return
        self._tree.sync_nearest(folder)
        self._tree.prune(folder)

    def walk(self, prefix: str, start_after: str, folder: str = "") -> Iterator[StoredObject]:
        """Objects below `folder` ("" or ending in a slash), in code point order of their full
        names.
        """
        try:
            parts = self._disk.list_directory(posixpath.join(self._root, folder))
        except _ABSENT:
            return
        names = [folder + part for part in parts if is_name_part(part)]
        # A folder sorts by the slash that follows it in every name inside: "a-b" < "a/b" < "ab".
        for name in sorted(
            name + "/" if self._disk.is_directory(self._path(name)) else name for name in names
        ):
            if not name.endswith("/"):
                if name.startswith(prefix) and name > start_after:
                    found = self._listed(name)
                    if found is not None:
                        yield found
            elif _overlaps(name, prefix) and (name > start_after or start_after.startswith(name)):
                yield from self.walk(prefix, start_after, name)

    def close(self) -> None:
        self._staging.close()

    def _stage(self, parts: Sequence[Buffer], unique_id: bytes) -> str:
        """The path of a staging file that holds `parts`, synced."""
        path = self._staging.new_path(unique_id)
        try:
            self._write(path, parts)
        except FileNotFoundError:
            # A hand from outside removed the folder.
            self._staging.renew()
            path = self._staging.new_path(unique_id)
            self._write(path, parts)
        return path

    def _write(self, path: str, parts: Sequence[Buffer]) -> None:
        file = self._disk.open(path, write=True, create=True, exclusive=True)
        try:
            length = sum(map(len, parts))
            if length > SYNCED_BYTES:
                # Or each part would change the length of the file, and its sync the journal.
                file.allocate(0, length)
                file.write_directly()
                begun_ms = self._boot().elapsed_ms
                write_synced(file, parts, 0, self._sync_sizes.begin(begun_ms))
                self._sync_sizes.end(begun_ms, self._boot().elapsed_ms)
            else:
                write_synced(file, parts, 0)
        except BaseException:
            self._staging.discard(path)
            raise
        finally:
            file.close()

    def _same_bytes(self, one_path: str, other_path: str) -> bool:
        if self._disk.is_directory(other_path):
            return False
        one = self._disk.open(one_path)
        try:
            other = self._disk.open(other_path)
            try:
                size = one.size()
                return size == other.size() and all(
                    one.pread(offset, COMPARE_BYTES) == other.pread(offset, COMPARE_BYTES)
                    for offset in range(0, size, COMPARE_BYTES)
                )
            finally:
                other.close()
        finally:
            one.close()

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)


class FileObjectStorage(ThreadedObjectStorage[_Files]):
    """Objects as files under `root`, an existing or new folder.

    Nothing is touched before the first put.
    """

    def __init__(
        self, root: str, runtime: Runtime, *, threads: int = 4, page_objects: int = PAGE_OBJECTS
    ) -> None:
        root = os.path.abspath(root)
        files = _Files(runtime, root, runtime.random.getrandbits(64))
        self.root = root
        super().__init__(
            files,
            f"file://{printable(root)}",
            runtime,
            "tier2-file",
            threads=threads,
            page_objects=page_objects,
        )

    @property
    def is_local(self) -> bool:
        return True

    def _understood(self, name: str, error: Exception) -> StorageUnavailableError:
        if not isinstance(error, OSError):
            raise error
        detail = error.strerror or str(error)
        code = errno.errorcode.get(error.errno or 0, "OSError")
        return StorageUnavailableError(name, f"{detail} ({code})", code)


def _overlaps(folder: str, prefix: str) -> bool:
    return folder.startswith(prefix) or prefix.startswith(folder)
