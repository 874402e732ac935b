"""ConnectClients: clients of `segmentstore.connect` at work until they are stopped: exactly-once
writers, plain appends, and readers that follow each segment.

Rules of this file:

- a client does what a program would: it repeats nothing by itself;
- plain appends go on behind AppendOutcomeUnknownError, and no other error is foreseen.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import segmentstore
from recovery.harness.clusters.sent_events import FollowedSegment, Sender, event_bytes
from segmentstore.contracts.errors import AppendOutcomeUnknownError, SegmentStoreError
from segmentstore.contracts.segment_mapper import container_of

if TYPE_CHECKING:
    from segmentstore.store_api import StoreApi

PAUSE_S: Final = 0.04
"""Of a client between two events."""
_IN_FLIGHT: Final = 16
"""Of a writer."""


class LinkedLoop(asyncio.SelectorEventLoop):
    """A loop whose connections to some ports are made to others: through the proxies."""

    def __init__(self, detours: dict[int, int]) -> None:
        super().__init__()
        self._detours = detours

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """As asyncio's."""
        port = self._detours.get(port, port)
        return await super().create_connection(protocol_factory, host, port, **options)


class ConnectClients:
    """Clients of one cluster: two segments for each container, one with two writers and a plain
    one. The clients of `locations` take them in turn.
    """

    def __init__(self, locations: Sequence[str], containers: int) -> None:
        self._locations = locations
        self.senders: list[Sender] = []
        self.followed: list[FollowedSegment] = []
        for container in range(containers):
            for tag, exactly_once, count in (("events", True, 2), ("plain", False, 1)):
                name = _name_in(container, containers, tag)
                self.followed.append(FollowedSegment(name))
                for _ in range(count):
                    self.senders.append(Sender(len(self.senders), name, exactly_once))
        self._stopping = False
        self._stores: list[StoreApi] = []
        self._sending: list[asyncio.Task[None]] = []
        self._following: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Connect, create the segments, and have all clients begin."""
        for location in self._locations:
            self._stores.append(await segmentstore.connect(location))
        for number, followed in enumerate(self.followed):
            store = self._store(number)
            await store.create_segment(followed.name)
            self._following.append(asyncio.create_task(self._follow(store, followed)))
        for sender in self.senders:
            work = self._write if sender.exactly_once else self._append
            self._sending.append(
                asyncio.create_task(self._noting(sender, work, self._store(sender.number)))
            )

    async def end(self) -> None:
        """Have all senders end with what they are at."""
        self._stopping = True
        await asyncio.gather(*self._sending)

    async def close(self) -> None:
        """End all. Idempotent."""
        self._stopping = True
        tasks = [*self._sending, *self._following]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stores, self._stores = self._stores, []
        await asyncio.gather(*(store.close() for store in stores), return_exceptions=True)

    def _store(self, number: int) -> StoreApi:
        return self._stores[number % len(self._stores)]

    async def _noting(self, sender: Sender, work: Callable[..., Any], store: StoreApi) -> None:
        try:
            await work(sender, store)
        except Exception as error:  # noqa: BLE001 - whatever it is, no client may see it
            sender.errors.append(f"{type(error).__name__}: {error}")

    async def _write(self, sender: Sender, store: StoreApi) -> None:
        loop = asyncio.get_running_loop()
        waiting: deque[tuple[float, asyncio.Future[int | None]]] = deque()
        async with store.writer(sender.segment, uuid.UUID(int=sender.number + 1)) as writer:
            while not self._stopping or waiting:
                if not self._stopping:
                    number = sender.sent
                    data = event_bytes(sender.number, number)
                    sender.sent += 1
                    waiting.append((loop.time(), writer.append(data, number)))
                    await asyncio.sleep(PAUSE_S)
                # A writer's events are answered in their order.
                while waiting and (
                    waiting[0][1].done() or len(waiting) >= _IN_FLIGHT or self._stopping
                ):
                    begun, future = waiting[0]
                    offset = await future
                    waiting.popleft()
                    number = sender.sent - 1 - len(waiting)
                    sender.acknowledge(number, offset, loop.time() - begun)

    async def _append(self, sender: Sender, store: StoreApi) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            number, begun = sender.sent, loop.time()
            sender.sent += 1
            try:
                offset = await store.append(sender.segment, event_bytes(sender.number, number))
            except AppendOutcomeUnknownError:
                sender.unknown.add(number)
            else:
                sender.acknowledge(number, offset, loop.time() - begun)
            await asyncio.sleep(PAUSE_S)

    async def _follow(self, store: StoreApi, followed: FollowedSegment) -> None:
        try:
            async for data in store.reader(followed.name, follow=True):
                followed.add(data)
        except SegmentStoreError as error:
            followed.error = f"{type(error).__name__}: {error}"


def _name_in(container: int, containers: int, tag: str) -> str:
    """The name of a segment that is in this container."""
    number = 0
    while container_of(f"{tag}-{number}", containers) != container:
        number += 1
    return f"{tag}-{number}"
