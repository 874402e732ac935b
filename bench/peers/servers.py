"""What peers that are servers share: the process of one server (recovery/harness/services), started
and ended by the suite.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bench.peers.peer import UNLIMITED
from bench.workspace import BenchError
from recovery.harness.services.installing import ServiceMissingError
from recovery.harness.services.server import HOST, Server, ServerFailedError


def sizes_under(folder: Path) -> dict[Path, int]:
    """Files below a folder with their lengths, while a server creates and deletes some."""
    found = dict[Path, int]()
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            try:
                found[path] = path.stat().st_size
            except FileNotFoundError:
                continue  # deleted in between
    return found


class ServerPeer:
    """A `Peer` of one process. `launch(folder)` gives its server, not started."""

    embedded: bool = False

    def __init__(
        self,
        name: str,
        *,
        install: Callable[[], None],
        launch: Callable[[Path], Server],
        segments_max: int,
        in_flight_max: int = UNLIMITED,
    ) -> None:
        self.name = name
        self.segments_max = segments_max
        self.in_flight_max = in_flight_max
        self._install = install
        self._launch = launch
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        """After `start`."""
        assert self._server is not None, "it was not started"
        return self._server

    def install(self) -> None:
        try:
            self._install()
        except ServiceMissingError as error:
            raise BenchError(str(error)) from error

    def start(self, folder: Path) -> None:
        try:
            self._server = self._launch(folder)
            self._server.start()
        except (ServerFailedError, ServiceMissingError) as error:
            raise BenchError(str(error)) from error

    def address(self, folder: Path) -> str:
        del folder
        return f"{HOST}:{self.server.port}"

    def processes(self) -> list[int]:
        process = self.server.process_id
        return [] if process is None else [process, *self.server.descendants()]

    def kill(self) -> None:
        self.server.kill()

    def restart(self, *, kill: bool = False) -> None:
        try:
            self.server.restart(kill=kill)
        except ServerFailedError as error:
            raise BenchError(str(error)) from error

    def data_files(self, folder: Path) -> list[Path]:
        del folder
        return list(sizes_under(self.server.folder))

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
