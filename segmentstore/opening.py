"""`segmentstore.open`: awaited, or entered as an async context manager."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from segmentstore.contracts.disk import OsDisk
from segmentstore.contracts.errors import (
    DeprecatedSettingWarning,
    StoreInUseError,
    UnknownSettingWarning,
)
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.folders import checked_folder
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import open_or_release, outlast
from segmentstore.deprecated_settings import deprecation_notes
from segmentstore.local_endpoint import open_local_endpoint
from segmentstore.open_steps import open_store
from segmentstore.open_stores import make_way, register
from segmentstore.service import SegmentStore
from segmentstore.settings_sources import deprecated_variables, unknown_variables
from segmentstore.store_parts import StoreParts

if TYPE_CHECKING:
    from segmentstore.options import StoreOptions


class OpeningStore:
    """A store about to be opened: `store = await it`, or `async with it as store`.

    Nothing happens before.
    """

    def __init__(
        self,
        location: str,
        options: Mapping[str, object],
        environment: Mapping[str, str],
        runtime: Runtime,
    ) -> None:
        self._location = location
        self._options = options
        self._environment = environment
        self._runtime = runtime
        self._store: SegmentStore | None = None

    async def _open(self) -> SegmentStore:
        return await open_or_release(
            self._open_all(), SegmentStore.close, "open store and its ports"
        )

    async def _open_all(self) -> SegmentStore:
        parts = await self._open_parts()
        try:
            # What serves others must not keep alive what the program uses: it has the store by an
            # object of its own.
            await self._listen(SegmentStore(parts), parts)
            if parts.closing is not None:
                # Its task was cancelled meanwhile: a port may have been opened after the close.
                await parts.close()
                await parts.undo.unwind()
        except GeneratorExit:
            parts.undo.abandon()  # the event loop was closed
            raise
        except BaseException:
            closing = parts.begin_close()
            await outlast(closing)
            if not closing.cancelled():
                closing.exception()  # what matters to the caller is why it was not opened
            raise
        store = SegmentStore(parts)
        register(parts).watch(store)
        return store

    async def _listen(self, store: SegmentStore, parts: StoreParts) -> None:
        if parts.config.metrics_port:
            require_extra("metrics", "metrics_port")
            # Not at the top: metrics alone need it.
            from segmentstore.metrics import registry  # noqa: PLC0415
            from segmentstore.metrics_endpoint import MetricsEndpoint  # noqa: PLC0415

            host, port = parts.config.metrics_host, parts.config.metrics_port
            parts.endpoint = await MetricsEndpoint.open(
                host, port, store.stats, registry, store.health, self._runtime
            )
            parts.undo.push(parts.endpoint.close)
        config = parts.config
        # A simulated world has no sockets.
        locally = config.local_server and isinstance(self._runtime.disk, OsDisk)
        server = None
        if (config.wire_port or config.controller_port) and parts.closing is None:
            # Not at the top: ports alone need it.
            from segmentstore.network_ports import open_ports  # noqa: PLC0415

            server = await open_ports(store, parts, self._runtime)
        if locally and parts.closing is None:
            await open_local_endpoint(store, parts, self._runtime, server)
        if config.joins_cluster and parts.closing is None:
            # Not at the top: hosts of a cluster alone need it.
            from segmentstore.cluster.membership import join_cluster  # noqa: PLC0415

            # Last, for clients are sent here from now on; the first to be undone.
            await join_cluster(parts, self._runtime)

    async def _open_parts(self) -> StoreParts:
        arguments = (self._location, self._options, self._environment, self._runtime)
        try:
            return await open_store(*arguments)
        except StoreInUseError:
            if not await make_way(self._location):
                raise
        return await open_store(*arguments)

    def __await__(self) -> Generator[object, None, SegmentStore]:
        return self._open().__await__()

    async def __aenter__(self) -> SegmentStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._store is not None:
            await self._store.close()


def open(  # noqa: A001 - the public name, as in `io.open`
    location: str | os.PathLike[str],
    *,
    runtime: Runtime | None = None,
    **options: Unpack[StoreOptions],
) -> OpeningStore:
    """Open the store in a folder, making it if the folder is empty or absent.

    `options` are `segmentstore.StoreOptions`, the settings of `segmentstore.config.StoreConfig`.
    Each overrides `SEGMENTSTORE_<NAME>` in the environment, which overrides `store.toml`.
    Another `SEGMENTSTORE_...` is warned of (UnknownSettingWarning), and so is a deprecated name
    (DeprecatedSettingWarning). `runtime` replaces clock, randomness, threads and disk, for tests.

    Raises InvalidArgumentError (`location` is no path, or a URL: objects go to a URL by `tier2`).
    When awaited or entered it raises NotAStoreError (the folder holds something else; nothing is
    touched), StoreInUseError, ConfigError, or MissingExtraError (a Tier or a setting needs one).
    It also raises DataCorruptionError (no file was changed) and TierUnavailableError. Costs the
    replay of the log since its last truncation point.
    """
    path = checked_folder(location)
    for sentence in unknown_variables(os.environ):
        warnings.warn(sentence, UnknownSettingWarning, stacklevel=2)
    for sentence in (*deprecation_notes(options), *deprecated_variables(os.environ)):
        warnings.warn(sentence, DeprecatedSettingWarning, stacklevel=2)
    return OpeningStore(path, options, os.environ, runtime if runtime is not None else Runtime())
