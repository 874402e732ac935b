"""FsspecFiles: the blocking half of the fsspec adapter, what one thread does for one call.

Rules of this file:

- a name is worked on by one thread of this process at a time; between processes the unique name is
  the promise;
- nothing is renamed: `mv` overwrites on some back ends and silently does nothing on others;
- what a back end says is checked again: lengths of what was read and written, absence of what was
  deleted;
- an instance with which something went wrong is not used again: its connection may be dead, or
  answer out of turn.

Raises ObjectStorageError, and whatever the back end raises.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import ModuleType
from typing import Any, Final, Literal
from urllib.parse import quote

from fsspec.config import apply_config  # type: ignore[import-untyped]

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import describe
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.urls import HIDDEN, is_secret
from tier2.fsspec_back_ends import modified_ms
from tier2.fsspec_growing import FsspecGrowing
from tier2.fsspec_location import FsspecLocation
from tier2.fsspec_options import SFTP_SCHEMES, SecretFileError, with_secrets
from tier2.metadata_files import (
    METADATA_TEXT_MAX,
    metadata_path,
    metadata_text,
    parse_metadata_text,
)
from tier2.object_names import is_name_part
from tier2.object_storage import (
    NO_METADATA,
    InvalidRangeError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageRefusedError,
    StorageUnavailableError,
    StoredObject,
)

COMPARE_BYTES: Final = 1024 * 1024

SILENCE_S: Final = 60.0
"""A server of WebHDFS that says nothing for so long is given up."""

_STRIPES: Final = 64
_FOLDER_TRIES: Final = 3
_ABSENT: Final = (FileNotFoundError, NotADirectoryError)
# Answers of a server that is well: the connection they came over is kept.
_ANSWERS: Final = (
    FileNotFoundError,
    NotADirectoryError,
    FileExistsError,
    ObjectNotFoundError,
    InvalidRangeError,
)


def _sftp() -> ModuleType:
    """Loads paramiko, which the other back ends do not need."""
    from tier2 import fsspec_sftp  # noqa: PLC0415

    return fsspec_sftp


class FsspecFiles:
    """Objects below a location's root. Connects at the first call."""

    def __init__(self, location: FsspecLocation, runtime: Runtime) -> None:
        self._location = location
        self._back_end = location.back_end
        self._sftp = _sftp() if location.scheme in SFTP_SCHEMES else None
        self._runtime = runtime
        self._clock = runtime.clock
        self._secrets = secret_values(location.options)
        self._stripes = [runtime.lock() for _ in range(_STRIPES)]
        self._idle_lock = runtime.lock()
        self._folder_lock = runtime.lock()
        self._idle: list[Any] = []

    def put(
        self, name: str, parts: Sequence[Buffer], unique_id: bytes, metadata: Mapping[str, str]
    ) -> None:
        del unique_id  # there is no place for it
        path, data = self._path(name), b"".join(parts)
        with self._stripes[zlib.crc32(name.encode()) % _STRIPES], self._file_system() as fs:
            if metadata:
                self.describe(fs, name, metadata)
            if not self._back_end.atomic_create and self._settle(fs, name, data) == "there":
                return
            try:
                self._create(fs, path, data)
            except FileExistsError:
                if self._settle(fs, name, data) == "there":
                    return
                self._create(fs, path, data)
            if not self._back_end.whole:
                self.check_size(fs, name, len(data))

    def grow(self, name: str, unique_id: bytes, metadata: Mapping[str, str]) -> FsspecGrowing:
        del unique_id
        return FsspecGrowing(self, name, metadata, self._runtime.lock())

    def describe(self, fs: Any, name: str, metadata: Mapping[str, str]) -> None:
        """Keep an object's metadata, unless there is an object of this name."""
        if self._info_of(fs, self._path(name)) is None:
            path = metadata_path(self._location.root, name)
            if self._info_of(fs, path) is not None:
                fs.rm_file(path)  # Of an upload that ended before its object had its name.
            self._create(fs, path, metadata_text(metadata))

    def open_new(self, fs: Any, name: str) -> Any:
        """An object to be written from its beginning on. Raises ObjectExistsError."""
        path = self._path(name)
        if self._info_of(fs, path) is not None:
            raise ObjectExistsError(name, "taken before the upload began")
        folder = path.rpartition("/")[0]
        if self._back_end.folders and not fs.exists(folder):
            self._make_folder(fs, folder)
        return fs.open(path, "wb") if self._sftp is None else self._sftp.open_new(fs, path)

    def write_on(self, file: Any, part: Buffer) -> None:
        """Write at the end of what `open_new` gave."""
        if self._sftp is None:
            file.write(part)
        else:
            self._sftp.write(file, part)

    def check_size(self, fs: Any, name: str, size: int) -> None:
        """Raise StorageUnavailableError if an object that was written is of another size."""
        written = self._info_of(fs, self._path(name))
        if written is None or written["size"] != size:
            raise StorageUnavailableError(
                name, f"written, and found as {_size(written)}", "short-object"
            )

    def remove_part(self, fs: Any, name: str) -> None:
        """Remove what is there of an upload that ended in the middle."""
        for path in (metadata_path(self._location.root, name), self._path(name)):
            if self._info_of(fs, path) is not None:
                fs.rm_file(path)

    @property
    def file_system(self) -> Callable[[], AbstractContextManager[Any]]:
        """An instance of the back end, for one thread at a time."""
        return self._file_system

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        with self._file_system() as fs:
            path = self._path(name)
            try:
                data = self._read(fs, path, offset, length)
            except _ABSENT:
                raise ObjectNotFoundError(name, "no such object") from None
            # whatever it is, the range may be the reason: some back ends refuse what others cut
            # short
            except Exception:
                self._check_range(fs, name, offset, length)
                raise
            if len(data) < length:
                self._check_range(fs, name, offset, length)
                raise StorageUnavailableError(
                    name, f"{len(data)} bytes came instead of {length}", "truncated"
                )
            if len(data) > length:
                raise StorageUnavailableError(
                    name, f"{len(data)} bytes came instead of {length}", "wrong-range"
                )
            return data

    def head(self, name: str) -> StoredObject | None:
        with self._file_system() as fs:
            info = self._info_of(fs, self._path(name))
            if info is None or not _is_object(info):
                return None
            return self._stored(name, info)._replace(metadata=self._metadata(fs, name))

    def _metadata(self, fs: Any, name: str) -> Mapping[str, str]:
        try:
            text = self._read(fs, metadata_path(self._location.root, name), 0, METADATA_TEXT_MAX)
        except _ABSENT:
            return NO_METADATA
        return parse_metadata_text(name, text)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._stripes[zlib.crc32(name.encode()) % _STRIPES], self._file_system() as fs:
            # Not a folder: some back ends remove an empty one where a file was meant.
            info = self._info_of(fs, path)
            if info is None or not _is_object(info):
                return
            described = metadata_path(self._location.root, name)
            if self._info_of(fs, described) is not None:
                fs.rm_file(described)
            try:
                fs.rm_file(path)
            except _ABSENT:
                return
            if self._info_of(fs, path) is not None:
                raise StorageUnavailableError(name, "deleted, and still there", "not-deleted")

    def walk(self, prefix: str, start_after: str, folder: str = "") -> Iterator[StoredObject]:
        """Objects below `folder` ("" or ending in a slash), in code point order of their full
        names.
        """
        found: dict[str, StoredObject | None] = {}
        for info in self._children(folder):
            part = str(info["name"]).rstrip("/").rpartition("/")[2]
            if is_name_part(part):
                name = folder + part
                if _is_object(info):
                    found[name] = self._stored(name, info)
                else:
                    # A folder sorts by the slash that follows it in every name inside: "a-b" <
                    # "a/b" < "ab".
                    found[name + "/"] = None
        for name, stored in sorted(found.items()):
            if stored is not None:
                if name.startswith(prefix) and name > start_after:
                    yield stored
            elif (name.startswith(prefix) or prefix.startswith(name)) and (
                name > start_after or start_after.startswith(name)
            ):
                yield from self.walk(prefix, start_after, name)

    def walk_everything(
        self, folder: str, is_left_out: Callable[[str], bool], must_be_seen: Callable[[str], bool]
    ) -> Iterator[StoredObject]:
        """All that lies below `folder` ("" or ending in a slash), whatever it is called, as `walk`
        orders it.

        But what is in a folder that `is_left_out`. A folder that this process may not list is a
        thing by itself, unless it `must_be_seen`.
        """
        left = self._everything_in(folder)[::-1]
        while left:
            stored, is_folder = left.pop()
            if not is_folder:
                yield stored
            elif not is_left_out(stored.name):
                try:
                    left += reversed(self._everything_in(stored.name))
                except PermissionError:
                    if must_be_seen(stored.name):
                        raise
                    yield stored

    def scrubbed(self, text: str) -> str:
        """What a back end said, without the secrets that it was given: some repeat the URL of a
        request.
        """
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN).replace(quote(secret, safe=""), HIDDEN)
        return text

    def close(self) -> None:
        with self._idle_lock:
            idle, self._idle = self._idle, []
        for fs in idle:
            self._drop(fs)

    def _settle(self, fs: Any, name: str, data: bytes) -> Literal["there", "free"]:
        """What the object under our name means: ours, then it is there; a part of ours, then it
        goes.
        """
        path = self._path(name)
        info = self._info_of(fs, path)
        if info is None:
            return "free"
        if not _is_object(info):
            raise ObjectExistsError(name, "a folder of this name is there")
        size = int(info["size"])
        if size > len(data) or not self._begins_with(fs, path, data[:size]):
            raise ObjectExistsError(name, "taken by an object with other bytes")
        if size == len(data):
            return "there"
        if self._back_end.whole:
            raise ObjectExistsError(name, "taken by a shorter object")
        # An upload of ours that was cut off. Removed, not overwritten: its writer may still hold
        # the old file open.
        fs.rm_file(path)
        return "free"

    def _begins_with(self, fs: Any, path: str, data: bytes) -> bool:
        return all(
            self._read(fs, path, offset, len(piece)) == piece
            for offset in range(0, len(data), COMPARE_BYTES)
            if (piece := data[offset : offset + COMPARE_BYTES])
        )

    def _create(self, fs: Any, path: str, data: bytes) -> None:
        try:
            self._write(fs, path, data)
        except FileExistsError:
            raise
        except Exception as error:  # no two back ends agree on what a missing folder is
            folder = path.rpartition("/")[0]
            if not self._back_end.folders:
                if isinstance(error, FileNotFoundError):
                    missing = (
                        f"{self._location.shown} is not there: make the bucket or container, "
                        "or correct the URL"
                    )
                    raise StorageRefusedError(path, missing, "ENOENT") from error
                raise
            if not fs.exists(folder):
                self._make_folder(fs, folder)
            elif not isinstance(error, FileNotFoundError):
                raise
            # The folder exists now: made here, or by another process meanwhile.
            self._write(fs, path, data)

    def _make_folder(self, fs: Any, folder: str) -> None:
        with self._folder_lock:
            for left in reversed(range(_FOLDER_TRIES)):
                try:
                    fs.makedirs(folder, exist_ok=True)
                except Exception:  # another process made one of them between a check and a making
                    if not left:
                        raise
                else:
                    return

    def _write(self, fs: Any, path: str, data: bytes) -> None:
        if self._sftp is not None:
            self._sftp.create(fs, path, data)
        elif self._back_end.atomic_create:
            fs.pipe_file(path, data, mode="create")
        else:
            fs.pipe_file(path, data)

    def _read(self, fs: Any, path: str, offset: int, length: int) -> bytes:
        if self._sftp is not None:
            data: bytes = self._sftp.read(fs, path, offset, length)
            return data
        return bytes(fs.cat_file(path, start=offset, end=offset + length))

    def _info_of(self, fs: Any, path: str) -> Mapping[str, Any] | None:
        # The listings cache is off, but not every back end passes that on to where it counts.
        fs.invalidate_cache()
        try:
            found: Mapping[str, Any] = fs.info(path)
        except _ABSENT:
            return None
        return found

    def _check_range(self, fs: Any, name: str, offset: int, length: int) -> None:
        info = self._info_of(fs, self._path(name))
        if info is None or not _is_object(info):
            raise ObjectNotFoundError(name, "no such object") from None
        if offset + length > info["size"]:
            raise InvalidRangeError(
                name, f"bytes {offset} to {offset + length} of {info['size']}"
            ) from None

    def _children(self, folder: str) -> list[Mapping[str, Any]]:
        path = self._path(folder).rstrip("/")
        with self._file_system() as fs:
            fs.invalidate_cache()
            try:
                found: list[Mapping[str, Any]] = fs.ls(path, detail=True)
            except _ABSENT:
                return []
        # Object stores may list the folder's own marker among what is in it.
        return [info for info in found if str(info["name"]).strip("/") != path.strip("/")]

    def _everything_in(self, folder: str) -> list[tuple[StoredObject, bool]]:
        """What is in a folder, and whether it is a folder, whose name ends in a slash then; by
        name.
        """
        path = self._path(folder).rstrip("/")
        found: list[tuple[StoredObject, bool]] = []
        with self._file_system() as fs:
            fs.invalidate_cache()
            try:
                infos: list[Mapping[str, Any]] = fs.ls(path, detail=True)
            except _ABSENT:
                return found
            for info in infos:
                shown, is_folder = str(info["name"]), info.get("type") == "directory"
                if shown.strip("/") != path.strip("/"):
                    name = (
                        f"{folder}{shown.rstrip('/').rpartition('/')[2]}{'/' if is_folder else ''}"
                    )
                    found.append((self._anything(name, self._followed(fs, info)), is_folder))
                elif is_folder and not self._back_end.folders:
                    # A part of a name is empty, and the back end cannot check behind it.
                    found.append((self._anything(f"{folder}/", info), False))
                elif not is_folder and shown.endswith("/") and folder:
                    found.append((self._anything(folder, info), False))  # The folder's own marker.
        return sorted(found, key=lambda each: each[0].name)

    def _followed(self, fs: Any, info: Mapping[str, Any]) -> Mapping[str, Any]:
        """A link to a file is that file, as it is to its readers; any other is itself."""
        if info.get("type") in {"file", "directory"}:
            return info
        try:
            seen = self._info_of(fs, str(info["name"]))
        except OSError:
            return info
        return seen if seen is not None and _is_object(seen) else info

    def _anything(self, name: str, info: Mapping[str, Any]) -> StoredObject:
        return StoredObject(
            name, int(info.get("size") or 0), modified_ms(info, self._clock.time_ms())
        )

    def _stored(self, name: str, info: Mapping[str, Any]) -> StoredObject:
        # Of unknown age is of no age: what is deleted for being old must be known to be.
        return StoredObject(name, int(info["size"]), modified_ms(info, self._clock.time_ms()))

    def _path(self, name: str) -> str:
        return f"{self._location.root}/{name}"

    @contextmanager
    def _file_system(self) -> Iterator[Any]:
        fs = self._take()
        kept = False
        try:
            yield fs
            kept = True
        except _ANSWERS:
            kept = True
            raise
        finally:
            if not kept:
                self._drop(fs)
            elif not self._back_end.shared:
                with self._idle_lock:
                    self._idle.append(fs)

    def _take(self) -> Any:
        while True:
            with self._idle_lock:
                if self._back_end.shared:
                    if not self._idle:
                        self._idle.append(self._connect())
                    return self._idle[0]
                fs = self._idle.pop() if self._idle else None
            if fs is None:
                return self._connect()
            if self._sftp is None or self._sftp.is_connected(fs):
                return fs
            self._drop(fs)

    def _connect(self) -> Any:
        """A file system of its own.

        What a person has to mend about its options is refused, not tried again.
        """
        shown = self._location.shown
        try:
            options = with_secrets(
                self._location.options, self._location.secret_files, self._runtime
            )
            # With what fsspec's own configuration adds.
            options = apply_config(self._location.file_system, options)
            self._secrets |= secret_values(options)
            made = self._connected({**self._back_end.defaults, **options})
        except SecretFileError as error:
            raise StorageRefusedError(shown, str(error), "secret-file") from None
        except FileNotFoundError as error:
            detail = (
                f"a file that an option names is not there: {self.scrubbed(str(error))} (ENOENT)"
            )
            raise StorageRefusedError(shown, detail, "ENOENT") from None
        except (TypeError, ValueError) as error:
            detail = (
                f"the file system does not take these options: {self.scrubbed(describe(error))}"
            )
            raise StorageRefusedError(shown, detail, "options") from None
        return made

    def _connected(self, options: Mapping[str, Any]) -> Any:
        make = self._location.file_system
        if self._sftp is None:
            made = make(**options, skip_instance_cache=True, use_listings_cache=False)
            if self._location.scheme == "webhdfs":
                # It knows no timeout, and would wait for ever for a server that says nothing.
                made.session.request = partial(made.session.request, timeout=SILENCE_S)
            return made
        return self._sftp.connect(make, options)

    def _drop(self, fs: Any) -> None:
        if self._back_end.shared:
            with self._idle_lock:
                if fs in self._idle:
                    self._idle.remove(fs)
        if self._sftp is not None:
            self._sftp.disconnect(fs)


def secret_values(options: Mapping[str, Any]) -> set[str]:
    """Those of the options that must not be shown."""
    return {str(value) for key, value in options.items() if is_secret(key, str(value))}


def _is_object(info: Mapping[str, Any]) -> bool:
    return info.get("type") == "file"


def _size(info: Mapping[str, Any] | None) -> str:
    return "absent" if info is None else f"{info['size']} bytes"
