"""`segmentstore.open`: awaited, or entered as an async context manager."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from types import TracebackType

from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.contracts.runtime import Runtime
from segmentstore.service import SegmentStore
from segmentstore.store_files import open_store


class OpeningStore:
    """A store about to be opened: `store = await it`, or `async with it as store`. Nothing happens before."""

    def __init__(
        self, location: str, options: Mapping[str, object], environment: Mapping[str, str], runtime: Runtime
    ) -> None:
        self._location = location
        self._options = options
        self._environment = environment
        self._runtime = runtime
        self._store: SegmentStore | None = None

    async def _open(self) -> SegmentStore:
        parts = await open_store(self._location, self._options, self._environment, self._runtime)
        store = SegmentStore(parts)
        if parts.config.metrics_port:
            # Not at the top: only who watches pays for it.
            from segmentstore.metrics import registry  # noqa: PLC0415
            from segmentstore.metrics_endpoint import MetricsEndpoint  # noqa: PLC0415

            host, port = parts.config.metrics_host, parts.config.metrics_port
            try:
                parts.endpoint = await MetricsEndpoint.open(host, port, store.stats, registry, self._runtime)
            except BaseException:
                await store.close()
                raise
        if parts.config.local_face:
            from segmentstore.local_face import LocalFace  # noqa: PLC0415

            try:
                parts.face = await LocalFace.open(store, parts.location, parts.store_id)
            except BaseException:
                await store.close()
                raise
        return store

    def __await__(self) -> Generator[object, None, SegmentStore]:
        return self._open().__await__()

    async def __aenter__(self) -> SegmentStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()


def open(  # noqa: A001 - the public name, as in `io.open`
    location: str | os.PathLike[str], *, runtime: Runtime | None = None, **options: object
) -> OpeningStore:
    """Open the store in a folder, making it if the folder is empty or absent.

    `options` are the fields of `segmentstore.config.StoreConfig`; each overrides `SEGMENTSTORE_<NAME>` in the environment,
    which overrides the store's `store.toml`. `runtime` replaces clock, randomness, threads and disk, for tests.

    Raises (when awaited or entered) NotAStoreError (the folder holds something else; nothing is touched),
    StoreInUseError, ConfigError, DataCorruptionError (every file is left as it was), TierUnavailableError.
    Costs the replay of the log since its last truncation point.
    """
    if not isinstance(location, str | os.PathLike):
        raise InvalidArgumentError("location", location, "it is a path")
    path = os.fspath(location)
    return OpeningStore(path, options, os.environ, runtime if runtime is not None else Runtime())
