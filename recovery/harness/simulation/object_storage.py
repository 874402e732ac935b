"""Object storage of a simulated world: a bucket that outlives processes, and one process's way to
it.

The bucket is right, as a good object store is: whole objects, put-if-absent by unique id, no change
in place. What goes wrong is on the way and in the weather: requests are slow, refused, applied
late, their replies lost, bodies come back wrong, listings lag. Rules of this file:

- a change is applied by the outside, at a time within its latency. Nothing its process does after
  it was sent, not even dying or cancelling the call, takes it back. Of a process that died before,
  chance decides whether it landed;
- what lies ahead is kept in the bucket with the time it is due, and `settle` applies it before
  anything is checked;
- the bucket computes ages by a clock of its own, which never jumps;
- a wrong body comes at most once in a while for each object, so that a reader that asks once more
  gets the right one. A store that returns two wrong bodies in a row is corrupt, and that is another
  fault (`flip_bit`).
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from recovery.harness.simulation.clock import BEGINNING_MS
from recovery.harness.simulation.storage_process import StorageProcess
from recovery.harness.simulation.virtual_loop import MICROSECONDS
from segmentstore.contracts.checksum import Buffer
from tier2.object_names import check_object_name
from tier2.object_storage import (
    NO_METADATA,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectRange,
    ObjectStorage,
    PartSizes,
    StorageUnavailableError,
    StoredObject,
    UnfinishedUpload,
    check_metadata,
    check_ranges,
    exact_range,
)
from tier2.request_meter import RequestMeter
from tier2.request_statistics import ObjectStorageStatistics
from tier2.unique_ids import check_unique_id

PAGE_OBJECTS: Final = 1000
COMPOSE_BYTES_MIN: Final = 64
"""Small enough that tiny objects are composed too."""
LATENCY_S: Final = (0.001, 0.020)
SLOW_S: Final = (1.0, 20.0)
LATE_S: Final = (0.1, 60.0)
"""From the answer "unavailable" to the change it was about."""
BURST_S: Final = (1.0, 30.0)
AWAY_S: Final = 600.0
THROTTLED_S: Final = (1.0, 30.0)
THROTTLED_RATE_MAX: Final = 10
"""Requests a second that pass while it throttles, at most."""
LAG_MAX_US: Final = 5 * MICROSECONDS
"""How old a listing may be."""
CALM_US: Final = 120 * MICROSECONDS
CALM_BODIES: Final = 8
"""After a wrong body an object gives right ones, for that long and so many: a reader's second try
takes less.
"""


class BucketObject(NamedTuple):
    """An object with what the bucket keeps beside it."""

    data: bytes
    unique_id: bytes
    modified_ms: int
    metadata: Mapping[str, str] = NO_METADATA


@dataclass(slots=True, eq=False)
class _Change:
    """A put, or a delete (`data` is None), on its way to the bucket."""

    due_us: int
    name: str
    data: bytes | None
    unique_id: bytes
    owner: StorageProcess | None
    """The process that sent it and still waits for it; None if it is applied whatever becomes of
    its sender.
    """
    survives: bool
    """What chance decided for the case that its sender dies before it is due."""
    metadata: Mapping[str, str] = field(default_factory=lambda: NO_METADATA)
    taken: bool = False
    """Answer to a put: the name belongs to an object with another unique id."""


class _Past(NamedTuple):
    """What lay under a name until `until_us`."""

    until_us: int
    name: str
    object: BucketObject | None


class _Weather:
    """Times in which the service refuses everything, or whatever comes too fast."""

    __slots__ = ("_away_until", "_burst_until", "_passed", "_rate", "_second", "_throttled_until")

    def __init__(self) -> None:
        self._away_until = self._burst_until = self._throttled_until = 0
        self._rate = self._second = self._passed = 0

    def refusal(self, owner: StorageProcess) -> str | None:
        """Why the service refuses a request of now; None if it takes it.

        The request that brings a time on is its first.
        """
        now_us, strikes, rng = owner.world.time.now_us, owner.world.strikes, owner.random
        if now_us >= self._away_until and strikes("object.away"):
            self._away_until = now_us + round(AWAY_S * MICROSECONDS)
        if now_us < self._away_until:
            return "no answer"
        if now_us >= self._burst_until and strikes("object.burst"):
            self._burst_until = now_us + _draw_us(rng, BURST_S)
        if now_us < self._burst_until:
            return "503 slow down"
        if now_us < self._throttled_until:
            return None if self._passes(now_us) else "429 too many requests"
        if strikes("object.throttled"):
            self._throttled_until = now_us + _draw_us(rng, THROTTLED_S)
            self._rate = self._passed = rng.randint(1, THROTTLED_RATE_MAX)
            self._second = now_us // MICROSECONDS
            return "429 too many requests"
        return None

    def _passes(self, now_us: int) -> bool:
        second = now_us // MICROSECONDS
        if second != self._second:
            self._second, self._passed = second, 0
        self._passed += 1
        return self._passed <= self._rate


class SimulatedBucket:
    """The service: its objects, and the changes that are on their way to it.

    Every storage of a world shares one.

    `wrong_bodies`: a truncated or wrong body may look right in length, so that only our own
    checksums notice it.
    """

    def __init__(self, *, wrong_bodies: bool = True) -> None:
        self.objects: dict[str, BucketObject] = {}
        """By name, as applied so far."""
        self.wrong_bodies = wrong_bodies
        self.weather = _Weather()
        self.unfinished: dict[str, UnfinishedUpload] = {}
        """Uploads in parts that were neither completed nor aborted, by their id."""
        self.uploads = 0
        """Begun so far."""
        self.outlived: set[str] = set()
        """Names of objects that were put when their sender was dead."""
        self._flipped: dict[str, tuple[int, ...]] = {}
        """Where bits have flipped in objects, and were not flipped back."""
        self._ahead: list[tuple[int, int, _Change]] = []
        self._sent = 0
        self._past: deque[_Past] = deque()

    def send(self, change: _Change) -> None:
        """Put a change on its way. O(log n)."""
        self._sent += 1
        heapq.heappush(self._ahead, (change.due_us, self._sent, change))

    def settle(self, now_us: int) -> None:
        """Apply what is due by now, in the order it is due."""
        ahead = self._ahead
        while ahead and ahead[0][0] <= now_us:
            self._apply(heapq.heappop(ahead)[2])

    def settle_all(self) -> None:
        """Apply whatever is still on its way, as if an hour had passed."""
        while self._ahead:
            self._apply(heapq.heappop(self._ahead)[2])

    def heal(self) -> None:
        """Apply whatever is on its way, and let bad times be over."""
        self.settle_all()
        self.weather = _Weather()

    def in_flight(self) -> int:
        """Changes that are on their way."""
        return len(self._ahead)

    def as_of(self, at_us: int) -> Mapping[str, BucketObject]:
        """The objects as they were then, at most LAG_MAX_US ago."""
        objects = dict(self.objects)
        for past in reversed(self._past):
            if past.until_us <= at_us:
                break
            if past.object is None:
                objects.pop(past.name, None)
            else:
                objects[past.name] = past.object
        return objects

    def flip_bit(self, name: str, offset: int, bit: int) -> None:
        """Rot: bit `bit` (0 to 7) of the byte at `offset` of an object changes for good.

        Raises KeyError, IndexError.
        """
        there = self.objects[name]
        data = bytearray(there.data)
        data[offset] ^= 1 << bit
        self.objects[name] = there._replace(data=bytes(data))
        flipped = self._flipped.get(name, ())
        self._flipped[name] = (
            tuple(place for place in flipped if place != offset)
            if offset in flipped
            else (*flipped, offset)
        )

    def has_bit_rot(self, part: ObjectRange) -> bool:
        """Whether the service would notice damage when it copies this range: it keeps checksums of
        its own.
        """
        return any(
            part.offset <= place < part.offset + part.length
            for place in self._flipped.get(part.name, ())
        )

    def copy(self) -> SimulatedBucket:
        """The bucket as it would go on if every process died now: chance has decided which changes
        still land.
        """
        twin = SimulatedBucket(wrong_bodies=self.wrong_bodies)
        twin.objects = dict(self.objects)
        twin.unfinished, twin.uploads = dict(self.unfinished), self.uploads
        twin._flipped = dict(self._flipped)
        for _, _, change in sorted(self._ahead, key=lambda item: item[:2]):
            if change.owner is None or change.survives:
                twin.send(replace(change, owner=None))
        return twin

    def fingerprint(self) -> str:
        """A digest of names, ids and bytes of all objects, equal for equal buckets. O(bytes)."""
        digest = hashlib.blake2b(digest_size=16)
        for name, there in sorted(self.objects.items()):
            digest.update(f"{len(name)} {name} {len(there.data)} ".encode())
            digest.update(there.unique_id)
            digest.update(there.data)
        return digest.hexdigest()

    def _apply(self, change: _Change) -> None:
        outlives = change.owner is not None and change.owner.dead
        if outlives and not change.survives:
            return
        there = self.objects.get(change.name)
        if change.data is not None:
            if there is not None:
                change.taken = there.unique_id != change.unique_id
                return
            modified_ms = BEGINNING_MS + change.due_us // 1000
            self.objects[change.name] = BucketObject(
                change.data, change.unique_id, modified_ms, change.metadata
            )
            if outlives:
                self.outlived.add(change.name)
        elif self.objects.pop(change.name, None) is None:
            return
        self._past.append(_Past(change.due_us, change.name, there))
        while self._past[0].until_us < change.due_us - LAG_MAX_US:
            self._past.popleft()


class SimulatedObjectStorage(ObjectStorage):
    """One process's connection to a bucket, with every fault of the group `object.` on the way.

    A call takes LATENCY_S of virtual time, more when it is slow. Faults strike as the world says.
    """

    def __init__(
        self, bucket: SimulatedBucket, process: StorageProcess, *, page_objects: int = PAGE_OBJECTS
    ) -> None:
        self.bucket = bucket
        self._process = process
        self._random = process.random
        self._world = process.world
        self._page_objects = page_objects
        self._meter = RequestMeter()
        self._calm: dict[str, tuple[int, int]] = {}
        """Objects that have given a wrong body: until when, and how many more, their bodies are
        right.
        """
        self._closed = False

    @property
    def url(self) -> str:
        return "simulated://bucket"

    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        check_object_name(name)
        check_unique_id(unique_id)
        metadata = check_metadata(metadata)
        data = b"".join(parts)
        if not data:
            raise ValueError(f"object {name} would be empty")
        with self._meter.request("put") as request:
            await self._put(name, data, unique_id, metadata)
            request.sent(len(data))

    async def upload(
        self,
        name: str,
        parts: AsyncGenerator[Buffer, None],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        async with aclosing(parts):
            check_object_name(name)
            check_unique_id(unique_id)
            metadata = check_metadata(metadata)
            with self._meter.request("begin_upload"):
                await asyncio.sleep(await self._knock(name, "object.put.failed"))
                begun = self._begin(name)
            try:
                data = await self._parts(name, parts)
                with self._meter.request("complete_upload"):
                    await self._put(name, data, unique_id, metadata)
                self.bucket.unfinished.pop(begun.upload_id, None)
            except BaseException:
                if not self._process.dead:
                    with suppress(StorageUnavailableError):
                        await self.abort_unfinished(begun)
                raise

    async def list_unfinished(self, prefix: str = "") -> Sequence[UnfinishedUpload]:
        if not self.bucket.unfinished:
            return ()  # Without a request: worlds without uploads stay as they were.
        with self._meter.request("list_uploads"):
            await asyncio.sleep(await self._knock(prefix, "object.list.failed"))
        return [each for each in self.bucket.unfinished.values() if each.name.startswith(prefix)]

    async def abort_unfinished(self, upload: UnfinishedUpload) -> None:
        with self._meter.request("abort_upload"):
            await asyncio.sleep(await self._knock(upload.name, "object.delete.failed"))
            self.bucket.unfinished.pop(upload.upload_id, None)

    @property
    def compose_bytes_min(self) -> int | None:
        return COMPOSE_BYTES_MIN

    async def compose(self, name: str, ranges: Sequence[ObjectRange], unique_id: bytes) -> None:
        check_object_name(name)
        check_unique_id(unique_id)
        check_ranges(ranges, COMPOSE_BYTES_MIN)
        with self._meter.request("copy_part"):
            self._settle()
            # The sources never change, so it does not matter that they are read before the request
            # is on its way.
            data = b"".join(self._range(*each) for each in ranges)
            if any(map(self.bucket.has_bit_rot, ranges)):
                raise self._unavailable(name, "500 a source is damaged")
            await self._put(name, data, unique_id)

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        check_object_name(name)
        if offset < 0 or length < 1:
            raise ValueError(f"range of {length} bytes at {offset}")
        with self._meter.request("get") as request:
            await asyncio.sleep(await self._knock(name, "object.get.failed"))
            self._settle()
            self._range(name, offset, length)
            body = self._body(name, self.bucket.objects[name].data, offset, length)
            request.received(length)
        return body

    async def head(self, name: str) -> StoredObject | None:
        check_object_name(name)
        with self._meter.request("head"):
            await asyncio.sleep(await self._knock(name, "object.head.failed"))
            self._settle()
        there = self.bucket.objects.get(name)
        if there is None:
            return None
        return StoredObject(name, len(there.data), there.modified_ms, there.metadata)

    async def delete(self, name: str) -> None:
        check_object_name(name)
        with self._meter.request("delete"):
            seconds = await self._knock(name, "object.delete.failed")
            await self._change("object.delete", name, None, b"", seconds)

    async def list(
        self, prefix: str = "", start_after: str = ""
    ) -> AsyncIterator[Sequence[StoredObject]]:
        while page := await self._page(prefix, start_after):
            yield page
            start_after = page[-1].name

    async def close(self) -> None:
        self._closed = True

    def statistics(self) -> ObjectStorageStatistics:
        return self._meter.snapshot()

    def __repr__(self) -> str:
        return (
            f"<SimulatedObjectStorage of {self._process.name}: {len(self.bucket.objects)} objects>"
        )

    async def _page(self, prefix: str, start_after: str) -> Sequence[StoredObject]:
        with self._meter.request("list"):
            await asyncio.sleep(await self._knock(prefix, "object.list.failed"))
            self._settle()
        objects: Mapping[str, BucketObject] = self.bucket.objects
        if self._world.strikes("object.list.lags"):
            objects = self.bucket.as_of(
                self._world.time.now_us - self._random.randint(1, LAG_MAX_US)
            )
        names = sorted(name for name in objects if name.startswith(prefix))
        first = bisect_right(names, start_after)
        return [
            StoredObject(name, len(objects[name].data), objects[name].modified_ms)
            for name in names[first : first + self._page_objects]
        ]

    def _begin(self, name: str) -> UnfinishedUpload:
        self.bucket.uploads += 1
        begun_ms = BEGINNING_MS + self._world.time.now_us // 1000
        begun = UnfinishedUpload(name, str(self.bucket.uploads), begun_ms)
        self.bucket.unfinished[begun.upload_id] = begun
        return begun

    async def _parts(self, name: str, parts: AsyncGenerator[Buffer, None]) -> bytes:
        sizes = PartSizes(name, self.upload_bytes_min)
        kept: list[bytes] = []
        async for part in parts:
            sizes.add(len(part))
            with self._meter.request("put_part") as request:
                await asyncio.sleep(await self._knock(name, "object.put.failed"))
                kept.append(bytes(part))
                request.sent(len(part))
        sizes.end()
        return b"".join(kept)

    async def _put(
        self,
        name: str,
        data: bytes,
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        seconds = await self._knock(name, "object.put.failed")
        change = await self._change("object.put", name, data, bytes(unique_id), seconds, metadata)
        if change.taken:
            raise ObjectExistsError(name, "taken by an object with another unique id")

    def _range(self, name: str, offset: int, length: int) -> bytes:
        there = self.bucket.objects.get(name)
        if there is None:
            raise ObjectNotFoundError(name, "no such object")
        return exact_range(name, there.data, offset, length)

    async def _knock(self, name: str, fault: str) -> float:
        """The seconds a request of now takes.

        One that is refused has taken them, and had no effect.
        """
        if self._closed:
            raise StorageUnavailableError(name, "the storage is closed")
        seconds = _draw(self._random, LATENCY_S)
        if self._world.strikes("object.slow"):
            seconds += _draw(self._random, SLOW_S)
        refusal = self.bucket.weather.refusal(self._process)
        if refusal is None and self._world.strikes(fault):
            refusal = "500 internal error"
        if refusal is not None:
            await asyncio.sleep(seconds)
            raise self._unavailable(name, refusal)
        return seconds

    async def _change(
        self,
        kind: Literal["object.put", "object.delete"],
        name: str,
        data: bytes | None,
        unique_id: bytes,
        seconds: float,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> _Change:
        """Send a change and wait for its answer."""
        process, rng = self._process, self._random
        process.effect(kind, name, "" if data is None else str(len(data)))
        if process.paused:
            # Stopped just before it: it goes on from the next turn it is given.
            await asyncio.sleep(0)
        now_us = self._world.time.now_us
        late = self._world.strikes(f"{kind}.late")
        ahead_us = _draw_us(rng, LATE_S) if late else round(seconds * MICROSECONDS * rng.random())
        survives = rng.random() < 0.5
        change = _Change(
            now_us + ahead_us, name, data, unique_id, None if late else process, survives, metadata
        )
        self.bucket.send(change)
        if data is not None and not late and self._world.strikes("object.put.twice"):
            self.bucket.send(replace(change, due_us=now_us + round(seconds * MICROSECONDS)))
        await asyncio.sleep(seconds)
        self._settle()
        if late:
            raise self._unavailable(name, "no answer in time")
        if self._world.strikes(f"{kind}.lost-reply"):
            raise self._unavailable(name, "connection reset")
        return change

    def _body(self, name: str, data: bytes, offset: int, length: int) -> bytes:
        """What a read answers with.

        A client compares the length and the range it got: mostly a wrong body is an error.
        """
        body = data[offset : offset + length]
        if self._world.strikes("object.get.truncated"):
            kept = self._random.randrange(length)
            wrong = body[:kept] + bytes(length - kept)
        elif self._world.strikes("object.get.wrong-range"):
            other = self._random.randrange(len(data))
            wrong = (data + data)[other : other + length]
        else:
            until_us, bodies = self._calm.get(name, (0, 0))
            if bodies:
                self._calm[name] = until_us, bodies - 1
            return body
        until_us, bodies = self._calm.get(name, (0, 0))
        now_us = self._world.time.now_us
        if (
            self.bucket.wrong_bodies
            and not bodies
            and now_us >= until_us
            and self._random.random() < 0.5
        ):
            self._calm[name] = now_us + CALM_US, CALM_BODIES
            return wrong
        raise self._unavailable(name, "the body is not the range that was asked for")

    def _settle(self) -> None:
        self.bucket.settle(self._world.time.now_us)

    def _unavailable(self, name: str, reason: str) -> StorageUnavailableError:
        return StorageUnavailableError(name, reason)


def _draw(source: random.Random, seconds: tuple[float, float]) -> float:
    least, most = seconds
    return least + (most - least) * source.random()


def _draw_us(source: random.Random, seconds: tuple[float, float]) -> int:
    return round(_draw(source, seconds) * MICROSECONDS)
