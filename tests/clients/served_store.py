"""A store served to Pravega's clients, as a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from recovery.harness.services.server import HOST, Server, free_port, python_module

LOG_FILE_BYTES: Final = 4 << 20
"""Files of the usual 64 MiB would be 0.3 GB for each test."""


class ServedStore(Server):
    """`segmentstore serve` in a folder, with both ports; a context manager.

    `settings` are those of the store, by their names. The port of the `Server` is the Controller's:
    it is the last one that opens. After a kill the store comes back at the same ports.
    """

    name: ClassVar[str] = "the served store"

    def __init__(self, folder: Path, **settings: object) -> None:
        super().__init__(folder)
        self.store = folder / "store"
        self._settings = settings
        self._wire_port = 0

    @property
    def address(self) -> str:
        """HOST:PORT of the Controller, which clients begin with."""
        return f"{HOST}:{self.port}"

    def _command(self, port: int) -> Sequence[str]:
        if not self.port:
            self._wire_port = free_port()
        addresses = (f"--wire={HOST}:{self._wire_port}", f"--controller={HOST}:{port}")
        return python_module("segmentstore", "serve", str(self.store), "--create", *addresses)

    def _environment(self) -> Mapping[str, str]:
        settings = {"log_file_bytes": LOG_FILE_BYTES, **self._settings}
        return {f"SEGMENTSTORE_{name.upper()}": str(value) for name, value in settings.items()}
