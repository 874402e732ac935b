"""UnflushedReads: the bytes of an upload, all its blocks together (loop).

One upload has up to thousands of blocks, and several uploads are under way. Were each block read
when its turn comes, each that memory and cache have lost would cost a rescan of the whole
un-flushed log. So:

- a block that lies in memory is taken at once: nearly all are small ones, and do;
- what is known to be missing of the others is asked for, before anything is waited for;
- then what is held is taken, from memory and cache; what the cache turns out to have lost is asked
  for too;
- only then the rescan is waited for. What it did not bring is searched again, and requested once
  more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from readindex.cache_manager import CacheManager
from readindex.loader import CACHED_BLOCKS_PER_UPLOAD, Attempt, Loader, not_found_in_log
from readindex.log_rescanner import LogRescanner, Want
from readindex.places import Places
from readindex.segment_read_index import SegmentIndexes
from segmentstore.contracts.errors import (
    BadOffsetError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.metadata import ContainerMetadata

T = TypeVar("T")

BLOCKS_PER_TURN = 256
"""Blocks checked before the event loop gets a turn."""
BYTES_PER_TURN = 2 * 1024 * 1024
"""Of one block: some hundred pieces of 4 KiB and more each, small appends lie in larger ones."""

RemovedError = SegmentNotFoundError | SegmentTruncatedError
"""What becomes of a block whose segment has changed meanwhile."""


class _Stretch:
    """A part of a block: bytes in hand (`pieces`), on their way (`want`), or missing still."""

    __slots__ = ("end", "in_vain", "offset", "pieces", "want")

    def __init__(
        self,
        offset: int,
        end: int,
        *,
        pieces: list[bytes] | None = None,
        want: Want | None = None,
        in_vain: bool = False,
    ) -> None:
        self.offset = offset
        self.end = end
        self.pieces = pieces
        self.want = want
        self.in_vain = in_vain
        """A rescan has not found the first byte."""


class _Block:
    """Bytes of a segment that memory has not all of; `stretches` cover them in order."""

    __slots__ = ("name", "number", "removed", "segment_id", "stretches", "wants")

    def __init__(self, number: int, segment_id: int, offset: int, length: int) -> None:
        self.number = number
        """Among all that are read."""
        self.segment_id = segment_id
        self.name = str(segment_id)
        self.stretches = [_Stretch(offset, offset + length)]
        self.wants: list[Want] = []
        self.removed: RemovedError | None = None

    @property
    def answer(self) -> Sequence[bytes] | RemovedError:
        """The pieces of its bytes, if it is settled; or why there are none."""
        return self.removed or [
            piece for stretch in self.stretches for piece in stretch.pieces or ()
        ]

    @property
    def settled(self) -> bool:
        return self.removed is not None or all(
            stretch.pieces is not None for stretch in self.stretches
        )


class UnflushedReads:
    """Of one container."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        indexes: SegmentIndexes,
        cache_manager: CacheManager,
        places: Places,
        loader: Loader,
        log_rescanner: LogRescanner,
    ) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self._cache_manager = cache_manager
        self._places = places
        self._loader = loader
        self._log_rescanner = log_rescanner

    async def read(
        self, ranges: Sequence[tuple[int, int, int]]
    ) -> list[Sequence[bytes] | RemovedError]:
        """Answers `ReadIndex.read_unflushed`. Holds as much as the ranges are long."""
        answers: list[Sequence[bytes] | RemovedError] = []
        blocks: list[_Block] = []
        try:
            with self._log_rescanner.asking():
                async for each in _in_turns(ranges):
                    held = await self._in_memory(*each)
                    if held is None:
                        blocks.append(_Block(len(answers), *each))
                        self._ask(blocks[-1])
                    answers.append(held or ())
            unsettled = blocks
            while unsettled:
                left = await self._settle(unsettled, self._take_held)
                unsettled = await self._settle(left, self._take_wanted)
        finally:
            for block in blocks:
                if block.wants:
                    self._log_rescanner.abandon(block.wants)
        async for block in _in_turns(blocks):
            answers[block.number] = block.answer
        return answers

    async def _in_memory(self, segment_id: int, offset: int, length: int) -> Sequence[bytes] | None:
        """Exactly these bytes, in pieces, if memory has all of them under this id.

        None: a `_Block` finds them, or why there are none.
        """
        end, pieces = offset + length, list[bytes]()
        while offset < end:
            if pieces:
                await asyncio.sleep(0)
            some = self._pieces_in_memory(segment_id, offset, min(end - offset, BYTES_PER_TURN))
            if some is None:
                return None
            pieces += some
            offset += BYTES_PER_TURN
        return pieces

    def _pieces_in_memory(self, segment_id: int, offset: int, length: int) -> list[bytes] | None:
        segment = self._metadata.segments.get(segment_id)
        index = self._indexes.get(segment_id)
        if segment is None or index is None or offset < segment.start_offset or self._places.closed:
            return None
        pieces = index.memory_pieces(offset, length)
        return pieces if sum(map(len, pieces)) == length else None

    async def _settle(
        self, blocks: Sequence[_Block], take: Callable[[_Block], Awaitable[None]]
    ) -> list[_Block]:
        """Take what there is of the blocks; those that are not settled by that."""
        left: list[_Block] = []
        async for block in _in_turns(blocks):
            try:
                await take(block)
            except (SegmentNotFoundError, SegmentTruncatedError) as error:
                block.removed = error
            if not block.settled:
                left.append(block)
        return left

    def _ask(self, block: _Block) -> None:
        """Ask for what is known to be missing.

        The read of the rest reports that the segment is deleted.
        """
        segment = self._metadata.segments.get(block.segment_id)
        if segment is None:
            return
        (whole,) = block.stretches
        stretches: list[_Stretch] = []
        position = whole.offset
        for gap_start, gap_end in self._cache_manager.missing_ranges(segment):
            start, end = max(gap_start, position), min(gap_end, whole.end)
            if start < end:
                if position < start:
                    stretches.append(_Stretch(position, start))
                stretches.append(self._asked(block, start, block.segment_id, start, end - start))
                position = end
        if position < whole.end:
            stretches.append(_Stretch(position, whole.end))
        block.stretches = stretches

    def _asked(self, block: _Block, at: int, segment_id: int, offset: int, length: int) -> _Stretch:
        """The stretch of the block from `at` on, which lies at `offset` of a segment: itself, or
        one merged into it.
        """
        want = self._log_rescanner.register(segment_id, offset, length, keep=False)
        block.wants.append(want)
        return _Stretch(at, at + length, want=want)

    async def _take_held(self, block: _Block) -> None:
        stretches: list[_Stretch] = []
        for stretch in block.stretches:
            if stretch.pieces is None and stretch.want is None:
                stretches += await self._found(block, stretch)
            else:
                stretches.append(stretch)
        block.stretches = stretches

    async def _found(self, block: _Block, stretch: _Stretch) -> list[_Stretch]:
        found: list[_Stretch] = []
        offset, end = stretch.offset, stretch.end
        attempt = Attempt()
        while offset < end:
            segment = self._places.present(block.segment_id, offset, block.name)
            block.name = segment.name
            if end > segment.length:
                raise BadOffsetError(
                    segment.name,
                    end,
                    segment.length,
                    "un-flushed bytes were asked for beyond the end",
                )
            place = self._places.locate(segment, offset, end - offset)
            if place.is_missing:
                if stretch.in_vain and offset == stretch.offset:
                    raise not_found_in_log(place.segment, place.offset)
                found.append(
                    self._asked(
                        block, offset, place.segment.segment_id, place.offset, place.missing_length
                    )
                )
            else:
                pieces = (
                    []
                    if place.segment_index is None
                    else place.segment_index.memory_pieces(place.offset, place.length)
                )
                if not pieces:
                    loaded = await self._loader.load_pieces(
                        place, attempt, CACHED_BLOCKS_PER_UPLOAD
                    )
                    if loaded is None:
                        continue
                    pieces = loaded
                found.append(_Stretch(offset, offset + sum(map(len, pieces)), pieces=pieces))
            offset = found[-1].end
        return found

    async def _take_wanted(self, block: _Block) -> None:
        stretches: list[_Stretch] = []
        for stretch in block.stretches:
            want = stretch.want
            if want is None:
                stretches.append(stretch)
                continue
            await want.future
            reached = stretch.offset + want.position - want.offset
            if want.pieces:
                stretches.append(_Stretch(stretch.offset, reached, pieces=want.pieces))
            if reached < stretch.end:
                stretches.append(_Stretch(reached, stretch.end, in_vain=not want.pieces))
        block.stretches = stretches


async def _in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    for number, item in enumerate(items, start=1):
        yield item
        if number % BLOCKS_PER_TURN == 0:
            await asyncio.sleep(0)
