"""Spark for tests, as real processes: a standalone cluster (a master and workers), and a Spark
Connect server.

What they run is the installed pyspark; the wheel has no scripts for a master and its workers, but
their classes. Rules of this file:

- everything listens on this machine's loopback, on ports that were free, and ends with the process
  that started it (see `server`);
- workers have different host names: Spark never speculates on the host that runs the task already;
- a client speaks to them in a process of its own (`driver_environment`): a Python process has one
  session until it ends.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from recovery.harness.services.installing import UNVERIFIED, ServiceMissingError, java
from recovery.harness.services.server import HOST, Server, free_port

HOST_NAMES: Final = (HOST, "localhost")
"""Two names of one machine: two hosts to Spark."""
WORKER_MEMORY_MIB: Final = 600
EXECUTOR_MEMORY_MIB: Final = 512

_DAEMON_MEMORY: Final = "256m"
_CONNECT_MEMORY: Final = "1g"
SHORT_LIVED: Final = " ".join(("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *UNVERIFIED))
"""They live for seconds: the second compiler would cost more than it brings."""
_EXECUTOR_CLASS: Final = "CoarseGrainedExecutorBackend"


def spark_home() -> Path:
    """The folder of the installed pyspark, which is a whole Spark. Raises ServiceMissingError."""
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise ServiceMissingError(
            "pyspark is not installed: it is in the extra `spark` (pip install "
            "'segmentstore[spark]')"
        )
    return Path(found.submodule_search_locations[0])


def driver_environment(
    master: str, settings: Mapping[str, str] | None = None, *, python: str = sys.executable
) -> dict[str, str]:
    """The environment of a process that speaks to `master` (`sc://` for Connect), with settings of
    its session.

    `python` is the interpreter of the executors.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_"))
    }
    environment |= {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": HOST}
    if master.startswith("sc://"):
        return environment | {"SPARK_REMOTE": master}
    chosen = {
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.executor.memory": f"{EXECUTOR_MEMORY_MIB}m",
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        **(settings or {}),
    }
    options = [part for name, value in chosen.items() for part in ("--conf", f"{name}={value}")]
    return environment | {
        "PYSPARK_SUBMIT_ARGS": shlex.join(["--master", master, *options, "pyspark-shell"])
    }


class _SparkServer(Server):
    """A JVM of Spark's in the foreground."""

    def _environment(self) -> Mapping[str, str]:
        local = self.folder / "local"
        local.mkdir(exist_ok=True)
        return {
            "SPARK_HOME": str(spark_home()),
            "SPARK_CONF_DIR": str(self.folder),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(local),
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
            "SPARK_CONNECT_MODE": "0",
            "PYSPARK_PYTHON": sys.executable,
        }

    @staticmethod
    def _spark_class(name: str, *arguments: str) -> list[str]:
        java()
        return [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.{name}", *arguments]


class SparkMaster(_SparkServer):
    """The master of a standalone cluster."""

    name: ClassVar[str] = "Spark's master"

    @property
    def url(self) -> str:
        """What `--master` takes."""
        return f"spark://{HOST}:{self.port}"

    def _command(self, port: int) -> Sequence[str]:
        return self._spark_class(
            "deploy.master.Master",
            "--host",
            HOST,
            "--port",
            str(port),
            "--webui-port",
            str(free_port()),
        )


class SparkWorker(_SparkServer):
    """A worker: one core, known to Spark as the machine `host`."""

    name: ClassVar[str] = "a Spark worker"

    def __init__(self, folder: Path, master: SparkMaster, host: str) -> None:
        super().__init__(folder)
        self._master = master
        self.host = host

    def executors(self) -> list[int]:
        """The processes that run tasks for it now."""
        return [
            process for process in self.descendants() if _EXECUTOR_CLASS in _command_line(process)
        ]

    def kill_executors(self) -> int:
        """End them as a crash would, and their tasks; how many there were.

        The worker starts others.
        """
        found = self.executors()
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it was faster
        return len(found)

    def _command(self, port: int) -> Sequence[str]:
        return self._spark_class(
            "deploy.worker.Worker",
            *("--host", self.host, "--port", str(port), "--webui-port", str(free_port())),
            *(
                "-c",
                "1",
                "-m",
                f"{WORKER_MEMORY_MIB}m",
                "-d",
                str(self.folder / "work"),
                self._master.url,
            ),
        )


class SparkConnectServer(_SparkServer):
    """A Spark Connect server that is its own master.

    `python` is the interpreter of its executors.
    """

    name: ClassVar[str] = "the Spark Connect server"

    def __init__(self, folder: Path, *, python: str = sys.executable) -> None:
        super().__init__(folder)
        self._python = python

    @property
    def url(self) -> str:
        """What SPARK_REMOTE takes."""
        return f"sc://{HOST}:{self.port}"

    def _environment(self) -> Mapping[str, str]:
        # To Spark it is a daemon, and has its memory from there, whatever the driver is said to
        # have.
        return {
            **super()._environment(),
            "PYSPARK_PYTHON": self._python,
            "SPARK_DAEMON_MEMORY": _CONNECT_MEMORY,
        }

    def _command(self, port: int) -> Sequence[str]:
        java()
        settings = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.ui.enabled": "false",
            "spark.log.level": "WARN",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.sql.shuffle.partitions": "4",
            # By default two seconds: what is quicker reports nothing of its tasks.
            "spark.connect.progress.reportInterval": "100ms",
        }
        return [
            str(spark_home() / "bin" / "spark-submit"),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--name", "Spark Connect server", "--master", "local[2,4]"),
            *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
            "spark-internal",
        ]


class SparkCluster:
    """A standalone cluster in a folder: a context manager that starts and stops it.

    Ready in 10 to 60 s.

    Raises ServerFailedError if it does not come up, and ServiceMissingError if Java or pyspark is
    not there.
    """

    def __init__(self, folder: Path, hosts: Sequence[str] = HOST_NAMES) -> None:
        self.master = SparkMaster(folder / "master")
        self.workers = [
            SparkWorker(folder / f"worker-{index}", self.master, host)
            for index, host in enumerate(hosts)
        ]
        """One for each host name."""
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for server in (self.master, *self.workers):
                starting.enter_context(server)
            self._running = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._running.close()

    @property
    def url(self) -> str:
        """What `--master` takes."""
        return self.master.url

    def output(self) -> str:
        """The end of what every process wrote."""
        return "\n\n".join(
            f"{server.name}:\n{server.output()}" for server in (self.master, *self.workers)
        )


def _command_line(process: int) -> str:
    try:
        return (
            Path(f"/proc/{process}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
        )
    except OSError:
        return ""  # it has ended
