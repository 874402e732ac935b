"""LinkedHost: a process of `segmentstore serve --host`, whose every link passes through proxies.

ZooKeeper has another address for each host. Bookies have the name `localhost` in the cluster's
metadata. The Java of a host's gateway finds that name at an address of its own, where a proxy
is for each bookie.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from recovery.harness.services.link_proxy import LinkProxy
from recovery.harness.services.pausing import pause_process
from recovery.harness.services.server import HOST, Server, free_port, python_module

BOOKIE_NAME: Final = "localhost"
BOOKIE_EXTRAS: Final[Mapping[str, str]] = {"listeningInterface": "lo"}
"""Of bookies: each listens at 127.0.0.1 alone, so its port is free at other loopback addresses."""
_DRAIN_S: Final = 60.0
_KILL_S: Final = 10.0


class HostLinks:
    """The links of one host. An async context manager."""

    def __init__(self, number: int, zookeeper_port: int, bookie_ports: Sequence[int]) -> None:
        self.address = f"127.0.1.{number + 1}"
        """Where its gateway finds the bookies."""
        self.wire_port = free_port()
        self.controller_port = free_port()
        self.zookeeper = LinkProxy(zookeeper_port)
        self.clients = LinkProxy(self.wire_port)
        self.controller_clients = LinkProxy(self.controller_port)
        self.bookies = [LinkProxy(port, host=self.address, port=port) for port in bookie_ports]
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for link in (self.zookeeper, self.clients, self.controller_clients, *self.bookies):
            await self._running.enter_async_context(link)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._running.aclose()


class LinkedHost(Server):
    """A host. A killed one comes back at the same address, and under the same name."""

    name: ClassVar[str] = "the host"

    def __init__(
        self, folder: Path, host_id: str, links: HostLinks, environment: Mapping[str, str]
    ) -> None:
        super().__init__(folder)
        self.host_id = host_id
        self.links = links
        self.port = links.wire_port
        self._settings = environment

    def kill_alone(self) -> None:
        """End its process as a crash would; its gateway is left to notice."""
        if self._process is not None:
            self._process.kill()
            self.wait_for_end(_KILL_S)

    def pause(self, *, whole: bool) -> None:
        """It neither answers nor ends; `whole`: nor does its gateway."""
        if self._process is None:
            return
        for process in (self._process.pid, *(self.descendants() if whole else ())):
            with suppress(ProcessLookupError):
                pause_process(process)

    def resume(self) -> None:
        """After `pause`."""
        if self._process is None:
            return
        for process in (*self.descendants(), self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def drain(self) -> int:
        """SIGTERM to the process alone, which needs its gateway to the end; its exit code, that of
        SIGKILL if it did not end in time.
        """
        process = self._process
        assert process is not None
        process.terminate()
        self.wait_for_end(_DRAIN_S)
        self.kill()
        return process.wait()

    def _command(self, port: int) -> Sequence[str]:
        ports = ("--wire", f"{HOST}:{port}", "--controller", f"{HOST}:{self.links.controller_port}")
        options = ("--create", "--host", self.host_id, *ports)
        return python_module("segmentstore", "serve", str(self.folder / "store"), *options)

    def _environment(self) -> Mapping[str, str]:
        names = self.folder / "hosts"
        names.write_text(
            f"{self.links.address} {BOOKIE_NAME}\n{HOST} {socket.gethostname()}\n", encoding="utf-8"
        )
        java = f"-XX:TieredStopAtLevel=1 -Djdk.net.hosts.file={names}"
        return {**self._settings, "JDK_JAVA_OPTIONS": java}
