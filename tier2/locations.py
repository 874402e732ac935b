"""Where Tier 2 is: from a URL in the settings to an object storage.

`file:///absolute/path`, `memory://` (private, gone when closed), `memory://name` (shared by everybody in this
process who names it, as long as its `MemoryStorages` lives). Another scheme joins by a function in `_SCHEMES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import SplitResult, unquote, urlsplit

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tier2.file_object_storage import FileObjectStorage
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage
from tier2.object_storage import ObjectStorage

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


_Opener = Callable[[SplitResult, Runtime, MemoryStorages], ObjectStorage]


def check_object_storage_url(url: str) -> None:
    """Raise ConfigError("tier2", ...) if `open_object_storage` would; makes and touches nothing."""
    make, parts = _scheme_of(url)
    if make is _open_file:
        _file_path(parts)


def open_object_storage(url: str, runtime: Runtime, *, memory: MemoryStorages | None = None) -> ObjectStorage:
    """The object storage at `url`; nothing is touched before its first call. Raises ConfigError("tier2", ...)."""
    make, parts = _scheme_of(url)
    return make(parts, runtime, memory if memory is not None else PROCESS_MEMORY)


def _scheme_of(url: str) -> tuple[_Opener, SplitResult]:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(SETTING, f"{url!r} is not a URL: {error}") from None
    make = _SCHEMES.get(parts.scheme)
    if make is None or "://" not in url:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise ConfigError(SETTING, f"{url!r} does not begin with one of {known}")
    if parts.query or parts.fragment:
        raise ConfigError(SETTING, f"{url!r} has a query or a fragment (write ? and # in a path as %3F and %23)")
    return make, parts


def _file_path(parts: SplitResult) -> str:
    path = unquote(parts.path)
    if parts.netloc not in {"", "localhost"}:
        raise ConfigError(SETTING, f"file://{parts.netloc}{path}: a path begins with a third slash, as in file:///data")
    if not path.strip("/") or "\0" in path:
        raise ConfigError(SETTING, f"{path!r} is not a folder for objects")
    return path


def _open_file(parts: SplitResult, runtime: Runtime, _: MemoryStorages) -> ObjectStorage:
    return FileObjectStorage(_file_path(parts), runtime)


def _open_memory(parts: SplitResult, runtime: Runtime, memory: MemoryStorages) -> ObjectStorage:
    name = unquote(parts.netloc + parts.path)
    bucket = memory.bucket(name) if name else None
    return MemoryObjectStorage(runtime, bucket, name=name)


_SCHEMES: Mapping[str, _Opener] = {
    "file": _open_file,
    "memory": _open_memory,
}
