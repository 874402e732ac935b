"""Pravega 0.13.0 by Maven as its deployments run it: segment store, Controller, ZooKeeper and one
bookie whose journal is synced (1/1/1), Tier 2 a folder. A log is a segment.

The client is our codec of the wire protocol on a connection of asyncio's. The appends of a turn of
the loop go out as one append block of a segment, as Pravega's own client does it. Any number of
blocks is in flight. `server µs` has the store, the Controller and the bookie.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from bench.peers.peer import UNLIMITED, Peer, PeerLog
from bench.peers.servers import sizes_under
from bench.pravega_jars import java_command
from bench.wire_codec_client import wait_until_all_serve
from bench.wire_servers import PravegaServer, one_bookie, running
from bench.workspace import BenchError
from durablelog.bookkeeper.cluster.service_process import ServiceProcess
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.server import HOST, ServerFailedError
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    CreateSegment,
    DataAppended,
    DeleteSegment,
    GetStreamSegmentInfo,
    Hello,
    KeepAlive,
    ReadSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
)
from segmentstore.wire.formats import REPLIES
from segmentstore.wire.frame_decoder import FrameDecoder

_BLOCK_BYTES: Final = 1 << 20
_READ_BYTES: Final = 1 << 20
_SEGMENTS_MAX: Final = 1000
"""A creation takes milliseconds."""
_AT_ONCE: Final = 64
_FLUSHED_S: Final = 120.0
_CHECK_S: Final = 0.2
R = TypeVar("R")


class PravegaPeer:
    """All of its processes, from `start` to `stop`."""

    name = "pravega"
    segments_max = _SEGMENTS_MAX
    in_flight_max = UNLIMITED
    embedded = False

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._cluster: BookKeeperCluster | None = None
        self._server: PravegaServer | None = None
        self._folder = Path()

    def install(self) -> None:
        java_command("io.pravega.segmentstore.server.host.ServiceStarter")

    def start(self, folder: Path) -> None:
        self._folder = folder
        self._cluster = self._stack.enter_context(one_bookie(folder))
        self._server = PravegaServer(folder / "pravega", self._cluster)
        self._stack.enter_context(running(self._server))
        self._wait()

    def address(self, folder: Path) -> str:
        del folder
        assert self._server is not None, "it was not started"
        return f"{self._server.wire_port}:{self._server.tier2}"

    def processes(self) -> list[int]:
        assert self._server is not None, "it was not started"
        assert self._cluster is not None
        bookie = ServiceProcess("bookie 0", self._cluster.bookie_folder(0)).process_id
        found = [*self._server.processes(), self._server.process_id, bookie]
        return [process for process in found if process is not None]

    def kill(self) -> None:
        """Its store; the bookie, which has the log, goes on."""
        assert self._server is not None, "it was not started"
        self._server.kill()

    def restart(self, *, kill: bool = False) -> None:
        assert self._server is not None, "it was not started"
        try:
            self._server.restart(kill=kill)
        except ServerFailedError as error:
            raise BenchError(str(error)) from error
        self._wait()

    def data_files(self, folder: Path) -> list[Path]:
        del folder
        return list(sizes_under(self._folder))

    def stop(self) -> None:
        self._stack.close()

    def _wait(self) -> None:
        assert self._server is not None, "it was not started"
        asyncio.run(wait_until_all_serve(self._server.wire_port))


class AppendConnection(asyncio.Protocol):
    """A connection on which appends of many writers are in flight; a writer for each segment."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(REPLIES)
        self._loop = asyncio.get_running_loop()
        self._ids = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._appended: dict[bytes, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._out: dict[bytes, list[bytes]] = {}
        self._numbers: dict[bytes, int] = {}
        self._scheduled = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(encode(Hello(16, 5)))

    def data_received(self, data: bytes) -> None:
        for reply in self._decoder.feed(data):
            if isinstance(reply, DataAppended):
                self._acknowledge(reply.writer_id, reply.event_number)
            elif not isinstance(reply, (Hello, KeepAlive)):
                self._answer(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        waiting = [future for each in self._appended.values() for _, future in each]
        for future in [*waiting, *self._asked.values()]:
            if not future.done():
                future.set_exception(BenchError(f"Pravega has closed the connection ({exc})"))

    async def ask(self, command: Any, reply: type[R]) -> R:
        """Send a command with a request id of `next_id` and wait. Raises BenchError for another
        reply.
        """
        assert self._transport is not None
        future = self._asked[command.request_id] = self._loop.create_future()
        self._transport.write(encode(command))
        found = await future
        if not isinstance(found, reply):
            raise BenchError(f"{type(command).__name__} was answered by {found}")
        return found

    def next_id(self) -> int:
        """A request id."""
        return next(self._ids)

    async def set_up(self, segment: str, writer: bytes) -> None:
        """Begin appends of a writer to a segment."""
        setup = SetupAppend(self.next_id(), writer, segment, "")
        last = (await self.ask(setup, AppendSetup)).last_event_number
        self._numbers[writer] = max(0, last)
        self._appended[writer], self._out[writer] = deque(), []

    def append(self, writer: bytes, data: bytes) -> asyncio.Future[None]:
        """Enqueue; it goes out at the end of the turn of the loop."""
        future: asyncio.Future[None] = self._loop.create_future()
        number = self._numbers[writer] = self._numbers[writer] + 1
        self._appended[writer].append((number, future))
        self._out[writer].append(data)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._write)
        return future

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def _write(self) -> None:
        assert self._transport is not None
        self._scheduled = False
        for writer, waiting in self._out.items():
            if not waiting:
                continue
            last, start = self._numbers[writer] - len(waiting), 0
            while start < len(waiting):
                end, length = start, 0
                while end < len(waiting) and (end == start or length < _BLOCK_BYTES):
                    length += len(waiting[end])
                    end += 1
                last += end - start
                data = b"".join(waiting[start:end])
                block = AppendBlockEnd(writer, 0, data, end - start, last, self.next_id())
                self._transport.write(encode(block))
                start = end
            waiting.clear()

    def _acknowledge(self, writer: bytes, number: int) -> None:
        waiting = self._appended[writer]
        while waiting and waiting[0][0] <= number:
            future = waiting.popleft()[1]
            if not future.done():
                future.set_result(None)

    def _answer(self, reply: object) -> None:
        future = self._asked.pop(getattr(reply, "request_id", 0), None)
        if future is not None and not future.done():
            future.set_result(reply)


class PravegaLog:
    """Segments of a server."""

    def __init__(self, connection: AppendConnection, tier2: Path, names: Sequence[str]) -> None:
        self._connection = connection
        self._tier2 = tier2
        self._names = names
        self._writers = [number.to_bytes(16, "big") for number in range(1, len(names) + 1)]
        self._appended_bytes = 0
        self._stored_before = _stored_bytes(tier2)

    async def open(self, *, create: bool) -> None:
        """Create the segments, if asked to, and begin appends."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str, writer: bytes) -> None:
            connection = self._connection
            async with places:
                if create:
                    creation = CreateSegment(connection.next_id(), name, 0, 0, "")
                    await connection.ask(creation, SegmentCreated)
                await connection.set_up(name, writer)

        await asyncio.gather(*map(one, self._names, self._writers))

    def append(self, segment: int, data: bytes) -> Awaitable[object]:
        self._appended_bytes += len(data)
        return self._connection.append(self._writers[segment], data)

    def append_batch(self, segment: int, records: Sequence[bytes]) -> Awaitable[object]:
        # They are acknowledged in their order.
        return [self.append(segment, record) for record in records][-1]

    async def read(self, segment: int, *, follow: bool = False) -> AsyncIterator[bytes]:
        name, connection = self._names[segment], self._connection
        question = GetStreamSegmentInfo(connection.next_id(), name, "")
        end = (await connection.ask(question, StreamSegmentInfo)).length

        def ask(offset: int) -> Awaitable[SegmentRead]:
            reading = ReadSegment(name, offset, _READ_BYTES, "", connection.next_id())
            return asyncio.ensure_future(connection.ask(reading, SegmentRead))

        offset = 0
        asked = ask(offset) if follow or end else None
        while asked is not None:
            data = bytes((await asked).data)
            offset += len(data)
            # The next part is on its way while this one is used.
            asked = ask(offset) if follow or offset < end else None
            if data:
                yield data

    async def flush(self) -> None:
        # Pravega announces no flush: its files are all that can be seen from here.
        async with asyncio.timeout(_FLUSHED_S):
            wanted = self._stored_before + self._appended_bytes
            while _stored_bytes(self._tier2) < wanted:  # noqa: ASYNC110 - another process
                await asyncio.sleep(_CHECK_S)

    async def delete(self) -> None:
        for name in self._names:
            deletion = DeleteSegment(self._connection.next_id(), name, "")
            await self._connection.ask(deletion, SegmentDeleted)

    async def close(self) -> None:
        self._connection.close()


def _stored_bytes(tier2: Path) -> int:
    return sum(sizes_under(tier2).values())


def create() -> Peer:
    """Pravega as a peer."""
    return PravegaPeer()


async def open_log(address: str, base: str, segments: int, *, create: bool) -> PeerLog:
    """Segments of the store at a port, whose Tier 2 is behind it in the address."""
    port, _, tier2 = address.partition(":")
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(AppendConnection, HOST, int(port))
    names = [f"bench/{base}-{number}/0.#epoch.0" for number in range(segments)]
    log = PravegaLog(connection, Path(tier2), names)
    await log.open(create=create)
    return log
