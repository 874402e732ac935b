"""HostGateway: the one gateway to BookKeeper of all hosts that a supervisor has started (loop).

Rules of this file:

- its address and its secret last as long as the supervisor: hosts that lost a gateway find the next
  one where it was;
- a connection as a store's own reports how it is. Its end is the gateway's end, and one that is
  silent for too long hangs: it is killed. Another one is started then, after an ever longer pause;
- it decides nothing about ledgers. A session there is one host's, and ends with the host's
  connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from durablelog.bookkeeper.gateway.add_connection import AddConnection
from durablelog.bookkeeper.gateway.gateway_process import HOST, GatewayProcess
from durablelog.bookkeeper.gateway.gateway_settings import ADDRESS_VARIABLE, TOKEN_VARIABLE
from durablelog.bookkeeper.gateway.handshake import handshake
from durablelog.bookkeeper.ledger_store import LedgerError
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import ConfigError, TierUnavailableError
from segmentstore.contracts.runtime import Runtime

_AGAIN_S_MIN: Final = 0.2
_AGAIN_S_MAX: Final = 15.0
_STEADY_S: Final = 60.0
"""After so long the next end is the first of a row."""


class HostGateway:
    """Begun by `start`; kept by `keep` until `end`."""

    def __init__(
        self, port: int, hosts: int, say: Callable[[str], object], runtime: Runtime
    ) -> None:
        """`port` is one of 127.0.0.1 that is free, `say` is given what happens, for people."""
        self._port = port
        self._hosts = hosts
        self._say = say
        self._token = f"{runtime.random.getrandbits(256):064x}"
        self._backoff = Backoff(runtime.random, min_s=_AGAIN_S_MIN, max_s=_AGAIN_S_MAX)
        self._executor = runtime.executor("host-gateway", 1)
        self._changed = asyncio.Event()
        self._ending = asyncio.Event()
        self._process: GatewayProcess | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a host needs to attach to it."""
        return {ADDRESS_VARIABLE: f"{HOST}:{self._port}", TOKEN_VARIABLE: self._token}

    @property
    def process_id(self) -> int | None:
        """Of the Java process; None between two."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the first one. Raises ConfigError (what is missing), TierUnavailableError."""
        try:
            await self._start()
        except (LedgerError, OSError) as error:
            raise TierUnavailableError("tier1", str(error)) from error

    async def keep(self) -> None:
        """Start another one whenever one has ended; return behind `end`, when none is left."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            while (reason := await self._until_lost()) is not None:
                await self._stop()
                if loop.time() - began >= _STEADY_S:
                    self._backoff.reset()
                self._say(f"the gateway to BookKeeper has ended ({reason}): starting another")
                began = await self._start_again()
        finally:
            await self._stop()
            self._executor.shutdown(wait=False)

    def end(self) -> None:
        """No host needs it any more. Idempotent."""
        self._ending.set()
        self._changed.set()

    async def _until_lost(self) -> str | None:
        """Why it is of no use any more; None when it is to end."""
        if self._process is None:
            return None
        self._changed.clear()
        if self._ending.is_set():
            return None
        try:
            connected, _ = await handshake(self._process.data_socket, self._token)
        except LedgerError as error:
            return str(error)
        connection = AddConnection(connected, lambda _: self._changed.set())
        await self._changed.wait()
        reason = connection.lost
        connection.close("it is not needed any more")
        if connection.hangs:
            self._process.kill()
        return None if self._ending.is_set() else reason

    async def _start_again(self) -> float:
        """Until one runs, or `end`; since when."""
        loop = asyncio.get_running_loop()
        while not self._ending.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._backoff.next_s()):
                    await self._ending.wait()
                    break
            try:
                await self._start()
                break
            except (LedgerError, ConfigError, OSError) as error:
                self._say(f"the gateway to BookKeeper does not start: {error}")
        return loop.time()

    async def _start(self) -> None:
        def started() -> GatewayProcess:
            return GatewayProcess(self._token, self._port, stores=self._hosts, apart=True)

        self._process = await asyncio.get_running_loop().run_in_executor(self._executor, started)

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # Seconds, of one that hangs.
            await asyncio.get_running_loop().run_in_executor(self._executor, process.stop)
