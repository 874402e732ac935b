"""BlockWriter: appends of blocks of events by one writer, as a server of Pravega's clients needs
them.

A block is known by the number of its last event, and a client that connects again cuts the same
events into other blocks. So a block goes in only if the writer's number in the segment is that of
the block before it. A check for a greater number would store events twice
(docs/decisions/0063-blocks-of-events.md).
"""

from __future__ import annotations

import asyncio
import uuid
from threading import get_ident
from typing import Final

from segmentstore.arguments import check_loop, failed_future
from segmentstore.container import SegmentContainer
from segmentstore.contracts import forks
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, UpdateType
from segmentstore.contracts.errors import AppendTooLargeError, SegmentStoreError
from segmentstore.sessions import BoundSegment

_ACCUMULATE: Final = UpdateType.ACCUMULATE
_REPLACE_IF_EQUALS: Final = UpdateType.REPLACE_IF_EQUALS


class BlockWriter:
    """Blocks of one writer of one segment. Made by `SegmentStore.block_writer`.

    It has no state between two appends, and no refusal ends it: the number in the segment decides.
    It stays with its segment when another one gets the name.
    """

    def __init__(
        self,
        container: SegmentContainer,
        name: str,
        writer_id: uuid.UUID,
        count_id: uuid.UUID,
        append_bytes_max: int,
    ) -> None:
        self._container = container
        self._name = name
        self._bound = BoundSegment(container, name)
        self._key = writer_id.bytes
        self._count_key = count_id.bytes
        self._append_bytes_max = append_bytes_max
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._birth = forks.Birth()

    async def last_number(self) -> int:
        """The writer's number in the segment, as far as it is durable; ATTRIBUTE_UNSET for none.

        Also of a sealed segment. Brings into memory what the next append needs. Raises
        SegmentNotFoundError, TooManyActiveSegmentsError, TierUnavailableError, DataCorruptionError.
        """
        check_loop(self._loop, self._birth)
        async with self._bound.segment() as segment:
            keys = (self._key, self._count_key)
            found = await self._container.attributes(segment, keys)
        return found.get(self._key, ATTRIBUTE_UNSET)

    def append(
        self,
        data: bytes,
        number: int,
        previous: int,
        event_count: int,
        expected_offset: int | None = None,
    ) -> asyncio.Future[int]:
        """Append a block of `event_count` events up to `number`; gives its offset once durable.

        Enqueued by the call. It goes in only if the writer's number is `previous`, what is on its
        way included (ATTRIBUTE_UNSET: there is none). Then it does only at `expected_offset`. The
        caller has checked the numbers: signed, of 64 bits. Do not cancel the future: later blocks
        would be refused. It raises as that of `SegmentStore.append`; BadAttributeUpdateError with
        the writer's id means another number, which it has in `current`.
        """
        # What `check_loop` finds out, without asking the operating system for the process's id.
        if (
            get_ident() != self._thread
            or self._birth.generation != forks.generation
            or not self._loop.is_running()
        ):
            check_loop(self._loop, self._birth)
            self._thread = get_ident()
        if len(data) > self._append_bytes_max:
            return failed_future(AppendTooLargeError(len(data), self._append_bytes_max))
        updates = (
            (self._key, _REPLACE_IF_EQUALS, number, previous),
            (self._count_key, _ACCUMULATE, event_count, None),
        )
        segment_id = self._bound.id
        key = self._name if segment_id is None else segment_id
        try:
            # The future has None only for events.
            return self._container.append(  # type: ignore[return-value]
                key, data, expected_offset, updates
            )
        except SegmentStoreError as error:
            return failed_future(error)

    def room(self, length: int) -> asyncio.Future[None] | None:
        """As `SegmentStore.room`, for `append`."""
        if length > self._append_bytes_max:
            return None
        return self._container.room(length)
