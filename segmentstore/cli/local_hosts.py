"""LocalHosts: a whole cluster on this machine, in one folder, to try and to test it: ZooKeeper,
bookies, and hosts that are processes of `segmentstore serve`.

    folder/hosts.json      ports of the hosts, and the number of containers
    folder/bookkeeper/     the local BookKeeper cluster
    folder/tier2/          the objects
    folder/host-1/ ...     process, output.log, and the host's folder `store`

The processes outlive the program that started them, until `stop`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from durablelog.bookkeeper.bookkeeper_clients import open_nodes, translated
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.cluster.addresses import free_ports, port_is_free
from durablelog.bookkeeper.cluster.local_cluster import LocalCluster
from durablelog.bookkeeper.cluster.service_process import ServiceProcess, wait_for_any_end
from durablelog.bookkeeper.cluster.settings import HOST
from durablelog.bookkeeper.ledger_store import Replication
from segmentstore.cli.exit_codes import CommandError
from segmentstore.cluster.administration import ClusterPicture, read_cluster
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.cluster.host_record import ReportedState
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from segmentstore.settings_sources import ENVIRONMENT_PREFIX

FILE_NAME: Final = "hosts.json"
HOSTS_MAX: Final = 16
CONTAINERS_DEFAULT: Final = 12
_VERSION: Final = 1
_SERVES_S: Final = 180.0
_CHECK_S: Final = 0.5
_SHOWN_MAX: Final = 10
"""Containers that a message names."""
_STOP_S: Final = 60.0
"""For a host to drain and close, before it is killed."""


@dataclass(frozen=True, slots=True)
class KeptHosts:
    """What does not change while the folder is kept."""

    ports: tuple[int, ...]
    containers: int
    controller_ports: tuple[int, ...] = ()
    """As many, or none."""


class LocalHosts:
    """One cluster in one folder; one program at a time starts or stops it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._bookkeeper_folder = self.folder / "bookkeeper"

    @property
    def bookkeeper(self) -> LocalCluster:
        """Its ZooKeeper and bookies."""
        return LocalCluster(self._bookkeeper_folder)

    @property
    def url(self) -> str:
        """The `tier1` of its store, whose ledgers are on as many bookies as there are."""
        cluster = self.bookkeeper
        bookies = len(cluster.addresses.bookies)
        few = f"?ensemble={bookies}" if bookies < Replication().ensemble else ""
        return cluster.url() + few

    @property
    def zookeeper_url(self) -> str:
        """By which clients find the hosts."""
        return BookKeeperLocation.parse(self.url).zookeeper_url

    @property
    def controller_uris(self) -> list[str]:
        """Of each host's Controller, as Pravega's clients take it; none without."""
        return [f"tcp://{HOST}:{port}" for port in self.kept.controller_ports]

    @property
    def kept(self) -> KeptHosts:
        """Its ports. Raises ConfigError if none was started in this folder, or the file is bad."""
        path = self.folder / FILE_NAME
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields["version"] != _VERSION:
                raise ConfigError("cluster", f"{path} is of version {fields['version']}")
            return KeptHosts(
                tuple(map(int, fields["ports"])),
                int(fields["containers"]),
                tuple(map(int, fields.get("controller_ports", ()))),
            )
        except (FileNotFoundError, NotADirectoryError):
            detail = f"there are no local hosts in {self.folder}: start them"
            raise ConfigError("cluster", detail) from None
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError("cluster", f"{path} is damaged: {error!r}") from error

    def store_of(self, number: int) -> Path:
        """The folder of a host's store, counted from 1."""
        return self.folder / f"host-{number}" / "store"

    def process_of(self, number: int) -> ServiceProcess:
        """A host, alive or not."""
        return ServiceProcess(f"host-{number}", self.folder / f"host-{number}")

    def start(
        self,
        hosts: int,
        bookies: int | None,
        containers: int | None,
        say: Callable[[str], None],
        *,
        controllers: bool = False,
    ) -> ClusterPicture:
        """Start what does not run, and wait until all hosts are there, and serve all containers.

        `containers` is fixed with the first start. `controllers`: each host has one, from now on.
        Raises ConfigError, LocalClusterError,
        CommandError (a host ended, or it takes too long).
        """
        kept = self._keep(hosts, containers, controllers=controllers)
        cluster = LocalCluster(self._bookkeeper_folder, bookies)
        cluster.start(say)
        say(f"starting {hosts} hosts")
        for number in range(1, hosts + 1):
            self._start_host(number, kept)
        return self._wait_until_served(kept, hosts)

    def stop(self) -> list[str]:
        """Stop the hosts in order, and then BookKeeper; the names of what ran. The data stay."""
        processes = [self.process_of(number + 1) for number in range(len(self.kept.ports))]
        ran = [process for process in processes if process.send(signal.SIGTERM)]
        end = time.monotonic() + _STOP_S
        for process in ran:
            process.wait(max(0.0, end - time.monotonic()))
            process.end()
        services = [each for each in self.bookkeeper.processes() if each.process_id is not None]
        self.bookkeeper.stop()
        return [process.name for process in (*ran, *services)]

    def _keep(self, hosts: int, containers: int | None, *, controllers: bool) -> KeptHosts:
        if not 1 <= hosts <= HOSTS_MAX:
            raise ConfigError("hosts", f"{hosts} is not a number from 1 to {HOSTS_MAX}")
        before = self.kept if (self.folder / FILE_NAME).exists() else None
        if before is not None and containers not in (None, before.containers):
            raise ConfigError("containers", f"the store has {before.containers}, for ever")
        ports = list(before.ports if before is not None else ())
        own = list(before.controller_ports if before is not None else ())
        if controllers and not own:
            self._require_stopped(len(ports))
        self.folder.mkdir(parents=True, exist_ok=True)
        ports += free_ports(self.folder, max(0, hosts - len(ports)), ports + own)
        if controllers or own:
            own += free_ports(self.folder, len(ports) - len(own), ports + own)
        count = before.containers if before is not None else containers or CONTAINERS_DEFAULT
        kept = KeptHosts(tuple(ports), count, tuple(own))
        if kept != before:
            content = {
                "version": _VERSION,
                "ports": kept.ports,
                "containers": kept.containers,
                "controller_ports": kept.controller_ports,
            }
            new = self.folder / f"{FILE_NAME}.new"
            new.write_text(json.dumps(content) + "\n", encoding="utf-8")
            new.replace(self.folder / FILE_NAME)
        return kept

    def _require_stopped(self, hosts: int) -> None:
        for process in map(self.process_of, range(1, hosts + 1)):
            if process.process_id is not None:
                detail = f"{process.name} runs without one: stop the cluster first"
                raise ConfigError("controller", detail)

    def _start_host(self, number: int, kept: KeptHosts) -> None:
        process, port = self.process_of(number), kept.ports[number - 1]
        if process.process_id is not None:
            return
        ports = [port, *kept.controller_ports[number - 1 : number]]
        for each in ports:
            if not port_is_free(each):
                raise CommandError(f"{process.name} cannot start: port {each} is in use")
        settings = {
            "TIER1": self.url,
            "TIER2": (self.folder / "tier2").as_uri(),
            "CONTAINERS": str(kept.containers),
        }
        options = ["--create", "--wire", f"{HOST}:{port}", "--host", process.name]
        options += [word for each in ports[1:] for word in ("--controller", f"{HOST}:{each}")]
        process.launch(
            [sys.executable, "-m", "segmentstore", "serve", str(self.store_of(number)), *options],
            {f"{ENVIRONMENT_PREFIX}{name}": value for name, value in settings.items()},
        )

    def _wait_until_served(self, kept: KeptHosts, hosts: int) -> ClusterPicture:
        end = time.monotonic() + _SERVES_S
        started = [self.process_of(number) for number in range(1, hosts + 1)]
        while True:
            seen = self.picture()
            if seen.serving == kept.containers and len(seen.hosts) >= hosts:
                return seen
            for process in started:
                if process.process_id is None:
                    raise CommandError(f"{process.name} has ended:\n{process.output()}")
            if time.monotonic() > end:
                raise CommandError(
                    f"after {_SERVES_S:.0f} s {len(seen.hosts)} of {hosts} hosts serve "
                    f"{seen.serving} of {kept.containers} containers{_why_not(seen)}"
                )
            wait_for_any_end(started, _CHECK_S)

    def picture(self) -> ClusterPicture:
        """Hosts and containers as of now. Raises TierUnavailableError."""
        location = BookKeeperLocation.parse(self.url)

        async def main() -> ClusterPicture:
            async with translated():
                nodes = await open_nodes(location, os.environ, Runtime())
                try:
                    here = ClusterNodes(nodes, location.path)
                    return await read_cluster(here, self.kept.containers)
                finally:
                    await nodes.close()

        return asyncio.run(main())


def _why_not(seen: ClusterPicture) -> str:
    """A line for each container that is not served, as its host reports it."""
    lines = [
        f"container {row.container} on {row.host or 'no host'}: {row.state}"
        + (f": {row.cause}" if row.cause else "")
        for row in seen.container_rows()
        if row.state != ReportedState.RUNNING.value
    ]
    more = [f"and {len(lines) - _SHOWN_MAX} more"] if len(lines) > _SHOWN_MAX else []
    return "".join(f"\n{line}" for line in (*lines[:_SHOWN_MAX], *more))
