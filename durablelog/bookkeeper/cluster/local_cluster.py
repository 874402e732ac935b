"""LocalCluster: ZooKeeper and bookies on this machine, in one folder, started, checked and
stopped.

Rules of this file:

- the folder holds all state: any process that opens it (another one, a week later) can continue
  with the servers that run there;
- ready means that every bookie has registered itself in this lifetime, not that its port is open;
- what a dead bookie left of its registration goes before it starts again: it would serve only 20 s
  later;
- processes outlive the program that started them, unless it asked for a watchdog: then they die
  with it, however it dies;
- what can be started at the same time is.

    folder/cluster.json     the ports
    folder/zookeeper/       zoo.cfg, data/, output.log, server.log, process (who runs)
    folder/bookie-0/ ...    bookie.conf, journal/, ledgers/, index/, and the same
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from durablelog.bookkeeper.cluster import settings
from durablelog.bookkeeper.cluster.addresses import (
    Addresses,
    choose_addresses,
    load_addresses,
    port_is_free,
)
from durablelog.bookkeeper.cluster.registrations import (
    CHECK_ERRORS,
    Registrations,
    zookeeper_answers,
)
from durablelog.bookkeeper.cluster.service_process import ServiceProcess, wait_for_any_end
from durablelog.bookkeeper.cluster.settings import HOST, ClusterExtras
from durablelog.bookkeeper.installation import (
    JAVA_ENVIRONMENT,
    JavaProgram,
    archive_options,
    cluster_classpath,
    java,
)
from segmentstore.contracts.errors import ConfigError, SegmentStoreError

BOOKIES: Final = 3
USUAL: Final = ClusterExtras()
STORE_PATH: Final = "/segmentstore"

_READY_S: Final = 90.0
_CHECK_S: Final = 0.05
_FORMAT_S: Final = 120.0
_WATCHDOG: Final = 'cat >/dev/null; exec "$@"'


class LocalClusterError(SegmentStoreError):
    """A process of a local cluster did not come up.

    The message has the end of what it wrote. The operator's move.
    """


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One process of a cluster, as it is now."""

    name: str
    state: str
    """`running`, `paused`, `starting` (alive, not serving), `read-only` or `stopped`."""
    process_id: int | None
    port: int
    bytes_on_disk: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster as it is now."""

    folder: str
    tier1: str
    """The URL of a store on it."""
    services: Sequence[ServiceStatus]

    @property
    def running(self) -> bool:
        """Whether all of it serves."""
        return all(service.state == "running" for service in self.services)


class LocalCluster:
    """One cluster in one folder.

    Not safe for use by several threads at once; several processes wait for each other.

    `bookies` is how many it has at least after a start. With `watched`, a watchdog ends it when
    this program ends; with `short_lived`, what is started is quick to start and slower at full
    load. `archives` are the options of Java by which its programs start from class archives.
    `extras` are to be given with each start: the folder does not keep them.
    """

    def __init__(
        self,
        folder: Path,
        bookies: int | None = None,
        *,
        watched: bool = False,
        short_lived: bool = False,
        archives: Callable[[JavaProgram], Sequence[str]] = archive_options,
        extras: ClusterExtras = USUAL,
    ) -> None:
        self.folder = folder.absolute()
        self._wanted = bookies
        self._watched = watched
        self._short_lived = settings.SHORT_LIVED if short_lived else ()
        self._archives = archives
        self._extras = extras
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._addresses = load_addresses(self.folder)

    @property
    def addresses(self) -> Addresses:
        """Its ports. Raises ConfigError before the first start."""
        if self._addresses is None:
            raise ConfigError("cluster", f"there is no local cluster in {self.folder}: start one")
        return self._addresses

    @property
    def zookeeper(self) -> str:
        """Host and port of ZooKeeper."""
        return f"{HOST}:{self.addresses.zookeeper}"

    @property
    def metadata_uri(self) -> str:
        """Where BookKeeper's own clients find the cluster."""
        return f"{self._extras.scheme}://{self.zookeeper}{settings.LEDGERS_ROOT}"

    def url(self, path: str = STORE_PATH) -> str:
        """The `tier1` of a store whose metadata is below `path`."""
        return f"bookkeeper://{self.zookeeper}/{path.lstrip('/')}"

    def bookie_id(self, index: int) -> str:
        """The name by which the cluster knows a bookie."""
        return f"{self._host(index)}:{self.addresses.bookies[index]}"

    def zookeeper_process(self) -> ServiceProcess:
        """ZooKeeper, alive or not."""
        return ServiceProcess("ZooKeeper", self.folder / "zookeeper")

    def bookie_process(self, index: int) -> ServiceProcess:
        """A bookie, alive or not; counted from 0."""
        return ServiceProcess(f"bookie {index}", self.folder / f"bookie-{index}")

    def processes(self) -> list[ServiceProcess]:
        """All, ZooKeeper first."""
        count = len(self._addresses.bookies) if self._addresses is not None else 0
        return [self.zookeeper_process(), *map(self.bookie_process, range(count))] if count else []

    def start(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Start what does not run, and wait until all of it serves: some 4 s.

        Nothing happens if all runs.

        Raises LocalClusterError, ConfigError, GatewayMissingError.
        """
        settings.require_nameable(self.folder)
        cluster_classpath()
        java()
        with self._alone():
            before = load_addresses(self.folder)
            wanted = self._wanted or (len(before.bookies) if before is not None else BOOKIES)
            self._addresses = choose_addresses(self.folder, wanted, before)
            self._watch()
            say("starting ZooKeeper")
            self._start_zookeeper()
            with self._registrations() as registrations:
                if not registrations.formatted():
                    say("formatting the cluster")
                    registrations.remove_unfinished()
                    self._format()
            say(f"starting {wanted} bookies")
            self._start_bookies(range(wanted), {})

    def start_zookeeper(self) -> None:
        """Start ZooKeeper alone and wait until it serves. Raises LocalClusterError."""
        with self._alone():
            self._watch()
            self._start_zookeeper()

    def start_bookie(self, index: int, overrides: Mapping[str, str] | None = None) -> None:
        """Start one bookie, with other settings if need be, and wait until it serves.

        ZooKeeper runs.

        Raises LocalClusterError.
        """
        with self._alone():
            self._watch()
            self._start_bookies([index], overrides or {})

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop all of it, the bookies first: in an orderly way, or after 10 s in any.

        Nothing happens if nothing runs.
        """
        if self._addresses is not None:
            with self._alone():
                self._end_all(number)
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.kill()
            watchdog.communicate()

    def status(self) -> ClusterStatus:
        """What runs, and what it takes on disk."""
        addresses = self.addresses
        writable: set[str] = set()
        read_only: set[str] = set()
        zookeeper = self.zookeeper_process()
        serves = zookeeper.process_id is not None and zookeeper_answers(addresses.zookeeper)
        if serves:
            try:
                with self._registrations() as registrations:
                    writable, read_only = registrations.writable(), registrations.read_only()
            except LocalClusterError:
                serves = False
        services = [_status(zookeeper, addresses.zookeeper, "running" if serves else "starting")]
        for index, port in enumerate(addresses.bookies):
            name = self.bookie_id(index)
            state = (
                "running" if name in writable else "read-only" if name in read_only else "starting"
            )
            services.append(_status(self.bookie_process(index), port, state))
        return ClusterStatus(str(self.folder), self.url(), services)

    def output(self) -> str:
        """The end of what its processes wrote."""
        return "\n".join(f"--- {process.name}\n{process.output()}" for process in self.processes())

    def _start_zookeeper(self) -> None:
        process = self.zookeeper_process()
        port = self.addresses.zookeeper
        if process.process_id is None:
            _require_free(process, port)
            _make_folders(process.folder, "tmp", "data")
            values = {**settings.zookeeper_settings(process.folder, port), **self._extras.zookeeper}
            settings.write_settings(process.folder / "zoo.cfg", values)
            options = self._options(JavaProgram.ZOOKEEPER)
            _launch(
                process,
                settings.zookeeper_command(java(), cluster_classpath(), process.folder, *options),
            )
        _wait_until(lambda: [] if zookeeper_answers(port) else [process])

    def _format(self) -> None:
        folder = self.folder / "bookie-0"
        self._configure(0, {})
        options = [*self._extras.java, *self._archives(JavaProgram.SHELL)]
        command = settings.format_command(java(), cluster_classpath(), folder, *options)
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **JAVA_ENVIRONMENT},
            timeout=_FORMAT_S,
            check=False,
        )
        if ended.returncode:
            raise LocalClusterError(
                f"the cluster could not be formatted:\n{ended.stdout.decode(errors='replace')}"
            )

    def _start_bookies(self, indexes: Sequence[int], overrides: Mapping[str, str]) -> None:
        with self._registrations() as registrations:
            waiting = {}
            options = self._options(JavaProgram.BOOKIE)
            for index in indexes:
                process = self.bookie_process(index)
                if process.process_id is None:
                    registrations.forget(self.bookie_id(index))
                    _require_free(process, self.addresses.bookies[index])
                    folder = self._configure(index, overrides)
                    _launch(
                        process,
                        settings.bookie_command(java(), cluster_classpath(), folder, *options),
                    )
                waiting[self.bookie_id(index)] = process

            def absent() -> list[ServiceProcess]:
                there = registrations.writable() | registrations.read_only()
                return [process for name, process in waiting.items() if name not in there]

            _wait_until(absent)

    def _options(self, program: JavaProgram) -> Sequence[str]:
        return [*self._short_lived, *self._extras.java, *self._archives(program)]

    def _configure(self, index: int, overrides: Mapping[str, str]) -> Path:
        folder = self.folder / f"bookie-{index}"
        _make_folders(folder, "tmp", "journal", "ledgers", "index")
        values = settings.bookie_settings(folder, self.addresses.bookies[index], self.metadata_uri)
        values = {
            **values,
            "advertisedAddress": self._host(index),
            **self._extras.bookie,
            **overrides,
        }
        settings.write_settings(folder / "bookie.conf", values)
        return folder

    def _host(self, index: int) -> str:
        return self._extras.hosts[index % len(self._extras.hosts)]

    def _end_all(self, number: signal.Signals) -> None:
        zookeeper, *bookies = self.processes()
        for process in bookies:
            process.send(number)  # all at once; they are waited for one after another
            process.send(signal.SIGCONT)
        for process in bookies:
            process.end(number)
        zookeeper.end(number)

    @contextmanager
    def _registrations(self) -> Iterator[Registrations]:
        process = self.zookeeper_process()
        if process.process_id is None:
            raise LocalClusterError("ZooKeeper does not run")
        try:
            with Registrations(
                self.addresses.zookeeper, **self._extras.registry_client
            ) as registrations:
                yield registrations
        except CHECK_ERRORS as error:
            raise LocalClusterError(
                f"ZooKeeper does not answer ({error!r}):\n{process.trouble()}"
            ) from error

    def _watch(self) -> None:
        if self._watched and self._watchdog is None:
            ending = [sys.executable, "-m", "durablelog.bookkeeper.cluster", str(self.folder)]
            self._watchdog = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHDOG, "watchdog", *ending],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time changes a cluster; the others wait."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / ".lock").open("w")
        except OSError as error:
            raise ConfigError(
                "cluster", f"{self.folder} cannot be written: {error.strerror}"
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield
            finally:
                # Said, and not left to the closing: a forked child may have the file open, too.
                fcntl.flock(lock, fcntl.LOCK_UN)


def _launch(process: ServiceProcess, command: Sequence[str]) -> None:
    try:
        process.launch(command, JAVA_ENVIRONMENT)
    except OSError as error:
        raise LocalClusterError(str(error)) from error


def _wait_until(absent: Callable[[], Sequence[ServiceProcess]]) -> None:
    """Check until no process is absent.

    Raises LocalClusterError for one that ended, or when it takes too long.
    """
    end = time.monotonic() + _READY_S
    while True:
        # Before the check: a process that ended after it may have been seen by it.
        ended = (
            {process.name for process in missing if process.process_id is None}
            if (missing := absent())
            else set()
        )
        if not missing:
            return
        for process in missing:
            if process.name in ended:
                raise LocalClusterError(
                    f"{process.name} ended while starting:\n{process.trouble()}"
                )
        if time.monotonic() > end:
            raise LocalClusterError(
                f"{missing[0].name} does not serve after {_READY_S:.0f} s:\n{missing[0].trouble()}"
            )
        wait_for_any_end(missing, _CHECK_S)


def _require_free(process: ServiceProcess, port: int) -> None:
    if not port_is_free(port):
        raise LocalClusterError(
            f"{process.name} cannot start: port {port} of {HOST} is in use by another "
            "program, and its data belong to it"
        )


def _make_folders(folder: Path, scratch: str, *kept: str) -> None:
    shutil.rmtree(folder / scratch, ignore_errors=True)  # what a killed one left
    for name in (scratch, *kept):
        (folder / name).mkdir(parents=True, exist_ok=True)


def _status(process: ServiceProcess, port: int, alive: str) -> ServiceStatus:
    process_id = process.process_id
    state = "stopped" if process_id is None else "paused" if process.paused else alive
    return ServiceStatus(process.name, state, process_id, port, _bytes_on_disk(process.folder))


def _bytes_on_disk(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            # Blocks, not lengths: journals are allocated before they are filled.
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:
            pass  # it was just removed
    return total
