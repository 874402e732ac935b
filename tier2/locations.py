"""Where Tier 2 is: from a URL in the settings to an object storage.

`file:///absolute/path`, `memory://` (private, lost when closed), `memory://name` (shared by
all stores of this process that name it, as long as its `MemoryStorages` lives),
`s3://bucket/prefix?key=value` (tier2/s3), and whatever else fsspec knows. Rules of this file:

- another scheme joins by a line in `_SCHEMES`;
- botocore and fsspec are large, and extras: they are imported when a URL asks for them and not
  before. So are the modules of every place that is no folder.
"""

from __future__ import annotations

import importlib.util
import os.path
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.urls import redacted
from tier2.credentials import refuse_secrets
from tier2.file_object_storage import FileObjectStorage
from tier2.file_urls import path_of
from tier2.object_storage import ObjectStorage

if TYPE_CHECKING:
    from tier2.memory_object_storage import MemoryBucket
    from tier2.s3.s3_location import S3Location

SETTING = "tier2"


class MemoryStorages:
    """Named buckets in memory.

    The holder of the registry decides how long, and how widely, they are shared.
    """

    def __init__(self) -> None:
        self._buckets: dict[str, MemoryBucket] = {}

    def bucket(self, name: str) -> MemoryBucket:
        """The bucket of this name, made at the first call."""
        from tier2.memory_object_storage import MemoryBucket  # noqa: PLC0415

        return self._buckets.setdefault(name, MemoryBucket())

    def drop(self, name: str) -> None:
        """Forget a bucket and its objects, if it is there."""
        self._buckets.pop(name, None)


PROCESS_MEMORY = MemoryStorages()
"""The registry used where the caller hands in none: a store closed and opened again finds its
objects.
"""


class _Scheme(NamedTuple):
    """How URLs of one scheme are checked, without touching anything, and opened."""

    check: Callable[[str], object]
    open: Callable[[str, Runtime, MemoryStorages], ObjectStorage]


def check_object_storage_url(url: str, *, new: bool = False) -> None:
    """Raise ConfigError("tier2", ...) if `open_object_storage` would; makes and touches nothing.

    With `new` also for what stores have been made with and no store shall be made with again: a
    secret in the URL, and an option without effect.
    """
    scheme = _scheme_of(url)
    if new:
        refuse_secrets(url)
        if scheme is _FSSPEC:
            _check_fsspec(url, new=True)
    scheme.check(url)


def check_archive_url(url: str, tier2: str) -> None:
    """Raise ConfigError("archive", ...) for what cannot be the archive of a store whose Tier 2 has
    the URL `tier2`; makes and touches nothing.
    """
    try:
        check_object_storage_url(url)
        if is_same_place(url, tier2):
            raise ConfigError("archive", "it must be another place than tier2")
    except ConfigError as error:
        raise ConfigError("archive", error.reason) from error


def open_object_storage(
    url: str, runtime: Runtime, *, memory: MemoryStorages | None = None
) -> ObjectStorage:
    """The object storage at `url`; nothing is touched before its first call.

    Raises ConfigError("tier2", ...).
    """
    scheme = _scheme_of(url)
    scheme.check(url)
    return scheme.open(url, runtime, memory if memory is not None else PROCESS_MEMORY)


def is_same_place(url: str, other: str) -> bool:
    """Whether two URLs name one place, however they are written. Links of folders, and two names of
    one server, are not seen through.
    """
    return _place_of(url) == _place_of(other)


def _place_of(url: str) -> tuple[object, ...]:
    scheme = _scheme_of(url)
    if scheme.open is _open_s3:
        place = _parse_s3(url)
        return ("s3", place.bucket, place.prefix, place.endpoint_url)
    if scheme.open is _open_file:
        return ("file", os.path.normpath(_file_path(url)))
    parts = urlsplit(url)
    return (parts.scheme, parts.netloc, parts.path.rstrip("/"))


def _scheme_of(url: str) -> _Scheme:
    name, separator, _ = url.partition("://")
    if not separator:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        detail = (
            f"{redacted(url)!r} does not begin with one of {known}, or another scheme that "
            "fsspec knows"
        )
        raise ConfigError(SETTING, f"{detail}; for a folder write {_as_url(redacted(url))}")
    try:
        url.encode()
    except UnicodeEncodeError:
        # store.toml is UTF-8 text, and so are the nodes of a store on BookKeeper.
        reason = (
            f"{redacted(url)!r} has bytes that are not UTF-8: write each as a percent sign "
            "and two hex digits, as %FF"
        )
        raise ConfigError(SETTING, reason) from None
    return _SCHEMES.get(name.lower(), _FSSPEC)


def _as_url(path: str) -> str:
    """What to write instead of a path."""
    return (
        PurePosixPath(path).as_uri()
        if path.startswith("/")
        else "file:///absolute/path, or pass a pathlib.Path"
    )


def _memory_name(url: str) -> str:
    parts = _plain_parts(url)
    try:
        return unquote(parts.netloc + parts.path, errors="strict")
    except UnicodeDecodeError:
        # Not U+FFFD in its place: two names would become one.
        raise ConfigError(SETTING, f"{url!r}: the percent-encoded name is not UTF-8") from None


def _plain_parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(SETTING, f"{redacted(url)!r} is not a URL: {error}") from None
    if parts.query or parts.fragment:
        raise ConfigError(
            SETTING,
            f"{redacted(url)!r} has a query or a fragment (write ? and # in a path as %3F and %23)",
        )
    return parts


def _file_path(url: str) -> str:
    parts = _plain_parts(url)
    path = path_of(parts.path)
    if parts.netloc not in {"", "localhost"}:
        raise ConfigError(
            SETTING, f"{redacted(url)!r}: a path begins with a third slash, as in file:///data"
        )
    if not path.strip("/") or "\0" in path:
        raise ConfigError(SETTING, f"{path!r} is not a folder for objects")
    return path


def _open_file(url: str, runtime: Runtime, _: MemoryStorages) -> ObjectStorage:
    return FileObjectStorage(_file_path(url), runtime)


def _open_memory(url: str, runtime: Runtime, memory: MemoryStorages) -> ObjectStorage:
    from tier2.memory_object_storage import MemoryObjectStorage  # noqa: PLC0415

    name = _memory_name(url)
    bucket = memory.bucket(name) if name else None
    return MemoryObjectStorage(runtime, bucket, name=name)


def _open_s3(url: str, runtime: Runtime, _: MemoryStorages) -> ObjectStorage:
    from tier2.s3.s3_object_storage import S3ObjectStorage  # noqa: PLC0415

    return S3ObjectStorage(_parse_s3(url), runtime)


def _parse_s3(url: str) -> S3Location:
    from tier2.s3.s3_location import parse_s3_url  # noqa: PLC0415

    return parse_s3_url(url)


def _check_s3(url: str) -> None:
    _parse_s3(url)
    require_extra("s3", "a Tier 2 at s3://")


def _check_fsspec(url: str, *, new: bool = False) -> None:
    scheme = url.partition("://")[0].lower()
    if scheme in {"sftp", "ssh"}:
        require_extra("sftp", f"a Tier 2 at {scheme}://")
    elif importlib.util.find_spec("fsspec") is None:
        detail = (
            f"{scheme}:// needs the package fsspec, and what fsspec needs for {scheme}://: "
            "they are not installed"
        )
        raise ConfigError(SETTING, detail)
    from tier2.fsspec_object_storage import check_fsspec_url  # noqa: PLC0415

    check_fsspec_url(url, new=new)


def _open_fsspec(url: str, runtime: Runtime, _: MemoryStorages) -> ObjectStorage:
    from tier2.fsspec_object_storage import FsspecObjectStorage  # noqa: PLC0415

    return FsspecObjectStorage(url, runtime)


_SCHEMES: Mapping[str, _Scheme] = {
    "file": _Scheme(_file_path, _open_file),
    "memory": _Scheme(_memory_name, _open_memory),
    "s3": _Scheme(_check_s3, _open_s3),
}

_FSSPEC = _Scheme(_check_fsspec, _open_fsspec)
"""Every other scheme is fsspec's to know or to refuse."""
