"""Redis 7 of Debian's package, with `appendfsync always`: what a turn of its loop has written is
synced before the replies go out. A log is a stream (XADD, XRANGE, XREAD).

The client is hiredis, the parser and packer in C of redis-py, on a connection of asyncio's. All
appends of a turn of the loop go out in one write, and any number of them is in flight. Redis keeps
everything in memory and reads it from there.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from bench.peers.libraries import library
from bench.peers.peer import Peer, PeerLog
from bench.peers.servers import ServerPeer
from bench.workspace import BenchError
from durablelog.bookkeeper.installation import GatewayMissingError
from durablelog.bookkeeper.installation.programs import run
from recovery.harness.services.pravega_jars import kept_folder
from recovery.harness.services.server import HOST, Server

_PACKAGES: Final = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
_FETCH_S: Final = 300.0
_ANSWER_S: Final = 1.0
_READ_COUNT: Final = 1000
_BLOCK_MS: Final = 1000
_SEGMENTS_MAX: Final = 100_000


class RedisServer(Server):
    """One process; nothing is left to its defaults that would cost it durability or speed."""

    name: ClassVar[str] = "Redis"

    def _command(self, port: int) -> Sequence[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": port,
            "dir": self.folder,
            "appendonly": "yes",
            "appendfsync": "always",
            # No snapshot and no rewrite takes the disk beside a measurement.
            "save": "",
            "auto-aof-rewrite-percentage": 0,
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        return [str(_installed() / "usr/bin/redis-server"), *options]

    def _answers(self, port: int) -> bool:
        # It listens while it loads its file, and refuses all commands then.
        try:
            with socket.create_connection((HOST, port), _ANSWER_S) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def _environment(self) -> Mapping[str, str]:
        libraries = (_installed() / "usr/lib").glob("*-linux-gnu*")
        return {"LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))}


class RedisConnection(asyncio.Protocol):
    """Commands whose replies come in their order."""

    def __init__(self) -> None:
        import hiredis  # noqa: PLC0415 - of this peer alone

        self._pack = hiredis.pack_command
        self._reader = hiredis.Reader()
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            future = self._waiting.popleft()
            if future.done():
                continue
            if isinstance(reply, Exception):
                future.set_exception(BenchError(f"Redis: {reply}"))
            else:
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_exception(BenchError(f"Redis has closed the connection ({exc})"))
        self._waiting.clear()

    def send(self, *command: str | bytes | int) -> asyncio.Future[Any]:
        """The reply to come; all commands of a turn of the loop go out together."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(future)
        if not self._out:
            self._loop.call_soon(self._write)
        self._out.append(self._pack(cast("Any", command)))
        return future

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def _write(self) -> None:
        assert self._transport is not None
        self._transport.write(b"".join(self._out))
        self._out.clear()


class RedisLog:
    """Streams of a server. Readers that follow have a connection of their own."""

    def __init__(self, host: str, port: int, keys: list[str]) -> None:
        self._host, self._port = host, port
        self._keys = keys
        self._connections: list[RedisConnection] = []

    async def connect(self) -> RedisConnection:
        """Another connection, closed with the rest."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(RedisConnection, self._host, self._port)
        self._connections.append(connection)
        return connection

    def append(self, segment: int, data: bytes) -> Awaitable[object]:
        return self._connections[0].send("XADD", self._keys[segment], "*", "d", data)

    def append_batch(self, segment: int, records: Sequence[bytes]) -> Awaitable[object]:
        # Replies come in order: with the last one, all are durable.
        return [self.append(segment, record) for record in records][-1]

    async def read(self, segment: int, *, follow: bool = False) -> AsyncIterator[bytes]:
        connection, key = await self.connect(), self._keys[segment]
        last = b"0-0"
        while True:
            if follow:
                options = ("COUNT", _READ_COUNT, "BLOCK", _BLOCK_MS)
                reply = await connection.send("XREAD", *options, "STREAMS", key, last)
                entries = reply[0][1] if reply else []
            else:
                first = b"(" + last
                entries = await connection.send("XRANGE", key, first, "+", "COUNT", _READ_COUNT)
                if not entries:
                    return
            if entries:
                last = entries[-1][0]
                yield b"".join([fields[1] for _, fields in entries])

    async def flush(self) -> None:
        """There is memory alone."""

    async def delete(self) -> None:
        await asyncio.gather(*(self._connections[0].send("DEL", key) for key in self._keys))

    async def close(self) -> None:
        for connection in self._connections:
            connection.close()


def create() -> Peer:
    """Redis as a peer."""
    return ServerPeer("redis", install=_install, launch=RedisServer, segments_max=_SEGMENTS_MAX)


async def open_log(address: str, base: str, segments: int, *, create: bool) -> PeerLog:
    """Streams, which the first append creates."""
    del create
    host, _, port = address.partition(":")
    log = RedisLog(host, int(port), [f"{base}-{number}" for number in range(segments)])
    await log.connect()
    return log


def _install() -> None:
    library("hiredis")
    _installed()


def _installed() -> Path:
    """The folder of the unpacked packages, which are not installed on the system.

    Raises BenchError, which names what to install.
    """
    return kept_folder("redis-debian", _unpack)


def _unpack(folder: Path) -> None:
    tools = [shutil.which(name) for name in ("apt-get", "dpkg-deb")]
    advice = "redis-server is needed and comes by Debian's packages (apt-get download)"
    if not all(tools):
        raise BenchError(f"{advice}, but apt-get or dpkg-deb is not here")
    with tempfile.TemporaryDirectory() as fetched:
        try:
            fetch = f"apt-get download -qq {' '.join(_PACKAGES)}"
            # A list of packages that is not there or old is fetched, where that is allowed.
            script = f"cd {fetched} && {{ {fetch} || {{ apt-get update -qq && {fetch}; }}; }}"
            run(["/bin/sh", "-c", script], "fetching Redis", seconds=_FETCH_S)
            for package in sorted(Path(fetched).glob("*.deb")):
                command = ["dpkg-deb", "-x", str(package), str(folder)]
                run(command, "unpacking Redis", seconds=_FETCH_S)
        except GatewayMissingError as error:
            raise BenchError(f"{advice}: {error.reason}") from error
