"""Scrub: a walk through every object the log says is live, block by block, that can be stopped and
continued.

Rules of this file:

- the order is by container, then by object name; the position is moved on only when everything up
  to it was checked;
- an object that is missing from the metadata when it is reached, or while it is read, is passed
  over: no reader needs it;
- anything found is checked once more with the chunks as they are then: the metadata of an open
  store move on;
- a store, or a catalog, that does not answer is never taken for corruption. The walk ends with
  StorageUnavailableError or TierUnavailableError, and goes on from its position when it is run
  again;
- one object that the store refuses, while it gives others, is a finding, and holds up no other: the
  next pass asks for it again;
- bytes are asked for at a bounded rate;
- chunks are asked for by object, those of a bounded number at once. Most segments of an open store
  may be idle, and all their chunks are more than fit memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Final

from recovery.block_check import ObjectCheck, check_object
from recovery.open_container import OpenContainer
from recovery.scrub_state import ScrubPosition, ScrubState
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from segmentstore.contracts.findings import harmful, unknown
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.owned_tasks import gather_outcomes
from segmentstore.contracts.rate_limiter import RateLimiter
from segmentstore.contracts.runtime import Clock
from tier2.block_walk import PIECE_BYTES
from tier2.object_storage import (
    ObjectStorage,
    ObjectStorageError,
    StorageRefusedError,
    StorageUnavailableError,
)

OBJECTS_IN_BATCH: Final = 256
"""Whose chunks are asked for at once: a pass over all chunks in memory comes with it."""
CHUNKS_IN_BATCH: Final = 65_536
"""Living chunks of a batch, or one object has more."""
PIECE_BYTES_MIN = 64 * 1024
WITNESSES_MAX: Final = 4
"""Objects asked for a byte before a refusal is taken for that of one object."""
_REFUSALS: Final = frozenset(("EACCES", "EPERM", "EIO"))
"""Kinds by which a folder refuses one file until a person changes something."""

Live = Callable[[], OpenContainer | None]
"""A container; None while it does not serve."""


def piece_bytes(bytes_per_s: float) -> int:
    """What is fetched at once at this rate: what a second allows, within reason; 0: no rate."""
    if not bytes_per_s:
        return PIECE_BYTES
    return min(PIECE_BYTES, max(PIECE_BYTES_MIN, int(bytes_per_s)))


async def _nothing() -> None:
    pass


class Scrub:
    """Passes over `containers` (by id).

    Keeps `state` as it goes; `moved_on` is awaited whenever it has moved on.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        containers: Mapping[int, Live],
        state: ScrubState,
        *,
        clock: Clock,
        executor: Executor,
        limiter: RateLimiter,
        objects_at_once: int = 1,
        moved_on: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self.state = state
        self.objects_left = self.bytes_left = 0
        """In the container under way."""
        self._storage = storage
        self._containers = containers
        self._clock = clock
        self._executor = executor
        self._limiter = limiter
        self._at_once = objects_at_once
        self._moved_on = moved_on
        self._witness: str | None = None
        """The object read last."""

    async def run_pass(self) -> None:
        """Go on with the current pass, to its end; nothing happens if it is finished.

        Raises StorageUnavailableError; TierUnavailableError from the catalog of an open container.
        """
        current = self.state.current
        if current.finished_at_ms is not None:
            return
        for container_id in sorted(self._containers):
            if current.position is None or container_id >= current.position.container_id:
                await self._walk(container_id)
        current.finished_at_ms = self._clock.time_ms()
        await self._moved_on()

    async def _walk(self, container_id: int) -> None:
        container = self._containers[container_id]()
        if container is None:
            return
        current, metadata = self.state.current, container.metadata
        names = sorted(metadata.objects)
        if current.position is not None and current.position.container_id == container_id:
            names = names[bisect_right(names, current.position.object_name) :]
        self.objects_left = len(names)
        self.bytes_left = sum(_size(metadata, name) for name in names)
        for some in _batches(metadata, names):
            if not await self._check_some(container_id, metadata, some):
                return

    async def _check_some(
        self, container_id: int, metadata: ContainerMetadata, names: Sequence[str]
    ) -> bool:
        """Check these objects; False once the container does not serve any more."""
        chunks: Mapping[str, Sequence[ChunkRecord]] = {}
        try:
            chunks = await self._chunks_in(container_id, names)
        except DataCorruptionError:
            pass  # Each is asked for by itself: not all of them suffer for one.
        current = self.state.current
        remaining = iter(names)
        while group := list(islice(remaining, self._at_once)):
            sizes = sum(_size(metadata, name) for name in group)
            checked = await gather_outcomes(
                *(self._check_object(container_id, name, chunks.get(name)) for name in group),
                name="scrub object",
            )
            for each in checked:
                if isinstance(each, BaseException):
                    raise each
            if self._containers[container_id]() is None:
                # It has stopped: its objects are not missing, and what was passed over for that is
                # still to come.
                return False
            for each in checked:
                self._count(each)
            current.position = ScrubPosition(container_id, group[-1])
            self.objects_left -= len(group)
            self.bytes_left = max(0, self.bytes_left - sizes)
            await self._moved_on()
        return True

    async def _chunks_in(
        self, container_id: int, names: Collection[str]
    ) -> dict[str, list[ChunkRecord]]:
        """The chunks in each of the objects; none of a container that has stopped.

        Raises TierUnavailableError, DataCorruptionError.
        """
        by_object: dict[str, list[ChunkRecord]] = {name: [] for name in names}
        container = self._containers[container_id]()
        if container is None:
            return by_object
        try:
            found = await container.chunks_in(by_object.keys())
        except TierUnavailableError:
            if self._containers[container_id]() is None:
                return by_object
            raise
        for chunks in found.values():
            for chunk in chunks:
                by_object[chunk.object_name].append(chunk)
        return by_object

    def _count(self, checked: ObjectCheck | BaseException | None) -> None:
        current = self.state.current
        if isinstance(checked, ObjectCheck):
            current.objects += 1
            current.blocks += checked.blocks
            current.bytes_read += checked.bytes_read
            current.add(checked.findings)
        else:
            current.passed_over += 1

    async def _check_object(
        self, container_id: int, name: str, chunks: Sequence[ChunkRecord] | None
    ) -> ObjectCheck | None:
        """Check one object; None if it is missing from the metadata. `chunks` None: not known."""
        try:
            return await self._check_twice(container_id, name, chunks)
        except DataCorruptionError as error:
            # What should be in it is not known.
            detail = f"{error.where}: {error.detail}"
            return ObjectCheck([harmful("catalog", f"object {name}", detail)], 0, 0)
        except StorageUnavailableError as error:
            if not await self._refuses_one(container_id, name, error):
                raise
            if self._record(container_id, name) is None:
                return None
            return ObjectCheck([unknown("unreadable", f"object {name}", str(error))], 0, 0)

    async def _check_twice(
        self, container_id: int, name: str, chunks: Sequence[ChunkRecord] | None
    ) -> ObjectCheck | None:
        if chunks is None:
            chunks = (await self._chunks_in(container_id, [name]))[name]
        checked = await self._check(container_id, name, chunks)
        if checked is None:
            return None
        if checked.blocks:
            self._witness = name
        if not checked.findings:
            return checked
        # Merges, truncations and consolidation may have moved its chunks since they were gathered.
        fresh = (await self._chunks_in(container_id, [name]))[name]
        return await self._check(container_id, name, fresh)

    async def _refuses_one(
        self, container_id: int, name: str, error: StorageUnavailableError
    ) -> bool:
        """Whether the store refuses this object until a person changes something, and not all of
        them: another object is given. Expired credentials are refused like a locked object.
        """
        if not isinstance(error, StorageRefusedError) and error.kind not in _REFUSALS:
            return False
        container = self._containers[container_id]()
        # Names of one epoch lie together: those of the last one are the least likely in an archive.
        metadata = container.metadata if container is not None else None
        newest = sorted(metadata.objects)[-WITNESSES_MAX:] if metadata is not None else []
        for witness in (self._witness, *reversed(newest)):
            if witness is None or witness == name:
                continue
            await self._limiter.acquire(PIECE_BYTES_MIN)
            try:
                await self._storage.get_range(witness, 0, 1)
            except ObjectStorageError:
                continue
            self._witness = witness
            return True
        return False

    async def _check(
        self, container_id: int, name: str, chunks: Sequence[ChunkRecord]
    ) -> ObjectCheck | None:
        record = self._record(container_id, name)
        if record is None:
            return None
        checked = await check_object(
            self._storage,
            container_id,
            record,
            chunks,
            piece_bytes=piece_bytes(self._limiter.bytes_per_s),
            executor=self._executor,
            pace=self._limiter.acquire,
        )
        return checked if self._record(container_id, name) is not None else None

    def _record(self, container_id: int, name: str) -> ObjectRecord | None:
        container = self._containers[container_id]()
        metadata = container.metadata if container is not None else None
        live = metadata.objects.get(name) if metadata is not None else None
        return live.record if live is not None else None


def _batches(metadata: ContainerMetadata, names: Sequence[str]) -> Iterator[Sequence[str]]:
    """The names in their order, few at once, with few living chunks as of when it is asked."""
    batch: list[str] = []
    chunks = 0
    for name in names:
        live = metadata.objects.get(name)
        more = live.live_chunks if live is not None else 0
        if batch and (len(batch) == OBJECTS_IN_BATCH or chunks + more > CHUNKS_IN_BATCH):
            yield batch
            batch, chunks = [], 0
        batch.append(name)
        chunks += more
    if batch:
        yield batch


def _size(metadata: ContainerMetadata, name: str) -> int:
    live = metadata.objects.get(name)
    return live.record.size if live is not None else 0
