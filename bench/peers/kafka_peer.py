"""Kafka 4.1 by Maven, one broker in KRaft mode, with `flush.messages=1` and `acks=all`: each batch
of a partition is synced before its acknowledgement. A log is a partition.

The client is confluent-kafka (librdkafka, in C), without lingering. What waits while two requests
are under way goes into the next one. Its callbacks come from a thread of their own.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, ClassVar, Final

from bench.peers.libraries import library
from bench.peers.peer import Peer, PeerLog
from bench.peers.servers import ServerPeer
from bench.workspace import BenchError
from durablelog.bookkeeper.installation import GatewayMissingError, java
from durablelog.bookkeeper.installation.programs import run
from recovery.harness.services.pravega_jars import pravega_jars
from recovery.harness.services.server import HOST, Server, free_port

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

POM: Final = Path(__file__).with_name("kafka") / "pom.xml"
_CLUSTER: Final = base64.urlsafe_b64encode(b"segmentstorepeer").decode().rstrip("=")
_FORMAT_S: Final = 120.0
_REQUEST_S: Final = 60.0
_SEGMENTS_MAX: Final = 1000
"""Partitions of one broker: each has files of its own."""
_RECORD_BYTES_MAX: Final = 16 << 20
_READ_COUNT: Final = 1000
_POLL_S: Final = 0.1
_REQUESTS: Final = 2
"""In flight. With more, each record is a request of its own, and each request three syncs."""


class KafkaServer(Server):
    """A broker that is its own controller."""

    name: ClassVar[str] = "Kafka"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._controller_port = free_port()

    def _command(self, port: int) -> Sequence[str]:
        controller = f"{HOST}:{self._controller_port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            "log.dirs": self.folder / "data",
            "log.flush.interval.messages": 1,
            "log.segment.delete.delay.ms": 1000,
            "message.max.bytes": _RECORD_BYTES_MAX,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
        }
        path = self.folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [java(), "-Xmx1g", "-cp", f"{_jars()}/*"]
        if not (self.folder / "data").is_dir():
            formatting = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(path)]
            run([*command, *formatting], "formatting Kafka's folder", seconds=_FORMAT_S)
        return [*command, "kafka.Kafka", str(path)]


class KafkaLog:
    """Partitions of one topic."""

    def __init__(self, address: str, base: str, segments: int) -> None:
        from confluent_kafka import Producer  # noqa: PLC0415 - of this peer alone

        self._servers: dict[str, str | int | float | bool] = {"bootstrap.servers": address}
        self._topic = base
        self._segments = segments
        self._loop = asyncio.get_running_loop()
        self._delivered: list[tuple[asyncio.Future[None], KafkaError | None]] = []
        self._closed = False
        self._producer = Producer(
            {
                **self._servers,
                "acks": "all",
                "linger.ms": 0,
                "enable.idempotence": True,  # retries keep the order, and add nothing twice
                "max.in.flight.requests.per.connection": _REQUESTS,
                "message.max.bytes": _RECORD_BYTES_MAX,
                "queue.buffering.max.messages": 1_000_000,
                "socket.nagle.disable": True,
            }
        )
        self._thread = Thread(target=self._poll, name="kafka-callbacks", daemon=True)
        self._thread.start()

    async def create(self) -> None:
        """The topic, before its first append."""
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - see above
        from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415

        configuration = {"flush.messages": "1", "max.message.bytes": str(_RECORD_BYTES_MAX)}
        topic = NewTopic(self._topic, self._segments, 1, config=configuration)
        client = AdminClient(self._servers)  # it has to outlive what it is asked for
        creating = client.create_topics([topic], operation_timeout=_REQUEST_S)
        await asyncio.to_thread(creating[self._topic].result, _REQUEST_S)

    def append(self, segment: int, data: bytes) -> Awaitable[object]:
        future: asyncio.Future[None] = self._loop.create_future()
        done = partial(self._done, future)
        self._producer.produce(self._topic, data, partition=segment, on_delivery=done)
        return future

    def append_batch(self, segment: int, records: Sequence[bytes]) -> Awaitable[object]:
        return asyncio.gather(*(self.append(segment, record) for record in records))

    async def read(self, segment: int, *, follow: bool = False) -> AsyncIterator[bytes]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition  # noqa: PLC0415

        consumer = Consumer({**self._servers, "group.id": "bench", "enable.partition.eof": True})
        thread = ThreadPoolExecutor(1, thread_name_prefix="kafka-reader")

        def read_some() -> list[Message]:
            first = consumer.poll(_POLL_S)
            return [] if first is None else [first, *consumer.consume(_READ_COUNT, 0)]

        try:
            consumer.assign([TopicPartition(self._topic, segment, OFFSET_BEGINNING)])
            while True:
                messages = await self._loop.run_in_executor(thread, read_some)
                values = [message.value() or b"" for message in messages if not message.error()]
                if values:
                    yield b"".join(values)
                if not follow and len(values) < len(messages):
                    return
        finally:
            thread.shutdown()
            consumer.close()

    async def flush(self) -> None:
        """There is one place alone."""

    async def delete(self) -> None:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - see above

        client = AdminClient(self._servers)
        deleting = client.delete_topics([self._topic])
        await asyncio.to_thread(deleting[self._topic].result, _REQUEST_S)

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(self._thread.join)

    # --- on the thread of the callbacks -----------------------------------------------------------

    def _poll(self) -> None:
        while not self._closed:
            self._producer.poll(_POLL_S)
            if self._delivered:
                delivered, self._delivered = self._delivered, []
                self._loop.call_soon_threadsafe(_resolve, delivered)

    def _done(
        self, future: asyncio.Future[None], error: KafkaError | None, message: Message
    ) -> None:
        del message
        self._delivered.append((future, error))


def _resolve(delivered: Sequence[tuple[asyncio.Future[None], KafkaError | None]]) -> None:
    for future, error in delivered:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(BenchError(f"Kafka: {error}"))


def create() -> Peer:
    """Kafka as a peer."""
    return ServerPeer("kafka", install=_install, launch=KafkaServer, segments_max=_SEGMENTS_MAX)


async def open_log(address: str, base: str, segments: int, *, create: bool) -> PeerLog:
    """A topic with a partition for each segment."""
    log = KafkaLog(address, base, segments)
    if create:
        await log.create()
    return log


def _install() -> None:
    library("confluent_kafka")
    try:
        java()
        _jars()
    except GatewayMissingError as error:
        raise BenchError(error.reason) from error


def _jars() -> Path:
    return pravega_jars("kafka-peer", POM)
