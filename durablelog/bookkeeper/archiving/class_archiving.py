"""Class archives for all Java programs, made by running each of them once: a cluster of one bookie,
a gateway, a store's calls.

Rules of this file:

- archives only make starts faster: whatever goes wrong here is one line for people, and no error;
- only whole ones are taken. A program leaves its archive while it ends, which takes seconds: it is
  waited for, and one that had to be killed spoils them all;
- one process at a time makes them, the others wait and find them made; what a killed one left is
  removed by the next.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from durablelog.bookkeeper.cluster.local_cluster import LocalCluster
from durablelog.bookkeeper.gateway.gateway_process import HOST, GatewayProcess
from durablelog.bookkeeper.gateway.gateway_settings import TOKEN_VARIABLE
from durablelog.bookkeeper.installation import (
    gateway_classpath,
    installation_folder,
    programs_without_archive,
)
from durablelog.bookkeeper.installation.class_archives import (
    JavaProgram,
    NoArchivesError,
    keep_archives,
    recording_options,
)
from durablelog.bookkeeper.installation.jars import alone
from durablelog.bookkeeper.installation.programs import run
from durablelog.bookkeeper.ledger_store import LedgerError
from segmentstore.contracts.errors import ConfigError, SegmentStoreError
from segmentstore.contracts.runtime import Runtime

LOCK: Final = "archiving.lock"
"""Not that of the installation: a store that is opened meanwhile may have to compile the
gateway.
"""
RECORDING: Final = "recording-"

_END_S: Final = 60.0
_CALLS_S: Final = 120.0
_REASON_MAX: Final = 300


def make_class_archives(
    say: Callable[[str], None], record: Callable[[Path, Path], None] | None = None
) -> None:
    """Make sure of archives that this machine's Java takes: 0.5 s if they are there, else some 12
    s. Jars are installed.

    `say` gets what is done, and of a failure, which is no error. `record(folder, scratch)` leaves
    the archives in `folder`.
    """
    try:
        gateway_classpath(say)
        if programs_without_archive() or _left(installation_folder()):
            with alone(installation_folder(), LOCK) as folder:
                for left in _left(folder):
                    _clear(left)
                if programs_without_archive():
                    say("making class archives for Java (about 12 s the first time)")
                    _make(folder, record or record_with_a_cluster)
    except ConfigError as error:
        say(_failure(error.reason))
    except (SegmentStoreError, LedgerError, OSError, subprocess.SubprocessError) as error:
        say(_failure(str(error)))


def record_with_a_cluster(folder: Path, scratch: Path) -> None:
    """Run every program with a store's calls, and end it in its own way, so that it leaves its
    archive in `folder`.

    Raises NoArchivesError, LocalClusterError, LedgerError, ConfigError, OSError, SubprocessError.
    """
    archives = partial(recording_options, folder=folder)
    cluster = LocalCluster(
        scratch / "cluster", 1, watched=True, short_lived=True, archives=archives
    )
    try:
        cluster.start()
        zookeeper, bookie = cluster.processes()
        token = f"{Runtime().random.getrandbits(256):064x}"
        gateway = GatewayProcess(token, archive=archives(JavaProgram.GATEWAY), timeout_s=_END_S)
        try:
            calls = [sys.executable, "-m", "durablelog.bookkeeper.archiving", cluster.metadata_uri]
            attached = {TOKEN_VARIABLE: token}
            run(
                [*calls, f"{HOST}:{gateway.port}"],
                "using a ledger",
                seconds=_CALLS_S,
                environment=attached,
            )
            bookie.send(
                signal.SIGTERM
            )  # at the same time as the gateway: both are busy for seconds
        finally:
            gateway.stop()
        if gateway.wait():
            raise NoArchivesError(f"the gateway ended with code {gateway.wait()}")
        for service in (bookie, zookeeper):
            service.send(signal.SIGTERM)
            if not service.wait(_END_S):
                raise NoArchivesError(f"{service.name} did not end within {_END_S:.0f} s")
    finally:
        cluster.stop(signal.SIGKILL)


def _left(folder: Path) -> list[Path]:
    """The folders in which programs record just now. For a process that is alone: the folders that
    killed programs left.
    """
    return sorted(folder.glob(f"{RECORDING}*"))


def _clear(left: Path) -> None:
    # Its watchdog may come too late: it finds the processes by what is in the folder.
    with contextlib.suppress(ConfigError, SegmentStoreError):
        LocalCluster(left / "cluster").stop(signal.SIGKILL)
    shutil.rmtree(left, ignore_errors=True)


def _make(folder: Path, record: Callable[[Path, Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix=RECORDING, dir=folder) as made:
        recorded = Path(made) / "archives"
        recorded.mkdir()
        record(recorded, Path(made))
        keep_archives(recorded)


def _failure(reason: str) -> str:
    short = " ".join(reason.split())[:_REASON_MAX]
    return f"no class archives for Java could be made, it starts more slowly without: {short}"
