"""A store served to Pravega's clients by several hosts, each a process of its own."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self, TypeVar

from durablelog.bookkeeper.bookkeeper_clients import open_nodes
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.metadata_node import MetadataNodes
from recovery.harness.services.server import HOST, python_module
from segmentstore.cluster.administration import ClusterPicture, edit_map, read_cluster
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.cluster.map_edits import pin
from segmentstore.cluster.pravega_records import PravegaHost, decode_mapping
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.controller.names import ROOT_TABLE
from tests.clients.pravega_controller import PravegaController
from tests.clients.served_store import ServedStore

T = TypeVar("T")

CONTAINERS: Final = 6
ROOT: Final = container_of(ROOT_TABLE, CONTAINERS)
"""The container that the Controller is with."""
_WAIT_S: Final = 240.0
_CHECK_S: Final = 0.1


def with_nodes(location: BookKeeperLocation, work: Callable[[MetadataNodes], Awaitable[T]]) -> T:
    """What `work` gives on a session of its own."""

    async def main() -> T:
        nodes = await open_nodes(location, os.environ, Runtime())
        try:
            return await work(nodes)
        finally:
            await nodes.close()

    return asyncio.run(main())


class ServedHost(ServedStore):
    """`segmentstore serve --host`, with both ports."""

    name: ClassVar[str] = "the host"

    def __init__(self, folder: Path, host_id: str, **settings: object) -> None:
        super().__init__(folder, None, containers=CONTAINERS, **settings)
        self.host_id = host_id

    def _command(self, port: int) -> Sequence[str]:
        options = ("--create", "--host", self.host_id, *self._ports(port))
        return python_module("segmentstore", "serve", str(self.store), *options)


class AssignedHost(ServedHost):
    """One whose containers Pravega's Controller assigns. The port of the `Server` is the wire
    server's.
    """

    def _command(self, port: int) -> Sequence[str]:
        return python_module("segmentstore", "serve", str(self.store), "--create", self._wire(port))

    def _wire(self, port: int) -> str:
        return f"--wire={HOST}:{port}"


class StartedHosts:
    """Hosts of one store; a context manager that starts and stops all of them."""

    hosts: Mapping[str, ServedHost]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def client_environment(self) -> Mapping[str, str]:
        """Nothing is needed."""
        return {}

    def condition(self) -> str:
        """For a test that fails."""
        return "\n".join(host.condition() for host in self.hosts.values())

    def _start(self) -> None:
        for host in self.hosts.values():
            host.start()

    def _stop(self) -> None:
        for host in self.hosts.values():
            host.kill()


class AssignedHosts(StartedHosts):
    """Hosts of one store on BookKeeper, and Pravega's Controller, which assigns the containers to
    them; a context manager that starts and stops all.
    """

    def __init__(self, folder: Path, tier1: str, zookeeper: str, cluster: str) -> None:
        self._location = BookKeeperLocation.parse(tier1)
        self._cluster = cluster
        tier2 = (folder / "tier2").as_uri()
        settings = {"tier1": tier1, "tier2": tier2, "serve": f"pravega:{cluster}"}
        names = [f"host-{number + 1}" for number in range(3)]
        self.hosts = {name: AssignedHost(folder / name, name, **settings) for name in names}
        self.controller = PravegaController(
            folder / "controller", zookeeper, (HOST, 0), cluster=cluster, containers=CONTAINERS
        )

    def _start(self) -> None:
        super()._start()
        self.controller.start()

    @property
    def uri(self) -> str:
        """Of the Controller."""
        return f"tcp://{HOST}:{self.controller.port}"

    def condition(self) -> str:
        """As StartedHosts, with what the Controller wrote."""
        return f"{super().condition()}\n{self.controller.output()}"

    def wait_until_assigned(self, *names: str) -> None:
        """Return when the mapping gives all containers to these hosts, some to each."""
        ports = {self.hosts[name].port for name in names}
        end = time.monotonic() + _WAIT_S
        while ports != (found := {host.port for host in self._mapping().values()}):
            assert time.monotonic() < end, f"{found}\n{self.condition()}"
            time.sleep(_CHECK_S)  # from one read of ZooKeeper to the next

    def _mapping(self) -> Mapping[int, PravegaHost]:
        async def read(nodes: MetadataNodes) -> Mapping[int, PravegaHost]:
            path = f"/pravega/{self._cluster}/cluster/segmentContainerHostMapping"
            content = await nodes.read(path)
            return {} if content is None else decode_mapping(content.data, path)

        return with_nodes(self._location, read)

    def _stop(self) -> None:
        self.controller.stop()
        super()._stop()


class ServedHosts(StartedHosts):
    """Hosts of one store on BookKeeper; a context manager that starts and stops all of them.

    Behind a start all containers are served. A killed host comes back at the same ports.
    """

    def __init__(self, folder: Path, tier1: str, count: int = 3) -> None:
        self._location = BookKeeperLocation.parse(tier1)
        tier2 = (folder / "tier2").as_uri()
        self.hosts = {
            name: ServedHost(folder / name, name, tier1=tier1, tier2=tier2)
            for name in (f"host-{number + 1}" for number in range(count))
        }

    def _start(self) -> None:
        super()._start()
        self.wait_until_served()

    @property
    def uri(self) -> str:
        """Of all Controllers; clients begin with it."""
        return f"tcp://{','.join(host.address for host in self.hosts.values())}"

    def picture(self) -> ClusterPicture:
        """Hosts and containers as of now."""
        return self._with_nodes(lambda nodes: read_cluster(nodes, CONTAINERS))

    def owner(self, container: int) -> str:
        """The host that is to serve it."""
        return self.picture().map.owners[container]

    def move(self, container: int, host_id: str) -> None:
        """Pin a container to a host, and wait until all are served."""
        self._with_nodes(
            lambda nodes: edit_map(nodes, lambda map_: pin(map_, CONTAINERS, container, host_id))
        )
        self._wait(lambda picture: picture.map.owners[container] == host_id)

    def wait_until_served(self) -> None:
        """Return when each container is served by a host."""
        self._wait(lambda _: True)

    def _wait(self, holds: Callable[[ClusterPicture], bool]) -> None:
        end = time.monotonic() + _WAIT_S
        while True:
            picture = self.picture()
            if picture.serving == CONTAINERS and holds(picture):
                return
            assert time.monotonic() < end, f"{picture}\n{self.condition()}"
            time.sleep(_CHECK_S)  # from one read of ZooKeeper to the next

    def _with_nodes(self, work: Callable[[ClusterNodes], Awaitable[T]]) -> T:
        root = self._location.path
        return with_nodes(self._location, lambda nodes: work(ClusterNodes(nodes, root)))
