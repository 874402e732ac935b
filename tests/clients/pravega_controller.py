"""Pravega's own Controller 0.13.0, in place of ours: what it knows is in tables of the store. In
ZooKeeper it keeps who leads, and its buckets of streams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from durablelog.bookkeeper.installation import java
from recovery.harness.services.pravega_jars import pravega_jars
from recovery.harness.services.server import Server, free_port
from tests.clients.client_security import ClientSecurity
from tests.clients.served_store import ServedStore

POM: Final = Path(__file__).with_name("controller") / "pom.xml"
"""122 jars, 57 MB."""
STARTED: Final = b"Controller Services started successfully"
CONTAINERS: Final = 4


class PravegaController(Server):
    """One Controller, of the store whose wire server is at that address.

    With `cluster` it assigns the containers to the hosts that are registered under that name.
    """

    name: ClassVar[str] = "Pravega's Controller"
    ready_s: ClassVar[float] = 120.0

    def __init__(
        self,
        folder: Path,
        zookeeper: str,
        wire: tuple[str, int],
        security: ClientSecurity | None = None,
        cluster: str = "",
        containers: int = CONTAINERS,
    ) -> None:
        super().__init__(folder)
        self._zookeeper = zookeeper
        self._cluster = cluster
        self._containers = containers
        self._wire_host, self._wire_port = wire
        self._security = security
        self._rest_port = free_port()
        self._written_before = 0
        """By its former process runs."""

    def _settings(self, port: int) -> Mapping[str, object]:
        secured = {} if self._security is None else self._security.controller_settings()
        fixed: Mapping[str, object] = {
            # The store is at a fixed address, and not registered in ZooKeeper.
            "hostMonitor.enable": "false",
            "segmentstore.connect.host.nameOrIp": self._wire_host,
            "segmentstore.connect.port": self._wire_port,
        }
        return {
            # Its place in ZooKeeper, where other tests have Controllers, too.
            "cluster.name": self._cluster or f"{self._wire_port}",
            "container.count": self._containers,
            **({} if self._cluster else fixed),
            "service.rest.listener.port": self._rest_port,
            "service.rpc.listener.port": port,
            "service.rpc.published.host.nameOrIp": self._wire_host,
            "service.rpc.published.port": port,
            "zk.connect.uri": self._zookeeper,
            **secured,
        }

    def _command(self, port: int) -> Sequence[str]:
        settings = self._settings(port).items()
        options = [f"-Dcontroller.{name}={value}" for name, value in settings]
        self._written_before = len(self._written())
        classpath = f"{pravega_jars('pravega-controller', POM)}/*"
        program = "io.pravega.controller.server.Main"
        return [java(), "-Xmx512m", "-XX:+UseSerialGC", *options, "-cp", classpath, program]

    def _written(self) -> bytes:
        path = self.folder / "output.log"
        return path.read_bytes() if path.exists() else b""

    def _answers(self, port: int) -> bool:
        return STARTED in self._written()[self._written_before :]


class ControlledStore(ServedStore):
    """A served store without our Controller, and Pravega's beside it, which a restart of the store
    leaves alone.

    The port of the `Server` is the wire server's.
    """

    def __init__(
        self,
        folder: Path,
        zookeeper: str,
        security: ClientSecurity | None = None,
        **settings: object,
    ) -> None:
        super().__init__(folder, security, containers=CONTAINERS, **settings)
        self._zookeeper = zookeeper
        self._controller: PravegaController | None = None
        """Made when the port of the store is known."""

    @property
    def address(self) -> str:
        return f"{self._host}:{self._started_controller.port}"

    def condition(self) -> str:
        written = self._started_controller.output()
        return f"{super().condition()}\n--- the Controller:\n{written}"

    def start(self) -> None:
        super().start()
        if self._controller is None:
            self._controller = PravegaController(
                self.folder / "controller", self._zookeeper, (self._host, self.port), self.security
            )
        self._controller.start()

    def stop(self) -> None:
        if self._controller is not None:
            self._controller.stop()
        super().stop()

    def kill_both(self) -> None:
        """`start` brings them back, at the same addresses."""
        self._started_controller.kill()
        self.kill()

    @property
    def _started_controller(self) -> PravegaController:
        assert self._controller is not None
        return self._controller

    def _ports(self, port: int) -> Sequence[str]:
        return (f"--wire={self._host}:{port}",)
