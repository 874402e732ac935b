"""A counter that counts every increment exactly once, however often a client sends it and whenever
the service dies.

All it keeps is one segment: an increment is an event of eight bytes, written by its client's
exactly-once writer; the count is the sum of all events. So a crash needs no repair: the process
that opens the store reads the segment, and has the count. Rules of the protocol:

- a client has an id of its own and numbers its increments 0, 1, 2, ...;
- it sends the next one when the last is acknowledged, and the same one again, to the current
  server, when it is not;
- `increment` raises what the store raises: it may have been counted or not, and sending it again is
  always right.
"""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING, Final, Self

from segmentstore.contracts.errors import SegmentExistsError

if TYPE_CHECKING:
    from segmentstore import SegmentStore

SEGMENT: Final = "counter"
_INCREMENT: Final = struct.Struct(">q")


class CounterService:
    """The service, on an open store. `count` is the sum of all acknowledged increments."""

    def __init__(self, store: SegmentStore) -> None:
        self.store = store
        self.count = 0

    @classmethod
    async def start(cls, store: SegmentStore) -> Self:
        """Make the counter if there is none, else read it. Linear in its length."""
        try:
            await store.create_segment(SEGMENT)
        except SegmentExistsError:
            pass  # from an earlier process run
        service = cls(store)
        rest = b""
        async for piece in store.reader(SEGMENT):
            rest += piece
            whole = len(rest) // _INCREMENT.size * _INCREMENT.size
            service.count += sum(amount for (amount,) in _INCREMENT.iter_unpack(rest[:whole]))
            rest = rest[whole:]
        return service

    async def increment(self, client: uuid.UUID, number: int, amount: int) -> None:
        """Count increment `number` of a client: durable, and counted once, when this returns."""
        async with self.store.writer(SEGMENT, client) as writer:
            offset = await writer.append(_INCREMENT.pack(amount), number)
        if offset is not None:
            self.count += amount

    async def last_number(self, client: uuid.UUID) -> int:
        """The last increment of this client that was counted; -1 for none.

        A client that forgot everything asks.
        """
        async with self.store.writer(SEGMENT, client) as writer:
            return writer.last_event_number
