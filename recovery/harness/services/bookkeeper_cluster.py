"""BookKeeperCluster: a real cluster for tests, and what can go wrong with its machines.

The processes are those of `segmentstore bookkeeper start`; here they die with the process that
started them, and can be killed, paused, wiped and filled one by one. Bookies are counted from 0.

Everything here waits for what it starts or ends, so a test needs no waiting of its own. The
exception is what the rest of the cluster notices later: a killed bookie stays in ZooKeeper's list
for up to 20 s more.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from durablelog.bookkeeper.cluster.local_cluster import (
    BOOKIES,
    USUAL,
    LocalCluster,
    LocalClusterError,
)
from durablelog.bookkeeper.cluster.registrations import CHECK_ERRORS, Registrations
from durablelog.bookkeeper.cluster.service_process import ServiceProcess
from durablelog.bookkeeper.cluster.settings import ClusterExtras
from recovery.harness.services.pausing import pause_process
from recovery.harness.services.server import ServerFailedError

_FULL: Final = {"diskUsageThreshold": "0.00002", "diskUsageWarnThreshold": "0.00001"}
_COOKIE: Final = "VERSION"
_DATA: Final = ("journal", "ledgers", "index")


class BookKeeperCluster:
    """ZooKeeper and so many bookies in a folder.

    Not started by its constructor; a context manager that does it.

    Not safe for use by several threads at once, but by one after another. Starting anything raises
    ServerFailedError if it does not come up, with the end of what it wrote, and GatewayMissingError
    if BookKeeper is not installed.
    """

    def __init__(
        self,
        folder: Path,
        bookies: int = BOOKIES,
        *,
        full_speed: bool = False,
        extras: ClusterExtras = USUAL,
    ) -> None:
        """`full_speed` is for measurements: as `segmentstore bookkeeper start` would run it, and as
        slow to start.

        `extras` are what is unusual about it; with credentials for ZooKeeper, nothing that asks
        that itself works here.
        """
        self._cluster = LocalCluster(
            folder, bookies, watched=True, short_lived=not full_speed, extras=extras
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def folder(self) -> Path:
        """Where it keeps everything, a folder for each process."""
        return self._cluster.folder

    @property
    def bookies(self) -> int:
        """How many there are, alive or not."""
        return len(self._cluster.addresses.bookies)

    @property
    def zookeeper(self) -> str:
        """Host and port of ZooKeeper."""
        return self._cluster.zookeeper

    @property
    def metadata_uri(self) -> str:
        """For BookKeeper's own clients."""
        return self._cluster.metadata_uri

    def url(self, path: str = "/segmentstore") -> str:
        """The `tier1` of a store whose metadata is below `path` in ZooKeeper."""
        return self._cluster.url(path)

    def bookie_id(self, index: int) -> str:
        """As the cluster's metadata names it: host and port."""
        return self._cluster.bookie_id(index)

    def bookie_folder(self, index: int) -> Path:
        """Its journal/, ledgers/ and index/."""
        return self._cluster.bookie_process(index).folder

    def bookie_runs(self, index: int) -> bool:
        """Whether its process is alive, paused or not."""
        return self._cluster.bookie_process(index).process_id is not None

    def start(self) -> None:
        """Start what does not run, and wait until all of it serves: some 4 s."""
        try:
            self._cluster.start()
        except LocalClusterError as error:
            self.stop()
            raise ServerFailedError(str(error)) from error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all of it; the data stays. Nothing happens if nothing runs."""
        self._cluster.stop()

    def output(self) -> str:
        """The end of what every process wrote."""
        return self._cluster.output()

    def kill_zookeeper(self) -> None:
        """End it as a crash would."""
        self._cluster.zookeeper_process().end(signal.SIGKILL)

    def start_zookeeper(self) -> None:
        """Start it again, with its data; sessions go on if their clients come back within 20 s."""
        try:
            self._cluster.start_zookeeper()
        except LocalClusterError as error:
            raise ServerFailedError(str(error)) from error

    def pause_zookeeper(self) -> None:
        """It neither answers nor goes away."""
        _pause(self._cluster.zookeeper_process())

    def resume_zookeeper(self) -> None:
        """After `pause_zookeeper`."""
        self._cluster.zookeeper_process().send(signal.SIGCONT)

    def kill_bookie(self, index: int, *, forget: bool = False) -> None:
        """End it as a crash would.

        With `forget`, the others know at once: its registration is removed as well.
        """
        self._cluster.bookie_process(index).end(signal.SIGKILL)
        if forget:
            self._forget(index)

    def kill_bookies(self, *indexes: int, forget: bool = False) -> None:
        """End several at the same moment, each as `kill_bookie` does."""
        for index in indexes:
            self._cluster.bookie_process(index).send(signal.SIGKILL)
        for index in indexes:
            self.kill_bookie(index, forget=forget)

    def kill(self) -> None:
        """End all of it at the same moment, as a crash would. `start` brings it back."""
        processes = self._cluster.processes()
        for process in processes:
            process.send(signal.SIGKILL)
        for process in processes:
            process.end(signal.SIGKILL)

    def stop_bookie(self, index: int) -> None:
        """End it in an orderly way."""
        self._cluster.bookie_process(index).end()

    def start_bookie(self, index: int, overrides: Mapping[str, str] | None = None) -> None:
        """Start it with what it has on disk, and wait until it serves: 1.5 s. ZooKeeper runs.

        `overrides` are settings of bookie.conf for this process run. Nothing happens if it runs.
        """
        try:
            self._cluster.start_bookie(index, overrides)
        except LocalClusterError as error:
            raise ServerFailedError(str(error)) from error

    def start_bookie_read_only(self, index: int) -> None:
        """Start it as if its disk had been found full: it serves reads, and takes no entry."""
        self.start_bookie(index, _FULL)

    def pause_bookie(self, index: int) -> None:
        """It takes connections and bytes, and never answers.

        Longer than 20 s, and its session is lost.
        """
        _pause(self._cluster.bookie_process(index))

    def resume_bookie(self, index: int) -> None:
        """After `pause_bookie`."""
        self._cluster.bookie_process(index).send(signal.SIGCONT)

    def fill_bookie(self, index: int) -> None:
        """From now on every write of it to a file fails.

        What it does about that is its own affair: it ends itself soon after the next entry.
        """
        self._cluster.bookie_process(index).limit_file_size(0)

    def wipe_bookie(self, index: int, *, replaced: bool = False) -> None:
        """Kill it, and remove all entries it had, journal and index too.

        `start_bookie` brings it back empty.

        It does not know that it ever had any: the cookies by which a bookie knows its disks stay.
        With `replaced` they go as well, on disk and in ZooKeeper (which runs then): an operator
        gave the machine new disks and said so.
        """
        self.kill_bookie(index)
        for name in _DATA:
            folder = self.bookie_folder(index) / name
            cookie = folder / "current" / _COOKIE
            kept = cookie.read_bytes() if cookie.exists() else None
            shutil.rmtree(folder)
            if kept is not None and not replaced:
                cookie.parent.mkdir(parents=True)
                cookie.write_bytes(kept)
        if replaced:
            self._forget(index, cookie=True)

    def wait_for_bookie_end(self, index: int, seconds: float) -> bool:
        """Whether it has ended by itself within so many seconds."""
        return self._cluster.bookie_process(index).wait(seconds)

    def registered(self) -> list[str]:
        """Bookies that ZooKeeper lists as writable now, sorted, dead ones with a session left among
        them.
        """
        with Registrations(self._cluster.addresses.zookeeper) as registrations:
            return sorted(registrations.writable())

    def _forget(self, index: int, *, cookie: bool = False) -> None:
        try:
            with Registrations(self._cluster.addresses.zookeeper) as registrations:
                registrations.forget(self.bookie_id(index))
                if cookie:
                    registrations.forget_cookie(self.bookie_id(index))
        except CHECK_ERRORS as error:
            raise ServerFailedError(f"ZooKeeper does not answer: {error!r}") from error


def _pause(service: ServiceProcess) -> None:
    process = service.process_id
    if process is not None:
        pause_process(process)
