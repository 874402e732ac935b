"""Listings of a bucket as Arrow tables: one shard at a time, and what is in no shard.

Names of our objects begin with one of 256 shards, so a listing is cut by itself, and each cut is
one request of a prefix. Rules of this file:

- a row never becomes Python values on the way where the place allows it. S3 is listed by
  `s3_listing`, a folder by the operating system's own scan, other places by
  `FsspecObjectStorage.list_everything`;
- whatever lies there is listed, however it is called: `ObjectStorage.list`, which shows names of
  objects alone, would hide what is foreign. It serves memory, where nothing else can be;
- what the engine keeps beside segments (`object_names.ENGINE_PREFIXES`) is listed apart, its
  staging folder not at all;
- a listing that fails raises ObjectStorageError: a listing in part is never taken for a whole one.

Blocking: for tasks of a job, which have no event loop running.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.contracts.runtime import Runtime
from tier2.file_staging import FOLDER as STAGING_FOLDER
from tier2.file_urls import path_of
from tier2.locations import check_object_storage_url, open_object_storage
from tier2.metadata_files import METADATA_FOLDER
from tier2.object_names import ENGINE_PREFIXES, may_hold_ours
from tier2.object_storage import StorageUnavailableError, StoredObject
from tier2.spark.reconcile.listing_table import TABLE_ROWS, key_text, listing_table

SHARDS: Final = tuple(f"{shard:02x}" for shard in range(256))
"""What names of objects begin with, by the shard's number."""

_SHARD_SET: Final = frozenset(SHARDS)

_Entry = tuple[str, os.DirEntry[str]]
"""Below the root; a folder's name ends in a slash."""

_CLOSED: Final = frozenset(("EACCES", "EPERM", "ENAMETOOLONG"))
"""Why a folder cannot be inspected, now or later."""


def list_shard(url: str, shard: int) -> Iterator[pa.Table]:
    """LISTING of one shard, 0 to 255, of the store at `url`; tables of at most TABLE_ROWS rows, by
    key.

    Raises ConfigError("tier2", ...) for the URL, ObjectStorageError where the place does not
    answer.
    """
    return list_folder(url, f"{SHARDS[shard]}/")


def list_folder(url: str, prefix: str) -> Iterator[pa.Table]:
    """LISTING of all below `prefix`, a shard or one of the engine's own, with its slash.

    As `list_shard`.
    """
    check_object_storage_url(url)
    if _is(url, "s3"):
        # Its imports, botocore and obstore, are large.
        from tier2.spark.reconcile.s3_listing import list_prefix  # noqa: PLC0415

        return list_prefix(url, prefix)
    if _is(url, "file"):
        root = _root(url)
        return _tables(_below(root, _entries(root, prefix)))
    return _tables(asyncio.run(_listed(url, prefix)))


def list_rest(url: str) -> Iterator[pa.Table]:
    """LISTING of what lies in no shard and is not the engine's own: foreign names, all of them.

    Costs one check of the top, and a listing of each foreign prefix there. In no order. Raises as
    `list_shard`.
    """
    check_object_storage_url(url)
    if _is(url, "s3"):
        # Its imports, botocore and obstore, are large.
        from tier2.spark.reconcile.s3_listing import list_top  # noqa: PLC0415

        return list_top(url, is_known_prefix)
    if _is(url, "file"):
        root = _root(url)
        return _tables(_below(root, _foreign_entries(root)))
    return _tables(asyncio.run(_listed(url, "")))


def is_known_prefix(prefix: str) -> bool:
    """Whether `prefix`, with its slash, is a shard's or one of the engine's own."""
    return prefix in ENGINE_PREFIXES or (
        len(prefix) == 3 and prefix[2] == "/" and prefix[:2] in _SHARD_SET
    )


def shards_of(keys: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """Of each key its shard, two hexadecimal digits; empty where it is in none.

    For a shuffle by shard.
    """
    inside = pc.match_substring_regex(keys, "^[0-9a-f]{2}/")
    shards: pa.ChunkedArray[Any] = pc.if_else(
        inside, pc.utf8_slice_codeunits(keys, 0, 2), pa.scalar("")
    )
    return shards


def _is(url: str, scheme: str) -> bool:
    return url.partition("://")[0].lower() == scheme


def _root(url: str) -> str:
    return path_of(urlsplit(url).path)


def _tables(stored: Iterable[StoredObject]) -> Iterator[pa.Table]:
    rows: list[StoredObject] = []
    for each in stored:
        rows.append(each)
        if len(rows) == TABLE_ROWS:
            yield listing_table(rows)
            rows = []
    if rows:
        yield listing_table(rows)


def _below(root: str, entries: Sequence[_Entry]) -> Iterator[StoredObject]:
    """All that is in there, in code point order of the names.

    A folder that this process may not list is one foreign thing by itself.
    """
    left = list(reversed(entries))
    while left:
        name, entry = left.pop()
        if not name.endswith("/"):
            yield from _file(name, entry)
            continue
        try:
            left += reversed(_entries(root, name))
        except StorageUnavailableError as error:
            if error.kind not in _CLOSED or may_hold_ours(name):
                raise
            yield from _file(name, entry)


def _foreign_entries(root: str) -> list[_Entry]:
    """What is at the top and not the engine's own, be it a folder or a link to one."""
    return [
        (name, entry)
        for name, entry in _entries(root, "")
        if not (_is_ours(f"{entry.name}/") and os.path.isdir(entry.path))
    ]


def _is_ours(top: str) -> bool:
    """Also the folders of files that are no objects: a store in a folder may be listed over a
    server of files.
    """
    return is_known_prefix(top) or top in {f"{STAGING_FOLDER}/", f"{METADATA_FOLDER}/"}


def _entries(root: str, folder: str) -> list[_Entry]:
    """What is in a folder, sorted; a folder's name ends with the slash that follows it in the names
    of its files.

    A link to a folder is none: what it leads to lies elsewhere, or around it.
    """
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            found = [
                (f"{folder}{entry.name}{'/' if entry.is_dir(follow_symlinks=False) else ''}", entry)
                for entry in entries
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []  # Deleted meanwhile, the last object and its folder.
    except OSError as error:
        raise _unavailable(folder, error) from error
    return sorted(found, key=lambda each: key_text(each[0]))


def _file(name: str, entry: os.DirEntry[str]) -> Iterator[StoredObject]:
    try:
        seen = _seen(entry)
    except FileNotFoundError:
        return  # Deleted meanwhile.
    except OSError as error:
        raise _unavailable(name, error) from error
    yield StoredObject(name, seen.st_size, seen.st_mtime_ns // 1_000_000)


def _seen(entry: os.DirEntry[str]) -> os.stat_result:
    """A link to a file is that file, as storages see it; one that leads to a folder, or nowhere, is
    itself.
    """
    if entry.is_symlink():
        with contextlib.suppress(OSError):
            seen = entry.stat()
            if not stat.S_ISDIR(seen.st_mode):
                return seen
    return entry.stat(follow_symlinks=False)


def _unavailable(name: str, error: OSError) -> StorageUnavailableError:
    code = errno.errorcode.get(error.errno or 0, "OSError")
    return StorageUnavailableError(name, f"{error.strerror or error} ({code})", code)


async def _listed(url: str, folder: str) -> list[StoredObject]:
    """Below `folder`; of the top without the engine's own."""
    if _is(url, "memory"):
        storage = open_object_storage(url, Runtime())
        pages = storage.list(folder)
    else:
        # Its import, fsspec, is large.
        from tier2.fsspec_object_storage import FsspecObjectStorage  # noqa: PLC0415

        storage = by_fsspec = FsspecObjectStorage(url, Runtime())
        pages = by_fsspec.list_everything(folder, _is_ours, may_hold_ours)
    try:
        found = [stored async for page in pages for stored in page]
    finally:
        await storage.close()
    return found if folder else [each for each in found if not is_known_prefix(_top(each.name))]


def _top(name: str) -> str:
    return name[: name.find("/") + 1]
