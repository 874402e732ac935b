"""What is known of the back ends that fsspec offers, and what is done otherwise for one of them:
pure knowledge.

The adapter (`fsspec_object_storage`) believes no back end more than what stands here. Rules of this
file:

- a scheme that is not named gets the most careful treatment: `_UNKNOWN`;
- an entry states what was measured; a promise in a back end's documentation is not enough for
  `atomic_create` or `whole`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple


class BackEnd(NamedTuple):
    """What a back end gives, and how it wants to be used."""

    atomic_create: bool
    """Of two that create one name at once, one gets the reply that it exists."""
    whole: bool
    """An object is seen whole or not at all: what an upload was cut off from is not there."""
    folders: bool
    """Objects lie in folders that have to be made."""
    shared: bool
    """One instance may serve several threads at once; else each thread gets its own."""
    defaults: Mapping[str, str] = MappingProxyType({})
    """Options for where neither the URL nor fsspec's configuration has them."""


_UNKNOWN: Final = BackEnd(atomic_create=False, whole=False, folders=True, shared=False)
_CLOUD: Final = BackEnd(atomic_create=True, whole=True, folders=False, shared=True)
# Where there are no default credentials gcsfs would ask the service that machines of Google's have,
# for half a minute, and then go on without any.
_GOOGLE: Final = _CLOUD._replace(defaults={"token": "google_default"})

_KNOWN: Final[Mapping[str, BackEnd]] = {
    # A condition in the request, checked by the service itself (ifGenerationMatch=0,
    # If-None-Match).
    "gs": _GOOGLE,
    "gcs": _GOOGLE,
    "abfs": _CLOUD,
    "az": _CLOUD,
    # O_EXCL by the server's file system; fsspec's own "create" only checks first (see
    # SftpFileSystem in fsspec_sftp).
    "sftp": BackEnd(atomic_create=True, whole=False, folders=True, shared=False),
    "ssh": BackEnd(atomic_create=True, whole=False, folders=True, shared=False),
    # CREATE with overwrite=false is the name node's; a file cut off stays there, short.
    "webhdfs": BackEnd(atomic_create=True, whole=False, folders=False, shared=False),
    # A dictionary: checks, then sets.
    "memory": BackEnd(atomic_create=False, whole=True, folders=False, shared=False),
}

REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("s3", "s3a"), "S3 has an adapter of its own: write s3://bucket/prefix"),
    **dict.fromkeys(("file", "local"), "folders have an adapter of their own: write file:///path"),
    **dict.fromkeys(
        (
            "http",
            "https",
            "git",
            "github",
            "gist",
            "jlab",
            "jupyter",
            "data",
            "hf",
            "wandb",
            "root",
            "box",
        ),
        "objects cannot be kept there",
    ),
    **dict.fromkeys(
        (
            *(
                "zip",
                "tar",
                "libarchive",
                "reference",
                "dir",
                "cached",
                "blockcache",
                "filecache",
                "simplecache",
            ),
            *("generic", "dask", "asynclocal", "async_wrapper", "asyncwrapper", "pyscript"),
        ),
        "that is a view of another file system; name that one",
    ),
}
"""Schemes that fsspec knows and that are no place for Tier 2, with the reason."""

_TIME_FIELDS: Final = (
    "mtime",
    "modified",
    "last_modified",
    "LastModified",
    "updated",
    "modificationTime",
    "created",
)
_MILLISECONDS_FROM: Final = 1e11
"""A number from here on counts milliseconds, one below counts seconds: as seconds it would be the
year 5138.
"""


def back_end(scheme: str) -> BackEnd:
    """What is known of a scheme."""
    return _KNOWN.get(scheme, _UNKNOWN)


def modified_ms(info: Mapping[str, Any], otherwise_ms: int) -> int:
    """When a file changed last, milliseconds since 1970 UTC, whatever its back end calls that; else
    `otherwise_ms`.
    """
    for field in _TIME_FIELDS:
        value = info.get(field)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                continue
        if isinstance(value, datetime):
            aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            return int(aware.timestamp() * 1000)
        if isinstance(value, int | float) and value > 0:
            return int(value if value >= _MILLISECONDS_FROM else value * 1000)
    return otherwise_ms
