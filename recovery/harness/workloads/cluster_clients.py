"""Clients of a simulated cluster: plain writers, exactly-once writers, readers and a client that
flushes. Each runs until it is stopped.

What they meet when a host dies, hangs or hands over ends no client: it waits, and goes on with
whichever host serves then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from recovery.harness.cluster_record import ClusterRecord, SeenBytes
from recovery.harness.history import History, Observation, SeenSegment
from recovery.harness.recorder import RecordedStore
from recovery.harness.workloads.cluster_client import ClusterClient
from recovery.harness.workloads.stage import event_length, first_event
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    BadOffsetError,
    ContainerStoppedError,
    NotPrimaryError,
    SegmentExistsError,
    SegmentNotFoundError,
    TierUnavailableError,
)
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.service import SegmentStore

T = TypeVar("T")

PASSING: Final = (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    NotPrimaryError,
    TierUnavailableError,
)
"""What a host may answer that dies, hangs, hands over or misses a tier."""
_AGAIN_S: Final = 0.3
_READ_BYTES: Final = 500
_OBSERVED_BYTES: Final = 4093


@dataclass(slots=True, kw_only=True)
class ClusterBench:
    """What one client works with."""

    client: ClusterClient
    store: RecordedStore
    """Over `client`."""
    record: ClusterRecord
    random: random.Random
    number: int
    """Of this client, from 0."""
    segments: Sequence[str]
    goes_on: Callable[[], bool]
    pause_s: float
    """Between two of its calls, at most."""

    async def pause(self) -> None:
        """Let others go on."""
        await asyncio.sleep(self.random.uniform(0, self.pause_s))

    async def choose(self) -> str | None:
        """A segment that some host seems to serve; None behind a wait: there is none."""
        name = self.random.choice(self.segments)
        if self.client.home(name) is not None:
            return name
        await asyncio.sleep(_AGAIN_S)
        return None


Client = Callable[[ClusterBench], Coroutine[object, object, None]]


def segment_names(containers: int) -> dict[str, list[str]]:
    """Of each role one segment in each container."""
    names: dict[str, list[str]] = {}
    for role in ("plain", "events"):
        found: dict[int, str] = {}
        number = 0
        while len(found) < containers:
            name = f"{role}/{number}"
            found.setdefault(container_of(name, containers), name)
            number += 1
        names[role] = [found[container] for container in range(containers)]
    return names


async def write_plainly(bench: ClusterBench) -> None:
    """Appends, one or several on their way."""
    rng = bench.random
    while bench.goes_on():
        if (name := await bench.choose()) is None:
            continue
        futures = []
        for _ in range(rng.choice((1, 1, 2, 5, 12))):
            try:
                futures.append(bench.store.append(name, (rng.randrange(80),)))
            except NotPrimaryError:
                break  # the last host that served it has died just now
        await asyncio.gather(*futures, return_exceptions=True)
        await bench.pause()


async def write_events(bench: ClusterBench) -> None:
    """Events of one exactly-once writer, some of them sent again, in one session after another."""
    rng, writer = bench.random, bench.number + 1
    while bench.goes_on():
        if (name := await bench.choose()) is None:
            continue
        try:
            session = await bench.store.writer(name, writer)
        except PASSING:
            await bench.pause()
            continue
        event = session.last_event_number + 1 - rng.choice((0, 0, 0, 1, 4))
        futures = []
        for _ in range(rng.choice((1, 3, 10))):
            event = first_event(event)
            futures.append(session.append(event, event_length(writer, event)))
            event += 1
        await asyncio.gather(*futures, return_exceptions=True)
        await bench.pause()


async def read_along(bench: ClusterBench) -> None:
    """Reads what is new in one segment after another, and what was acknowledged before it asked."""
    places = dict.fromkeys(bench.segments, 0)
    while bench.goes_on():
        if (name := await bench.choose()) is None:
            continue
        host = bench.client.home(name)
        if host is None:
            continue
        at = max(0, places[name] - bench.random.choice((0, 0, 100, 1000)))
        try:
            data = await bench.client.ask(host, partial(_read, name, at))
        except (*PASSING, BadOffsetError):
            pass  # one that was fenced may know less
        else:
            bench.record.reads.append(SeenBytes(name, at, data, host.process.name))
            places[name] = max(places[name], at + len(data))
        await bench.pause()


async def flush_some(bench: ClusterBench) -> None:
    """Brings one segment after another to Tier 2."""
    while bench.goes_on():
        if (name := await bench.choose()) is not None:
            try:
                await bench.client.flush(name)
            except PASSING:
                pass
        for _ in range(8):
            await bench.pause()


CLIENTS: Final[Sequence[tuple[str, Client]]] = (
    ("plain", write_plainly),
    ("events", write_events),
    ("plain", write_plainly),
    ("events", write_events),
    ("plain", read_along),
    ("plain", flush_some),
)
"""By the role of their segments, in the order in which a run takes them."""


async def create_all(store: RecordedStore, names: Mapping[str, Sequence[str]]) -> None:
    """Make every segment, as often as it takes."""
    for name in (each for role in names.values() for each in role):
        while True:
            try:
                await store.create(name)
            except SegmentExistsError:
                break
            except PASSING:
                await asyncio.sleep(_AGAIN_S)
            else:
                break


async def observe_all(
    client: ClusterClient, history: History, process_run: int, names: Sequence[str]
) -> Observation:
    """Everything that the hosts have, read while no client is at work and nothing moves."""
    begun = history.next_stamp()
    seen: dict[str, SeenSegment] = {}
    for name in names:
        try:
            seen[name] = await _again(partial(_observe, client, name))
        except SegmentNotFoundError:
            pass  # a checker says whether it must be there
    observation = Observation(begun, history.next_stamp(), process_run, seen)
    history.observations.append(observation)
    return observation


async def _read(name: str, offset: int, store: SegmentStore) -> bytes:
    return await store.read(name, offset, _READ_BYTES)


async def _observe(client: ClusterClient, name: str) -> SeenSegment:
    info = await client.get_info(name)
    attributes = await client.get_attributes(name)
    pieces: list[bytes] = []
    offset = info.start_offset
    while offset < info.length:
        data = await client.read(name, offset, min(_OBSERVED_BYTES, info.length - offset))
        if not data:
            break
        pieces.append(data)
        offset += len(data)
    return SeenSegment(
        name=info.name,
        segment_id=info.segment_id,
        container_id=info.container_id,
        start_offset=info.start_offset,
        length=info.length,
        storage_length=info.storage_length,
        sealed=info.sealed,
        attributes=attributes,
        content=b"".join(pieces),
    )


async def _again(ask: Callable[[], Coroutine[object, object, T]]) -> T:
    while True:
        try:
            return await ask()
        except PASSING:
            await asyncio.sleep(_AGAIN_S)
