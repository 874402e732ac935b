"""The two sides of the wire cases: `segmentstore serve`, and Pravega's segment store 0.13.0 with
its Controller.

Both have four containers, the same bookie (one, journal synced, replication 1/1/1), a cache of
1 GiB, and a folder of the same disk as Tier 2. Pravega is started from Maven's jars as its own
deployments do it. Its mode of one process for all would keep everything in memory.

Both run at the same time, and one is idle while the other is measured: a start of Pravega takes
half a minute.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final

from bench.pravega_jars import java_command
from bench.workspace import BenchError
from durablelog.bookkeeper.cluster.service_process import ServiceProcess
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.server import (
    HOST,
    Server,
    ServerFailedError,
    free_port,
    python_module,
)
from segmentstore.contracts.errors import SegmentStoreError

CONTAINERS: Final = 4
CACHE_BYTES: Final = 1 << 30
NOTE: Final = (
    "client, servers, one bookie (journal synced, 1/1/1) and ZooKeeper on the same cores and disk; "
    "peer: Pravega 0.13.0"
)
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_DAY_MS: Final = 86_400_000
_STARTED: Final = b"Controller Services started successfully"


class MeasuredServer(Server):
    """A side: clients begin at `uri`; `port` is the Controller's, `wire_port` the segments'."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.wire_port = free_port()

    @property
    def uri(self) -> str:
        """Of the Controller."""
        return f"tcp://{HOST}:{self.port}"

    @property
    def tier2(self) -> Path:
        """Its objects or chunks."""
        return self.folder / "tier2"

    def client_environment(self) -> Mapping[str, str]:
        """What a client's process needs."""
        return {}

    def processes(self) -> list[int]:
        """Of the store alone, without a Controller of its own."""
        return [] if self._process is None else [self._process.pid, *self.descendants()]

    def cpu_seconds(self) -> float:
        """What these have used, user and system, those that have ended left out."""
        return sum(map(cpu_seconds, self.processes()))

    def resident_bytes(self) -> int:
        """Resident set of these now."""
        return sum(map(resident_bytes, self.processes()))


class OurServer(MeasuredServer):
    """`segmentstore serve` with its own Controller.

    `settings` are those of the store, by their names; with `certificates`, it has TLS.
    """

    name: ClassVar[str] = "segmentstore serve"

    def __init__(
        self,
        folder: Path,
        tier1: str,
        certificates: Path | None = None,
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        super().__init__(folder)
        self._tier1 = tier1
        self._certificates = certificates
        self._settings = settings

    @property
    def store(self) -> Path:
        """Its folder."""
        return self.folder / "store"

    @property
    def uri(self) -> str:
        """Of the Controller."""
        return super().uri if self._certificates is None else f"tls://{self._host}:{self.port}"

    def client_environment(self) -> Mapping[str, str]:
        """What a client's process needs."""
        if self._certificates is None:
            return {}
        return {"pravega_client_tls_cert_path": str(self._certificates / "ca.crt")}

    @property
    def _host(self) -> str:
        return HOST if self._certificates is None else "localhost"

    def _command(self, port: int) -> Sequence[str]:
        addresses = [f"--wire={self._host}:{self.wire_port}", f"--controller={self._host}:{port}"]
        return python_module("segmentstore", "serve", str(self.store), "--create", *addresses)

    def _environment(self) -> Mapping[str, str]:
        values: dict[str, object] = {
            "containers": CONTAINERS,
            "tier1": self._tier1,
            "tier2": self.tier2.as_uri(),
            "cache_bytes_max": CACHE_BYTES,
            **self._settings,
        }
        if self._certificates is not None:
            values["tls_certificate_file"] = self._certificates / "server.crt"
            values["tls_key_file"] = self._certificates / "server.key"
        named = {f"SEGMENTSTORE_{name.upper()}": str(value) for name, value in values.items()}
        root = str(Path(__file__).resolve().parent.parent)
        inherited = os.environ.get("PYTHONPATH")
        return named | {"PYTHONPATH": os.pathsep.join(filter(None, (root, inherited)))}


class PravegaStore(Server):
    """Pravega's segment store. It serves when a Controller has given it containers."""

    name: ClassVar[str] = "Pravega's segment store"

    def __init__(self, folder: Path, cluster: BookKeeperCluster, unflushed_bytes: int) -> None:
        super().__init__(folder)
        self._cluster = cluster
        self._unflushed_bytes = unflushed_bytes

    def _command(self, port: int) -> Sequence[str]:
        tier2 = self.folder.parent / "tier2"
        tier2.mkdir(exist_ok=True)
        zookeeper = self._cluster.zookeeper
        service = {
            "cluster.name": "pravega-cluster",
            "container.count": CONTAINERS,
            "service.listener.port": port,
            "service.listener.host.nameOrIp": HOST,
            "service.published.port": port,
            "service.published.host.nameOrIp": HOST,
            "admin.gateway.port": free_port(),
            "zk.connect.uri": zookeeper,
            "dataLog.impl.name": "BOOKKEEPER",
            "storage.impl.name": "FILESYSTEM",
            "storage.layout": "CHUNKED_STORAGE",
            "cache.size.max": CACHE_BYTES,
            "rest.listener.enable": "false",
        }
        others = {
            "filesystem.root": tier2,
            "bookkeeper.zk.connect.uri": zookeeper,
            "bookkeeper.ledger.path": "/ledgers",
            "bookkeeper.ensemble.size": 1,
            "bookkeeper.write.quorum.size": 1,
            "bookkeeper.ack.quorum.size": 1,
        }
        if self._unflushed_bytes:
            others["writer.flush.threshold.bytes"] = self._unflushed_bytes
            others["writer.flush.threshold.milliseconds"] = _DAY_MS
        values = {f"pravegaservice.{name}": value for name, value in service.items()} | others
        settings = self.folder / "config.properties"
        settings.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        return java_command(
            "io.pravega.segmentstore.server.host.ServiceStarter",
            "-Xmx1g",
            "-XX:MaxDirectMemorySize=2g",
            f"-Dpravega.configurationFile={settings}",
        )


class PravegaServer(MeasuredServer):
    """Pravega's store and, as the process of the `Server`, its Controller, which stays when the
    store is killed or restarted.

    With `unflushed_bytes`, so much of a segment stays in the log, for a day.
    """

    name: ClassVar[str] = "Pravega's Controller"
    ready_s: ClassVar[float] = 180.0

    def __init__(self, folder: Path, cluster: BookKeeperCluster, unflushed_bytes: int = 0) -> None:
        super().__init__(folder)
        self._cluster = cluster
        self._rest_port = free_port()
        self._segments = PravegaStore(folder / "segments", cluster, unflushed_bytes)

    def start(self) -> None:
        """The store first: the Controller keeps its tables there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._segments.start()
        self.wire_port = self._segments.port
        super().start()

    def stop(self) -> None:
        """Both."""
        super().stop()
        self._segments.stop()

    def kill(self) -> None:
        """The store alone."""
        self._segments.kill()

    def restart(self, *, kill: bool = False) -> None:
        """Of the store alone. Its containers come later than its port."""
        self._segments.restart(kill=kill)

    def processes(self) -> list[int]:
        """The store's."""
        process = self._segments.process_id
        return [] if process is None else [process]

    def output(self) -> str:
        """The end of what both wrote."""
        return f"{super().output()}\n--- {self._segments.name}:\n{self._segments.output()}"

    def _command(self, port: int) -> Sequence[str]:
        values = {
            "cluster.name": "pravega-cluster",
            "container.count": CONTAINERS,
            "service.rest.listener.port": self._rest_port,
            "service.rpc.listener.port": port,
            "service.rpc.published.host.nameOrIp": HOST,
            "service.rpc.published.port": port,
            "zk.connect.uri": self._cluster.zookeeper,
        }
        settings = [f"-Dcontroller.{name}={value}" for name, value in values.items()]
        return java_command("io.pravega.controller.server.Main", "-Xmx512m", *settings)

    def _answers(self, port: int) -> bool:
        del port  # which opens before that
        return _STARTED in (self.folder / "output.log").read_bytes()


@contextmanager
def one_bookie(folder: Path) -> Iterator[BookKeeperCluster]:
    """ZooKeeper and a bookie for both sides. Raises BenchError if it does not come up."""
    try:
        with BookKeeperCluster(folder / "cluster", 1, full_speed=True) as cluster:
            yield cluster
    except (ServerFailedError, SegmentStoreError) as error:
        raise BenchError(str(error)) from error


@contextmanager
def running(server: MeasuredServer) -> Iterator[MeasuredServer]:
    """It runs meanwhile. Raises BenchError if it does not come up."""
    try:
        server.start()
    except ServerFailedError as error:
        server.stop()
        raise BenchError(str(error)) from error
    try:
        yield server
    finally:
        server.stop()


def bookkeeper_url(cluster: BookKeeperCluster, name: str) -> str:
    """The `tier1` of a store of that name on the one bookie."""
    return f"{cluster.url('/' + name)}?ensemble=1&write_quorum=1&ack_quorum=1"


def bookie_cpu_seconds(cluster: BookKeeperCluster) -> float:
    """What the bookie has used."""
    process = ServiceProcess("bookie 0", cluster.bookie_folder(0)).process_id
    return 0.0 if process is None else cpu_seconds(process)


def cpu_seconds(process: int) -> float:
    """User and system time of a process; 0 if it has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_bytes(process: int) -> int:
    """Resident set of a process; 0 if it has ended."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
