"""FileLogFactory: the logs of a store in a folder, a folder for each container."""

from __future__ import annotations

import asyncio
import os
from typing import ClassVar

from durablelog.durable_data_log import DurableDataLog
from durablelog.durable_data_log_factory import DurableDataLogFactory, LogOptions
from durablelog.file.file_log import FileLog
from segmentstore.contracts.errors import ConfigError, TierUnavailableError
from segmentstore.contracts.runtime import Runtime


def container_folder(folder: str, container_id: int) -> str:
    """Where the log of a container is, of logs in `folder`."""
    return os.path.join(folder, str(container_id))


class FileLogFactory(DurableDataLogFactory):
    """Logs in `folder`, which is made with the first one. The caller holds the store's lock."""

    place: ClassVar[str] = "in files"

    def __init__(self, folder: str, runtime: Runtime) -> None:
        self._folder = folder
        self._runtime = runtime

    @property
    def tier1(self) -> str:
        return "file"

    @property
    def url(self) -> str:
        return self._folder

    async def has_logs(self) -> bool:
        executor = self._runtime.executor("open", 1)
        try:
            return await asyncio.get_running_loop().run_in_executor(
                executor, self._runtime.disk.exists, self._folder
            )
        except OSError as error:
            raise TierUnavailableError("tier1", f"{self._folder}: {error}") from error
        finally:
            executor.shutdown(wait=False)

    def make_log(self, container_id: int, store_id: str, options: LogOptions) -> DurableDataLog:
        return FileLog(
            container_folder(self._folder, container_id),
            container_id,
            self._runtime,
            file_bytes=options.file_bytes,
            payload_bytes_max=options.payload_bytes_max,
            epoch_min=options.epoch_min,
        )

    def make_view(self, container_id: int, store_id: str) -> DurableDataLog:
        # Not at the top: readers of another's log alone need it.
        from durablelog.file.file_log_view import FileLogView  # noqa: PLC0415

        folder = container_folder(self._folder, container_id)
        return FileLogView(folder, container_id, self._runtime)

    async def stored_logs(self, containers: int) -> dict[int, str]:
        return {number: container_folder(self._folder, number) for number in range(containers)}

    async def check_unused(self) -> None:
        if await self.has_logs():
            raise ConfigError("tier1", f"{self._folder} has logs, and a new store is to be made")
