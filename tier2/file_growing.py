"""GrowingFile: an object of the file storage that comes in parts; a staging file until it is whole.

Blocking, called from the storage's threads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import Disk, DiskFile
from tier2.file_staging import StagingFolder
from tier2.synced_writing import write_synced


class GrowingFile:
    """One upload. Raises OSError, and what `publish` raises."""

    def __init__(
        self,
        disk: Disk,
        staging: StagingFolder,
        unique_id: bytes,
        lock: AbstractContextManager[Any],
        publish: Callable[[str], None],
    ) -> None:
        """`publish` names a staged file, synced and closed, and removes the staged name."""
        self._disk = disk
        self._staging = staging
        self._unique_id = unique_id
        self._lock = lock
        self._publish = publish
        self._file: DiskFile | None = None
        self._path = ""
        self._size = 0
        self._ended = False

    def add(self, part: Buffer) -> None:
        with self._lock:
            if self._ended:
                return
            if self._file is None:
                self._open()
            assert self._file is not None
            self._size = write_synced(self._file, [part], self._size)

    def finish(self) -> None:
        with self._lock:
            if self._ended or self._file is None:
                return
            self._file.close()
            self._ended = True
            self._publish(self._path)

    def abandon(self) -> None:
        with self._lock:
            self._ended = True
            if self._file is not None:
                self._file.close()
                self._staging.discard(self._path)

    def _open(self) -> None:
        self._path = self._staging.new_path(self._unique_id)
        try:
            self._file = self._disk.open(self._path, write=True, create=True, exclusive=True)
        except FileNotFoundError:
            # A hand from outside removed the folder.
            self._staging.renew()
            self._path = self._staging.new_path(self._unique_id)
            self._file = self._disk.open(self._path, write=True, create=True, exclusive=True)
