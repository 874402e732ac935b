"""Where Tier 2 is: from a URL in the settings to an object storage.

`file:///absolute/path`, `memory://` (private, gone when closed), `memory://name` (shared by everybody in this
process who names it, as long as its `MemoryStorages` lives), `s3://bucket/prefix?key=value` (tier2/s3), and whatever
else fsspec knows. Rules of this file:

- another scheme joins by a line in `_SCHEMES`;
- boto3 and fsspec are large, so they are imported when a URL asks for them and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tier2.file_object_storage import FileObjectStorage
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage
from tier2.object_storage import ObjectStorage
from tier2.s3.s3_location import parse_s3_url

SETTING = "tier2"


class MemoryStorages:
    """Named buckets in memory. Who holds the registry decides how long, and how widely, they are shared."""

    def __init__(self) -> None:
        self._buckets: dict[str, MemoryBucket] = {}

    def bucket(self, name: str) -> MemoryBucket:
        """The bucket of this name, made at the first call."""
        return self._buckets.setdefault(name, MemoryBucket())

    def drop(self, name: str) -> None:
        """Forget a bucket and its objects, if it is there."""
        self._buckets.pop(name, None)


PROCESS_MEMORY = MemoryStorages()
"""The registry used where the caller hands in none: a store closed and opened again finds its objects."""


class _Scheme(NamedTuple):
    """How URLs of one scheme are checked, without touching anything, and opened."""

    check: Callable[[str], object]
    open: Callable[[str, Runtime, MemoryStorages], ObjectStorage]


def check_object_storage_url(url: str) -> None:
    """Raise ConfigError("tier2", ...) if `open_object_storage` would; makes and touches nothing."""
    _scheme_of(url).check(url)


def open_object_storage(url: str, runtime: Runtime, *, memory: MemoryStorages | None = None) -> ObjectStorage:
    """The object storage at `url`; nothing is touched before its first call. Raises ConfigError("tier2", ...)."""
    scheme = _scheme_of(url)
    scheme.check(url)
    return scheme.open(url, runtime, memory if memory is not None else PROCESS_MEMORY)


def _scheme_of(url: str) -> _Scheme:
    name, separator, _ = url.partition("://")
    if not separator:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise ConfigError(SETTING, f"{url!r} does not begin with one of {known}, or another scheme that fsspec knows")
    return _SCHEMES.get(name.lower(), _FSSPEC)


def _plain_parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(SETTING, f"{url!r} is not a URL: {error}") from None
    if parts.query or parts.fragment:
        raise ConfigError(SETTING, f"{url!r} has a query or a fragment (write ? and # in a path as %3F and %23)")
    return parts


def _file_path(url: str) -> str:
    parts = _plain_parts(url)
    path = unquote(parts.path)
    if parts.netloc not in {"", "localhost"}:
        raise ConfigError(SETTING, f"file://{parts.netloc}{path}: a path begins with a third slash, as in file:///data")
    if not path.strip("/") or "\0" in path:
        raise ConfigError(SETTING, f"{path!r} is not a folder for objects")
    return path


def _open_file(url: str, runtime: Runtime, _: MemoryStorages) -> ObjectStorage:
    return FileObjectStorage(_file_path(url), runtime)


def _open_memory(url: str, runtime: Runtime, memory: MemoryStorages) -> ObjectStorage:
    parts = _plain_parts(url)
    name = unquote(parts.netloc + parts.path)
    bucket = memory.bucket(name) if name else None
    return MemoryObjectStorage(runtime, bucket, name=name)


def _open_s3(url: str, runtime: Runtime, _: MemoryStorages) -> ObjectStorage:
    from tier2.s3.s3_object_storage import S3ObjectStorage  # noqa: PLC0415

    return S3ObjectStorage(parse_s3_url(url), runtime)


def _check_fsspec(url: str) -> None:
    from tier2.fsspec_object_storage import check_fsspec_url  # noqa: PLC0415

    check_fsspec_url(url)


def _open_fsspec(url: str, runtime: Runtime, _: MemoryStorages) -> ObjectStorage:
    from tier2.fsspec_object_storage import FsspecObjectStorage  # noqa: PLC0415

    return FsspecObjectStorage(url, runtime)


_SCHEMES: Mapping[str, _Scheme] = {
    "file": _Scheme(_file_path, _open_file),
    "memory": _Scheme(_plain_parts, _open_memory),
    "s3": _Scheme(parse_s3_url, _open_s3),
}

_FSSPEC = _Scheme(_check_fsspec, _open_fsspec)
"""Every other scheme is fsspec's to know or to refuse."""
