"""FsspecGrowing: an object that is written in parts to a back end of fsspec.

Some back ends show it under its name before it is whole. It is read only after the upload has
returned, as everything on fsspec. Blocking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, Protocol

from segmentstore.contracts.checksum import Buffer


class _Files(Protocol):
    """What it needs of FsspecFiles."""

    @property
    def file_system(self) -> Callable[[], AbstractContextManager[Any]]: ...
    def open_new(self, fs: Any, name: str) -> Any: ...
    def write_on(self, file: Any, part: Buffer) -> None: ...
    def describe(self, fs: Any, name: str, metadata: Mapping[str, str]) -> None: ...
    def check_size(self, fs: Any, name: str, size: int) -> None: ...
    def remove_part(self, fs: Any, name: str) -> None: ...


class FsspecGrowing:
    """One upload; it has an instance of the back end to itself."""

    def __init__(
        self,
        files: _Files,
        name: str,
        metadata: Mapping[str, str],
        lock: AbstractContextManager[Any],
    ) -> None:
        self._files = files
        self._name = name
        self._metadata = metadata
        self._lock = lock
        self._held = ExitStack()
        self._fs: Any = None
        self._file: Any = None
        self._size = 0
        self._ended = False

    def add(self, part: Buffer) -> None:
        with self._lock:
            if self._ended:
                return
            if self._file is None:
                self._fs = self._held.enter_context(self._files.file_system())
                if self._metadata:
                    self._files.describe(self._fs, self._name, self._metadata)
                self._file = self._files.open_new(self._fs, self._name)
            self._files.write_on(self._file, part)
            self._size += len(part)

    def finish(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._file.close()
            self._files.check_size(self._fs, self._name, self._size)
            self._ended = True
            self._held.close()

    def abandon(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            if self._file is not None:
                # No two back ends agree on how a file that is being written is given up. One of
                # fsspec's own would complete the upload when it is closed, or collected.
                with suppress(Exception):
                    self._file.discard()
                    self._file.closed = True
                with suppress(Exception):
                    self._file.close()
                with suppress(Exception):
                    self._files.remove_part(self._fs, self._name)
            with suppress(Exception):
                self._held.close()
