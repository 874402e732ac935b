"""ClusterClient: a store as a client of a cluster has it: each call goes to a host that seems to
serve the container.

Rules of this file:

- calls travel. Those of one client to one process arrive in the order in which they were sent, and
  so do the answers. Of a process that dies no answer comes, of one that is stopped a late one;
- a client gives a call up after a while. It may have been done, or be done later;
- which host is asked is chance among those that believe to serve, fenced ones and stopped ones
  among them: no client has to know better;
- nothing is sent twice here. That is for the client's own code to decide.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

from recovery.harness.cluster_record import Acknowledgement, ClusterRecord
from recovery.harness.history import History
from recovery.harness.simulation.cluster_world import ClusterWorld, HostProcess
from recovery.harness.simulation.virtual_loop import MICROSECONDS
from segmentstore.contracts.attributes import AttributeUpdate
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import AppendOutcomeUnknownError, ContainerNotServedError
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.contracts.segments import SegmentInfo
from segmentstore.service import SegmentStore

LATENCY_S: Final = (0.000_1, 0.002)
GIVE_UP_S: Final = (1.0, 6.0)
"""For which an answer is waited."""

Ask = Callable[[SegmentStore], Awaitable[Any]]


class ClusterClient:
    """One client, on its loop. Its calls are those of `StoreApi` that clients here need."""

    def __init__(
        self, world: ClusterWorld, history: History, record: ClusterRecord, rng: random.Random
    ) -> None:
        self._world = world
        self._history = history
        self._record = record
        self._random = rng
        self._due_us: dict[tuple[str, bool], int] = {}
        """By process and direction: when the last message arrives."""

    def home(self, name: str) -> HostProcess | None:
        """A host that may serve the segment; None: none seems to."""
        there = self._world.serving(self._container(name))
        return self._random.choice(there) if there else None

    # --- the store's calls ------------------------------------------------------------------------

    def append(
        self,
        name: str,
        data: Buffer,
        expected_offset: int | None = None,
        attributes: Sequence[AttributeUpdate] = (),
    ) -> asyncio.Future[int]:
        """As `SegmentStore.append`."""
        host = self._home(name)
        return self.change(
            host, name, lambda store: store.append(name, data, expected_offset, attributes)
        )

    def writer(self, name: str, writer_id: UUID) -> HostsWriter:
        """As `SegmentStore.writer`, of the host that seems to serve now."""
        return HostsWriter(self, self._home(name), name, writer_id)

    async def create_segment(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentInfo:
        """As `SegmentStore.create_segment`."""
        info: SegmentInfo = await self._ask(
            self._home(name), name, lambda store: store.create_segment(name, attributes)
        )
        return info

    async def read(
        self, name: str, offset: int, max_length: int, wait: float | None = None
    ) -> bytes:
        """As `SegmentStore.read`."""
        data: bytes = await self._ask(
            self._home(name), name, lambda store: store.read(name, offset, max_length, wait)
        )
        return data

    async def get_info(self, name: str) -> SegmentInfo:
        """As `SegmentStore.get_info`."""
        info: SegmentInfo = await self._ask(
            self._home(name), name, lambda store: store.get_info(name)
        )
        return info

    async def get_attributes(self, name: str) -> dict[UUID, int]:
        """As `SegmentStore.get_attributes`."""
        found: dict[UUID, int] = await self._ask(
            self._home(name), name, lambda store: store.get_attributes(name)
        )
        return found

    async def flush(self, name: str) -> None:
        """As `SegmentStore.flush`, of one segment."""
        await self._ask(self._home(name), name, lambda store: store.flush(name))

    async def list_segments(self, prefix: str = "") -> AsyncGenerator[SegmentInfo, None]:
        """Of all hosts, by name. For times in which nothing moves."""
        found: dict[str, SegmentInfo] = {}
        for host in self._world.all_processes:
            if host.store is not None:
                for info in await self.ask(host, partial(_listed, prefix)):
                    found[info.name] = info
        for name in sorted(found):
            yield found[name]

    # --- calls on their way -----------------------------------------------------------------------

    def ask(self, host: HostProcess, ask: Ask) -> asyncio.Future[Any]:
        """Have something done in a host's process; its answer, or AppendOutcomeUnknownError."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        timer = loop.call_later(self._random.uniform(*GIVE_UP_S), _give_up, answer)
        answer.add_done_callback(lambda _: timer.cancel())
        store = host.store
        if store is not None and not host.is_dead:
            host.process.loop.call_at(
                self._arrival_s(host, back=False),
                self._arrive,
                host,
                store,
                ask,
                partial(self._answer, host, loop, answer),
            )
        return answer

    def change(self, host: HostProcess, name: str, append: Ask) -> asyncio.Future[Any]:
        """The same, of an append; its acknowledgement is noted with its owner."""
        container = self._container(name)

        def noted(store: SegmentStore) -> Awaitable[Any]:
            owner = host.running(container)
            begun = self._history.next_stamp()
            future = append(store)
            assert isinstance(future, asyncio.Future)
            future.add_done_callback(self._note_unknown)
            if owner is not None:
                epoch = owner.epoch
                future.add_done_callback(
                    lambda done: self._note(done, container, epoch, host.process.name, begun)
                )
            return future

        return self.ask(host, noted)

    def _ask(self, host: HostProcess, name: str, ask: Ask) -> asyncio.Future[Any]:
        return self.ask(host, ask)

    def _note(
        self, done: asyncio.Future[Any], container: int, epoch: int, process: str, begun: int
    ) -> None:
        # An event that was there already is acknowledged by any owner that knows of it.
        if not done.cancelled() and done.exception() is None and done.result() is not None:
            ended = self._history.next_stamp()
            self._record.acknowledgements.append(
                Acknowledgement(container, epoch, process, begun, ended)
            )

    def _note_unknown(self, done: asyncio.Future[Any]) -> None:
        if not done.cancelled() and isinstance(done.exception(), AppendOutcomeUnknownError):
            self._record.counts["unknown outcomes"] += 1

    def _arrive(
        self,
        host: HostProcess,
        store: SegmentStore,
        ask: Ask,
        answer: Callable[[asyncio.Future[Any]], None],
    ) -> None:
        host.process.start(_asked(store, ask)).add_done_callback(answer)

    def _answer(
        self,
        host: HostProcess,
        loop: asyncio.AbstractEventLoop,
        answer: asyncio.Future[Any],
        done: asyncio.Future[Any],
    ) -> None:
        if done.cancelled():
            return
        done.exception()  # whether the answer arrives or not
        if not host.is_dead:
            loop.call_at(self._arrival_s(host, back=True), _resolve, answer, done)

    def _arrival_s(self, host: HostProcess, *, back: bool) -> float:
        place = (host.process.name, back)
        travels_us = round(self._random.uniform(*LATENCY_S) * MICROSECONDS)
        # One behind the other: timers of one time have no order.
        due_us = max(self._world.time.now_us + travels_us, self._due_us.get(place, 0) + 1)
        self._due_us[place] = due_us
        return due_us / MICROSECONDS

    def _container(self, name: str) -> int:
        return container_of(name, self._world.containers)

    def _home(self, name: str) -> HostProcess:
        host = self.home(name)
        if host is None:
            raise ContainerNotServedError(self._container(name), "no host serves it")
        return host


class HostsWriter:
    """An exactly-once session with one host, from `open` to its first refusal."""

    def __init__(
        self, client: ClusterClient, host: HostProcess, name: str, writer_id: UUID
    ) -> None:
        self._client = client
        self._host = host
        self._name = name
        self._writer_id = writer_id
        self._session: Any = None
        self._failed = False
        self.last_event_number = -1
        """The highest number that the segment had, or that was sent."""

    async def open(self) -> HostsWriter:
        """As `SegmentWriter.open`."""

        async def opened(store: SegmentStore) -> tuple[Any, int]:
            session = await store.writer(self._name, self._writer_id).open()
            return session, session.last_event_number

        self._session, self.last_event_number = await self._client.ask(self._host, opened)
        return self

    def append(self, data: Buffer, event_number: int) -> asyncio.Future[int | None]:
        """As `SegmentWriter.append`. Behind an append that failed each one fails."""
        if self._failed:
            refused: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
            refused.set_exception(AppendOutcomeUnknownError(None))
            return refused
        self.last_event_number = max(self.last_event_number, event_number)
        future = self._client.change(
            self._host, self._name, lambda _: self._session.append(data, event_number)
        )
        future.add_done_callback(self._note)
        return future

    def _note(self, done: asyncio.Future[int | None]) -> None:
        self._failed |= done.cancelled() or done.exception() is not None


async def _asked(store: SegmentStore, ask: Ask) -> Any:
    return await ask(store)


async def _listed(prefix: str, store: SegmentStore) -> list[SegmentInfo]:
    return [info async for info in store.list_segments(prefix)]


def _give_up(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(AppendOutcomeUnknownError(None, TimeoutError("no answer")))


def _resolve(answer: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
    if answer.done():
        return
    error = done.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())
