"""Scrub: a walk through every object the log says is live, block by block, that can be stopped and
continued.

Rules of this file:

- the order is by container, then by object name; the position is moved on only when everything up
  to it was checked;
- an object that is missing from the metadata when it is reached, or while it is read, is passed
  over: nobody wants it;
- anything found is checked once more with the chunks as they are then: the metadata of an open
  store move on;
- a store that does not answer is never taken for corruption: the walk ends with
  StorageUnavailableError, and goes on from its position when it is run again;
- one object that the store refuses, while it gives others, is a finding, and holds up no other: the
  next pass asks for it again;
- bytes are asked for at a bounded rate, and large metadata are processed in turns with the rest
  of the loop.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Final

from recovery.block_check import ObjectCheck, check_object
from recovery.scrub_state import ScrubPosition, ScrubState
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.findings import unknown
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

CHUNKS_PER_TURN = 10_000
"""Chunks processed before the event loop gets a turn."""
PIECE_BYTES_MIN = 64 * 1024
WITNESSES_MAX: Final = 4
"""Objects asked for a byte before a refusal is taken for that of one object."""
_REFUSALS: Final = frozenset(("EACCES", "EPERM", "EIO"))
"""Kinds by which a folder refuses one file until a person changes something."""

Live = Callable[[], ContainerMetadata | None]
"""The metadata of a container as they are now; None while it does not serve."""


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

        Raises StorageUnavailableError.
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
        live = self._containers[container_id]
        metadata = live()
        if metadata is None:
            return
        current = self.state.current
        names = sorted(metadata.objects)
        if current.position is not None and current.position.container_id == container_id:
            names = names[bisect_right(names, current.position.object_name) :]
        chunks = await _chunks_by_object(metadata)
        self.objects_left = len(names)
        self.bytes_left = sum(_size(metadata, name) for name in names)
        remaining = iter(names)
        while group := list(islice(remaining, self._at_once)):
            sizes = sum(_size(metadata, name) for name in group)
            checked = await gather_outcomes(
                *(self._check_object(container_id, name, chunks.pop(name, [])) for name in group),
                name="scrub object",
            )
            for each in checked:
                if isinstance(each, BaseException):
                    raise each
            if live() is None:
                # It has stopped: its objects are not missing, and what was passed over for that is
                # still to come.
                return
            for each in checked:
                self._count(each)
            current.position = ScrubPosition(container_id, group[-1])
            self.objects_left -= len(group)
            self.bytes_left = max(0, self.bytes_left - sizes)
            await self._moved_on()

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
        self, container_id: int, name: str, chunks: Sequence[ChunkRecord]
    ) -> ObjectCheck | None:
        """Check one object; None if it is missing from the metadata."""
        try:
            return await self._check_twice(container_id, name, chunks)
        except StorageUnavailableError as error:
            if not await self._refuses_one(container_id, name, error):
                raise
            if self._record(container_id, name) is None:
                return None
            return ObjectCheck([unknown("unreadable", f"object {name}", str(error))], 0, 0)

    async def _check_twice(
        self, container_id: int, name: str, chunks: Sequence[ChunkRecord]
    ) -> ObjectCheck | None:
        checked = await self._check(container_id, name, chunks)
        if checked is None:
            return None
        if checked.blocks:
            self._witness = name
        if not checked.findings:
            return checked
        metadata = self._containers[container_id]()
        if metadata is None:
            return None
        # Merges, truncations and consolidation may have moved its chunks since they were gathered.
        fresh = [
            chunk
            for segment in metadata.segments.values()
            for chunk in segment.chunks
            if chunk.object_name == name
        ]
        return await self._check(container_id, name, fresh)

    async def _refuses_one(
        self, container_id: int, name: str, error: StorageUnavailableError
    ) -> bool:
        """Whether the store refuses this object until a person changes something, and not all of
        them: another object is given. Expired credentials are refused like a locked object.
        """
        if not isinstance(error, StorageRefusedError) and error.kind not in _REFUSALS:
            return False
        metadata = self._containers[container_id]()
        # Names of one epoch lie together: those of the last one are the least likely in an archive.
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
        metadata = self._containers[container_id]()
        live = metadata.objects.get(name) if metadata is not None else None
        return live.record if live is not None else None


async def _chunks_by_object(metadata: ContainerMetadata) -> dict[str, list[ChunkRecord]]:
    """Every chunk under its object, gathered in turns with the rest of the loop: of no single
    moment.
    """
    result: dict[str, list[ChunkRecord]] = defaultdict(list)
    gathered = 0
    for segment in list(metadata.segments.values()):
        for chunk in segment.chunks:
            result[chunk.object_name].append(chunk)
        gathered += 1 + len(segment.chunks)
        if gathered >= CHUNKS_PER_TURN:
            gathered = 0
            await asyncio.sleep(0)
    return result


def _size(metadata: ContainerMetadata, name: str) -> int:
    live = metadata.objects.get(name)
    return live.record.size if live is not None else 0
