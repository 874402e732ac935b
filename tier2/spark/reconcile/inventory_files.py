"""Where the files of a prepared listing are: on a path, or at `s3://bucket/key?...` with the keys
of a store's URL.

Blocking. A path may also be written as `file:///path`.
"""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa

from tier2.file_urls import path_of
from tier2.object_storage import ObjectNotFoundError

_S3: Final = "s3://"
_FILE: Final = "file://"


def files_at(path: str) -> list[str]:
    """The file itself, or all files below the folder, sorted; hidden ones and those of `_` are left
    out. May be empty.
    """
    if path.startswith(_S3):
        # Its imports, botocore and obstore, are large.
        from tier2.spark.reconcile.s3_listing import keys_below  # noqa: PLC0415

        if urlsplit(path).path.rpartition(".")[2] in _ENDINGS:
            return [path]
        return [_with_key(path, key) for key in keys_below(path) if _is_visible(key)]
    path = _local(path)
    if not os.path.isdir(path):
        return [path]
    found = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sorted(each for each in found if _is_visible(os.path.relpath(each, path)))


def open_file(path: str) -> pa.NativeFile:
    """The file, to be sought in and read; FileNotFoundError if it is not there."""
    if path.startswith(_S3):
        # Its imports, botocore and obstore, are large.
        from tier2.spark.reconcile.s3_listing import open_key  # noqa: PLC0415

        try:
            file: Any = open_key(path)
            return pa.PythonFile(file, mode="r")
        except ObjectNotFoundError:
            raise FileNotFoundError(path) from None
    return pa.OSFile(_local(path), "rb")


def places_of(manifest: str, destination: str, key: str) -> list[str]:
    """Where a file that S3 Inventory's manifest names may be: in its bucket; of a copy, beside the
    manifest or above it.
    """
    if manifest.startswith(_S3):
        bucket = destination.rpartition(":")[2] or urlsplit(manifest).netloc
        return [urlunsplit(urlsplit(manifest)._replace(netloc=bucket, path=f"/{key}"))]
    folder = os.path.dirname(os.path.abspath(_local(manifest)))
    name = os.path.basename(key)
    places = [os.path.join(folder, name), os.path.join(folder, "data", name)]
    while True:
        places += [os.path.join(folder, key), os.path.join(folder, "data", name)]
        above = os.path.dirname(folder)
        if above == folder:
            return list(dict.fromkeys(places))
        folder = above


def _local(path: str) -> str:
    return path_of(urlsplit(path).path) if path.startswith(_FILE) else path


def _with_key(url: str, key: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{key}"))


def _is_visible(path: str) -> bool:
    return not any(part.startswith((".", "_")) for part in path.replace(os.sep, "/").split("/"))


_ENDINGS: Final[Any] = frozenset(("parquet", "csv", "gz", "orc", "json"))
