"""NATS JetStream, built by Go from its module, with `sync_interval: always`: each message is synced
before its acknowledgement, one after the other. A log is a subject of a stream in files.

The client is nats-py, the project's own. Up to 1,000 publishes are in flight: more would wait for
seconds. The acknowledgements come to one inbox.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from bench.peers.libraries import library
from bench.peers.peer import Peer, PeerLog
from bench.peers.servers import ServerPeer
from bench.workspace import BenchError
from durablelog.bookkeeper.installation import GatewayMissingError
from durablelog.bookkeeper.installation.programs import run
from recovery.harness.services.pravega_jars import kept_folder
from recovery.harness.services.server import Server

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

VERSION: Final = "v2.15.3"
MODULE: Final = "github.com/nats-io/nats-server/v2"
_BUILD_S: Final = 900.0
_SEGMENTS_MAX: Final = 100_000
_IN_FLIGHT_MAX: Final = 1000
_REQUEST_S: Final = 60.0
_BUFFER_BYTES: Final = 64 << 20


class NatsServer(Server):
    """One process."""

    name: ClassVar[str] = "NATS"

    def _command(self, port: int) -> Sequence[str]:
        settings = self.folder / "nats.conf"
        settings.write_text(
            f"listen: 127.0.0.1:{port}\n"
            "max_payload: 8MB\n"
            "write_deadline: 60s\n"
            f'jetstream {{ store_dir: "{self.folder}", sync_interval: always }}\n'
        )
        return [str(_installed()), "-c", str(settings)]


class NatsLog:
    """Subjects of one stream."""

    def __init__(self, client: Client, base: str, segments: int) -> None:
        self._client = client
        self._base = base
        self._subjects = [f"{base}.{number}" for number in range(segments)]
        self._loop = asyncio.get_running_loop()
        self._inbox = client.new_inbox()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._sent = 0
        self._out: list[tuple[str, bytes, str]] = []
        self._sending: asyncio.Task[None] | None = None

    async def open(self, *, create: bool) -> None:
        """Once, before all else; creates the stream if asked to."""
        await self._client.subscribe(f"{self._inbox}.*", cb=self._acknowledged)
        if create:
            await self._client.jetstream(timeout=_REQUEST_S).add_stream(
                name=self._base, subjects=[f"{self._base}.>"]
            )

    def append(self, segment: int, data: bytes) -> Awaitable[object]:
        self._sent += 1
        future = self._waiting[self._sent] = self._loop.create_future()
        self._out.append((self._subjects[segment], data, f"{self._inbox}.{self._sent}"))
        if self._sending is None:
            self._sending = self._loop.create_task(self._send())
        return future

    def append_batch(self, segment: int, records: Sequence[bytes]) -> Awaitable[object]:
        return asyncio.gather(*(self.append(segment, record) for record in records))

    async def read(self, segment: int, *, follow: bool = False) -> AsyncIterator[bytes]:
        subject, stream = self._subjects[segment], self._client.jetstream(timeout=_REQUEST_S)
        info = await stream.stream_info(self._base, subjects_filter=subject)
        left = (info.state.subjects or {}).get(subject, 0)
        # Ordered: without an acknowledgement of each message, which a reader does not need.
        subscribed = await stream.subscribe(
            subject, ordered_consumer=True, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        while follow or left:
            message = await subscribed.next_msg(timeout=None)
            left -= 1
            yield message.data

    async def flush(self) -> None:
        """There is one place alone."""

    async def delete(self) -> None:
        await self._client.jetstream(timeout=_REQUEST_S).delete_stream(self._base)

    async def close(self) -> None:
        await self._client.close()

    async def _send(self) -> None:
        while self._out:
            out, self._out = self._out, []
            for subject, data, reply in out:
                await self._client.publish(subject, data, reply=reply)
        self._sending = None

    async def _acknowledged(self, message: Msg) -> None:
        future = self._waiting.pop(int(message.subject.rpartition(".")[2]), None)
        if future is None or future.done():
            return
        if b'"error"' in message.data or not message.data:
            future.set_exception(BenchError(f"NATS: {message.data.decode() or message.headers}"))
        else:
            future.set_result(None)


def create() -> Peer:
    """NATS JetStream as a peer."""
    return ServerPeer(
        "nats",
        install=_install,
        launch=NatsServer,
        segments_max=_SEGMENTS_MAX,
        in_flight_max=_IN_FLIGHT_MAX,
    )


async def open_log(address: str, base: str, segments: int, *, create: bool) -> PeerLog:
    """A stream with a subject for each segment."""
    import nats  # noqa: PLC0415 - of this peer alone

    client = await nats.connect(
        f"nats://{address}", allow_reconnect=False, pending_size=_BUFFER_BYTES
    )
    log = NatsLog(client, base, segments)
    await log.open(create=create)
    return log


def _install() -> None:
    library("nats")
    _installed()


def _installed() -> Path:
    """The server. Raises BenchError, which names what to install."""
    return kept_folder(f"nats-server-{VERSION}", _build) / "nats-server"


def _build(folder: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise BenchError("NATS is built by Go, which was not found; install it (Debian: golang)")
    try:
        environment = {"CGO_ENABLED": "0", "GOBIN": str(folder)}
        command = [go, "install", f"{MODULE}@{VERSION}"]
        run(command, "building NATS", seconds=_BUILD_S, environment=environment)
    except GatewayMissingError as error:
        raise BenchError(error.reason) from error
