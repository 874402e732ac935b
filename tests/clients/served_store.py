"""A store served to Pravega's clients, as a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from recovery.harness.services.server import HOST, Server, free_port, python_module
from tests.clients.client_security import HOST_NAME, ClientSecurity
from tests.support.suites import size

LOG_FILE_BYTES: Final = 4 << 20
"""Files of the usual 64 MiB would be 0.3 GB for each test."""
KILL_RUNS: Final = size("CLIENT_KILL_RUNS", 1, 1)
"""How often a client writes through twenty kills, in `make test-all`."""


class ServedStore(Server):
    """`segmentstore serve` in a folder, with both ports; a context manager.

    `settings` are those of the store, by their names. With `security` it has TLS and users. The
    port of the `Server` is the Controller's: it is the last one that opens. After a kill the store
    comes back at the same ports.
    """

    name: ClassVar[str] = "the served store"

    def __init__(
        self, folder: Path, security: ClientSecurity | None = None, **settings: object
    ) -> None:
        super().__init__(folder)
        self.store = folder / "store"
        self.security = security
        self.scope = "scope"
        """What the wheel's steps work in."""
        self._settings = settings
        self._wire_port = 0

    @property
    def address(self) -> str:
        """HOST:PORT of the Controller."""
        return f"{self._host}:{self.port}"

    @property
    def uri(self) -> str:
        """Of the Controller; clients begin with it."""
        return f"{'tcp' if self.security is None else 'tls'}://{self.address}"

    def client_environment(self) -> Mapping[str, str]:
        """What the process of a client who may do all finds in its environment."""
        return {} if self.security is None else self.security.environment()

    def condition(self) -> str:
        """For a test that fails."""
        return f"--- the server {'runs' if self.running else 'has ended'}:\n{self.output()}"

    @property
    def _host(self) -> str:
        return HOST if self.security is None else HOST_NAME

    def _command(self, port: int) -> Sequence[str]:
        ports = self._ports(port)
        return python_module("segmentstore", "serve", str(self.store), "--create", *ports)

    def _ports(self, port: int) -> Sequence[str]:
        """Options that say what it listens on."""
        if not self.port:
            self._wire_port = free_port()
        return (f"--wire={self._host}:{self._wire_port}", f"--controller={self._host}:{port}")

    def _environment(self) -> Mapping[str, str]:
        secured = {} if self.security is None else self.security.settings()
        settings = {"log_file_bytes": LOG_FILE_BYTES, **secured, **self._settings}
        return {f"SEGMENTSTORE_{name.upper()}": str(value) for name, value in settings.items()}
