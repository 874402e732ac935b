"""A new store that begins with metadata that are there: what all kinds of restore make.

Rule: the folder becomes a store (`store.toml`) last of all. With logs on BookKeeper the root node
becomes the store's just before that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final, TypeVar

from durablelog.checkpoint_codec import encode_checkpoint
from durablelog.data_frame_builder import DataFrameBuilder
from durablelog.durable_data_log import DurableDataLog
from durablelog.durable_data_log_factory import (
    DurableDataLogFactory,
    LogOptions,
    StoreIdentity,
)
from durablelog.operation_codec import encode_operation, encoded_length
from durablelog.operations import CheckpointOperation
from segmentstore.config import StoreConfig
from segmentstore.contracts.disk import DiskFile, make_directories
from segmentstore.contracts.errors import NotAStoreError, StoreInUseError, TierUnavailableError
from segmentstore.contracts.lock_owner import owner_of
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_folder import LOCK_NAME, write_store_file

_FRAMES_IN_FLIGHT: Final = 16

_T = TypeVar("_T")


async def write_store(
    location: str,
    store_id: str,
    config: StoreConfig,
    metadata: Sequence[ContainerMetadata],
    logs: DurableDataLogFactory,
    executor: Executor,
    runtime: Runtime,
    *,
    epoch: int,
) -> None:
    """Make the folder, which the caller has locked, a store whose logs each hold one checkpoint of
    these metadata. `epoch` is that of the logs' first owners.

    Raises NotAStoreError, StoreInUseError, TierUnavailableError.
    """
    options = LogOptions(config.frame_bytes_max, config.file_bytes, epoch)
    await logs.reserve_store(store_id)
    for each in metadata:
        await _write_log(logs.make_log(each.container_id, store_id, options), each, runtime)
    identity = StoreIdentity(store_id, config.containers, config.tier2, config.shared_tier2)
    await logs.publish_store(identity)
    await on_disk(
        executor, location, write_store_file, location, store_id, config, runtime, store_id
    )


async def _write_log(log: DurableDataLog, metadata: ContainerMetadata, runtime: Runtime) -> None:
    """Let a checkpoint of the metadata be the first and only operation of a log that is new."""
    operation = CheckpointOperation(
        encode_checkpoint(metadata),
        sequence_number=metadata.sequence_number + 1,
        timestamp_ms=runtime.clock.time_ms(),
    )
    builder = DataFrameBuilder(log.payload_bytes_max)
    parts = encode_operation(operation)
    builder.add(parts, encoded_length(parts))
    frames = builder.take_full()
    last = builder.seal()
    if last is not None:
        frames.append(last)
    await log.open()
    try:
        in_flight: deque[asyncio.Future[object]] = deque()
        for frame in frames:
            # The address is not needed.
            in_flight.append(log.append(frame))  # type: ignore[arg-type]
            if len(in_flight) == _FRAMES_IN_FLIGHT:
                await in_flight.popleft()
        while in_flight:
            await in_flight.popleft()
    finally:
        await log.close()


def check_folder(location: str, runtime: Runtime) -> None:
    """Raise NotAStoreError unless the folder is absent or empty. Blocking."""
    disk = runtime.disk
    if not disk.exists(location):
        return
    if not disk.is_directory(location):
        raise NotAStoreError(location, "it is not a folder")
    there = [name for name in disk.list_directory(location) if name != LOCK_NAME]
    if there:
        raise NotAStoreError(
            location, f"a restore makes a new store, and the folder is not empty ({there[0]})"
        )


def take_folder(location: str, runtime: Runtime) -> DiskFile:
    """Make and lock the folder. Blocking."""
    make_directories(runtime.disk, location)
    try:
        lock = runtime.disk.lock(f"{location}/{LOCK_NAME}")
    except BlockingIOError as error:
        raise StoreInUseError(location, owner_of(error)) from None
    try:
        check_folder(location, runtime)
    except BaseException:
        lock.close()
        raise
    return lock


async def on_disk(
    executor: Executor, location: str, call: Callable[..., _T], *arguments: object
) -> _T:
    """What a call that blocks on the disk gives. Raises TierUnavailableError, and what it raises
    but OSError.
    """
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, call, *arguments)
    except OSError as error:
        raise TierUnavailableError("tier1", f"{location}: {error}") from error
