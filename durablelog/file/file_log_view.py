"""FileLogView: a file log as it lies there, read without owning it: nothing is locked, claimed or
written.

For a folder in which no process can own the log, as on a file system mounted read-only. An owner
elsewhere may have the same folder writable. Rules of this file:

- frames are those that an opening of the log would find; the last ones may never have been
  acknowledged;
- each reading ends with a check of the state record. An owner elsewhere that opened or truncated
  the log meanwhile may have removed or reused files under the reading. Then all that was read, or
  found damaged, counts for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor

from durablelog.durable_data_log import LogAddress, LogFrame, SealedPart
from durablelog.file.file_parts import FileParts
from durablelog.file.log_folder import LogFolder
from durablelog.file.log_layout import PAYLOAD_BYTES_MAX
from durablelog.file.log_reading import LogReading
from durablelog.log_view import LogChangedError, LogView
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DataCorruptionError,
    StoreInUseError,
    TierUnavailableError,
)
from segmentstore.contracts.ledgers import ReadHandle
from segmentstore.contracts.runtime import Runtime


class FileLogView(LogView):
    """The log in `directory`; absent, it is empty.

    What an owner elsewhere appends after `open` is not seen.
    """

    def __init__(self, directory: str, container_id: int, runtime: Runtime) -> None:
        self._container_id = container_id
        self._runtime = runtime
        self._folder = LogFolder(directory, container_id, runtime.disk, "")
        self._files: Executor | None = None
        self._parts = FileParts(self._folder, container_id, runtime, self.check_primary, _nothing)
        self._closed = False

    @property
    def epoch(self) -> int:
        return self._folder.epoch

    @property
    def payload_bytes_max(self) -> int:
        return PAYLOAD_BYTES_MAX

    @property
    def place(self) -> str:
        return f"in {self._folder.directory}"

    @property
    def size(self) -> tuple[int, int]:
        return self._folder.log_bytes, self._folder.file_count

    async def open(self) -> None:
        if self._closed or self._files is not None:
            raise ContainerStoppedError(self._container_id)
        self._files = self._runtime.executor(f"log-{self._container_id}-view", 1)
        try:
            await asyncio.get_running_loop().run_in_executor(self._files, self._folder.view)
        except StoreInUseError as error:
            raise LogChangedError(str(error)) from error
        except OSError as error:
            raise TierUnavailableError(
                "tier1", f"reading the log in {self._folder.directory}: {error}"
            ) from error
        self._parts.begin()

    def read(self, start: LogAddress | None = None) -> AsyncGenerator[Sequence[LogFrame], None]:
        return self._read(start)

    def sealed_parts(self, above: int = 0) -> Sequence[SealedPart]:
        return self._parts.sealed(above)

    async def open_part(self, number: int) -> ReadHandle:
        return await self._parts.open(number)

    async def check_primary(self) -> None:
        """Raise LogChangedError if an owner elsewhere has opened or truncated it since `open`."""
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._running(), self._folder.check_unchanged
            )
        except OSError as error:
            raise TierUnavailableError(
                "tier1", f"reading the log in {self._folder.directory}: {error}"
            ) from error

    async def close(self) -> None:
        self._closed = True
        await self._parts.close()
        files, self._files = self._files, None
        if files is not None:
            files.shutdown(wait=False)

    async def _read(self, start: LogAddress | None) -> AsyncGenerator[Sequence[LogFrame], None]:
        reading = LogReading(self._runtime.disk, self._container_id, self._folder.stretches(start))
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    frames = await loop.run_in_executor(self._running(), reading.step)
                except DataCorruptionError:
                    await self.check_primary()
                    raise
                except OSError as error:
                    await self.check_primary()
                    detail = f"reading the log in {self._folder.directory}: {error}"
                    raise TierUnavailableError("tier1", detail) from error
                if frames is None:
                    break
                yield frames
            await self.check_primary()
        finally:
            if self._files is None:
                reading.close()
            else:
                # A cancelled reader's last step may still be under way: its file is closed behind
                # it.
                self._files.submit(reading.close)

    def _running(self) -> Executor:
        if self._files is None:
            raise ContainerStoppedError(self._container_id)
        return self._files


def _nothing() -> None:
    """A view removes no file."""
