"""The sealed files of a log as its parts, read beside it.

On the event loop, but for the steps of a reading, which go to an executor of their own: neither
appends nor reads by place wait behind them. Rules of this file:

- a file that a reader has open as a part is pinned: `LogFolder` does not remove it, and calls no
  space of it free;
- a reading opens the file for itself, and closes it;
- once the log is closed nothing is read any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Executor

from durablelog.durable_data_log import SealedPart
from durablelog.file.log_folder import LogFolder
from durablelog.file.log_layout import FILE_HEADER_LENGTH, make_address
from durablelog.file.part_reading import FramePlaces, PartReading, SealedFile
from durablelog.generated_ledgers import generated_metadata
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DataCorruptionError,
    InvalidArgumentError,
    TierUnavailableError,
)
from segmentstore.contracts.ledgers import (
    LedgerEntry,
    LedgerMetadata,
    LedgerNotFoundError,
    ReadHandle,
)
from segmentstore.contracts.runtime import Runtime


class FileParts:
    """For one opening, or view, of a log.

    `check` raises what a reading that fails should say instead, if the log is not what it was;
    `unpinned` is called when a file has lost its last reader.
    """

    def __init__(
        self,
        folder: LogFolder,
        container_id: int,
        runtime: Runtime,
        check: Callable[[], Awaitable[None]],
        unpinned: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._container_id = container_id
        self._runtime = runtime
        self._check = check
        self._unpinned = unpinned
        self._reader: Executor | None = None
        self._open = False

    def begin(self) -> None:
        """The log is open."""
        self._open = True

    def sealed(self, above: int) -> list[SealedPart]:
        """Parts of higher numbers. Raises ContainerStoppedError."""
        self.check_open()
        return [
            SealedPart(
                file.number,
                file.number,
                make_address(file.number, FILE_HEADER_LENGTH),
                make_address(file.number, file.end_position),
                file.end_position - FILE_HEADER_LENGTH,
                file.taken_ms,
            )
            for file in self._folder.sealed_files(above)
        ]

    async def open(self, number: int) -> ReadHandle:
        """One part. Raises ContainerStoppedError, LedgerNotFoundError."""
        self.check_open()
        for file in self._folder.sealed_files(number - 1):
            if file.number == number:
                sealed = SealedFile(
                    self._container_id,
                    number,
                    file.path,
                    file.epoch,
                    file.begin_sequence,
                    file.end_sequence,
                    file.end_position,
                )
                pinned = self._folder.truncated.pinned
                pinned[number] = pinned.get(number, 0) + 1
                return _FileReadHandle(self, sealed)
        raise LedgerNotFoundError(number, self._folder.directory)

    def release(self, number: int) -> None:
        """A handle is closed."""
        pinned = self._folder.truncated.pinned
        pinned[number] -= 1
        if not pinned[number]:
            del pinned[number]
            if self._open:
                self._unpinned()

    def health(self) -> str | None:
        """A sentence, if what is read takes room that truncation would free."""
        held = self._folder.truncated.held_bytes if self._open else 0
        return f"{held} bytes of truncated log files are kept, for they are read" if held else None

    def check_open(self) -> None:
        """Raise ContainerStoppedError unless the log is open."""
        if not self._open:
            raise ContainerStoppedError(self._container_id)

    async def close(self) -> None:
        """Read no more; returns when the last step has ended. Idempotent."""
        self._open = False
        reader = self._reader
        if reader is not None:
            await asyncio.get_running_loop().run_in_executor(reader, _nothing)
            self._reader = None
            reader.shutdown(wait=False)

    async def read(
        self, file: SealedFile, places: FramePlaces, first: int, last: int
    ) -> AsyncGenerator[list[LedgerEntry], None]:
        """These entries, in batches. Raises as ReadHandle.read does."""
        reading = PartReading(self._runtime.disk, file, places, first, last)
        try:
            while (entries := await self._step(file, reading)) is not None:
                if entries:
                    yield entries
        finally:
            if self._reader is None:
                reading.close()
            else:
                # A cancelled reader's last step may still be under way.
                self._reader.submit(reading.close)

    async def _step(self, file: SealedFile, reading: PartReading) -> list[LedgerEntry] | None:
        self.check_open()
        if self._reader is None:
            self._reader = self._runtime.executor(f"log-{self._container_id}-parts", 1)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, reading.step)
        except DataCorruptionError:
            await self._check()
            raise
        except FileNotFoundError as error:
            await self._check()
            raise LedgerNotFoundError(file.number, self._folder.directory) from error
        except OSError as error:
            await self._check()
            raise TierUnavailableError("tier1", f"reading {file.path}: {error}") from error


class _FileReadHandle(ReadHandle):
    def __init__(self, parts: FileParts, file: SealedFile) -> None:
        self._parts = parts
        self._file = file
        self._places = FramePlaces()
        self._closed = False
        self._metadata = generated_metadata(
            container_id=file.container_id,
            number=file.number,
            epoch=file.epoch,
            first_frame=file.begin_sequence,
            entries=file.entries,
            length=file.length,
            address=make_address(file.number, FILE_HEADER_LENGTH),
        )

    @property
    def ledger_id(self) -> int:
        return self._file.number

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        self._check_usable()
        self.check_entries(first, last)
        reading = self._parts.read(self._file, self._places, first, last)
        try:
            async for entries in reading:
                yield entries
                self._check_usable()
        finally:
            await reading.aclose()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._parts.release(self._file.number)

    def _check_usable(self) -> None:
        if self._closed:
            raise InvalidArgumentError("handle", self._file.number, "it is closed")
        self._parts.check_open()


def _nothing() -> None:
    """Submitted to a serial executor to wait for what is before it."""
