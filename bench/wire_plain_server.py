"""The least that a server of waiting reads can be, in asyncio: the skeleton of `wire_connections`.

It decodes requests, holds each read until the next append of anything, and answers. No segments, no
store, no bounds, nothing durable.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import ClassVar, Final

from bench.wire_servers import cpu_seconds, resident_bytes
from recovery.harness.services.server import HOST, Server, python_module
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    Command,
    CreateSegment,
    DataAppended,
    Hello,
    KeepAlive,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
)
from segmentstore.wire.formats import REQUESTS
from segmentstore.wire.frame_decoder import FrameDecoder

_BACKLOG: Final = 1024


class PlainServer(Server):
    """The process."""

    name: ClassVar[str] = "the plain server"

    @property
    def wire_port(self) -> int:
        """Where it listens."""
        return self.port

    def resident_bytes(self) -> int:
        """Resident set now; 0 if it does not run."""
        return 0 if self._process is None else resident_bytes(self._process.pid)

    def cpu_seconds(self) -> float:
        """What it has used, user and system; 0 if it does not run."""
        return 0.0 if self._process is None else cpu_seconds(self._process.pid)

    def _command(self, port: int) -> Sequence[str]:
        return python_module(__name__, str(port))


class PlainConnection(asyncio.Protocol):
    """A client of the plain server; `waiting` has all reads that wait, of whatever connection."""

    def __init__(self, waiting: list[tuple[asyncio.WriteTransport, ReadSegment]]) -> None:
        self._waiting = waiting
        self._decoder = FrameDecoder(REQUESTS)
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what replies are written to."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each request."""
        assert self._transport is not None
        for command in self._decoder.feed(data):
            if isinstance(command, ReadSegment):
                self._waiting.append((self._transport, command))
            elif (reply := self._reply(command)) is not None:
                self._transport.write(encode(reply))

    def _reply(self, command: Command) -> Command | None:
        match command:
            case Hello() | KeepAlive():
                return command
            case CreateSegment(request_id=request, segment=segment):
                return SegmentCreated(request, segment)
            case SetupAppend(request_id=request, segment=segment, writer_id=writer):
                return AppendSetup(request, segment, writer, 0)
            case AppendBlockEnd(writer_id=writer, last_event_number=number, data=data):
                waiting = self._waiting.copy()
                self._waiting.clear()
                for transport, read in waiting:
                    answer = SegmentRead(
                        segment=read.segment,
                        offset=read.offset,
                        at_tail=True,
                        end_of_segment=False,
                        data=data,
                        request_id=read.request_id,
                    )
                    transport.write(encode(answer))
                return DataAppended(writer, number)
            case _:
                return None


async def serve(port: int) -> None:
    """Until it is killed."""
    waiting = list[tuple[asyncio.WriteTransport, ReadSegment]]()
    server = await asyncio.get_running_loop().create_server(
        lambda: PlainConnection(waiting), HOST, port, backlog=_BACKLOG
    )
    await server.serve_forever()


if __name__ == "__main__":
    # The process is of this very module.
    asyncio.run(serve(int(sys.argv[1])))
