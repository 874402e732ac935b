"""StoreListings: the listings that one connection has begun and not ended.

A part is made when it is asked for, and is bounded in rows and bytes. Between two parts a listing
costs memory for a portion at most, so a client may take any time; the report of a collection is all
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final

from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.contracts.findings import Finding
from segmentstore.contracts.reports import GarbageItem, OffloadReport, RemovedParts
from segmentstore.server.server_context import ServerContext
from segmentstore.service import SegmentStore
from segmentstore.wire.store_commands import (
    BeginListing,
    CloseListing,
    ContinueListing,
    RowsGiven,
)
from segmentstore.wire.store_documents import (
    ARCHIVED,
    BLOCKS,
    COLLECTED,
    FRAMES,
    GARBAGE,
    OFFLOADED,
    OPERATIONS,
    REMOVED,
    decode_numbers_or_none,
    encode_document,
)

LISTINGS_MAX: Final = 4
"""Of one connection."""
ROWS_OF_A_PART: Final = 512
PART_BYTES: Final = 256 * 1024
"""A part ends with the row that reaches this."""
ROWS_OF_A_TURN: Final = 64
"""Made and encoded without letting others run: about a millisecond."""


async def _collected(store: SegmentStore) -> AsyncGenerator[GarbageItem | Finding, None]:
    report = await store.collect_garbage()
    for item in report.items:
        yield item
    for finding in report.findings:
        yield finding


async def _offloaded(
    store: SegmentStore, chosen: str | None
) -> AsyncGenerator[OffloadReport, None]:
    for report in await store.offload_prefix(*decode_numbers_or_none(chosen)):
        yield report


async def _removed(store: SegmentStore, chosen: str | None) -> AsyncGenerator[RemovedParts, None]:
    before, container = decode_numbers_or_none(chosen)
    # Refused where they are checked, if they are missing.
    yield await store.remove_archived_parts(before, container)  # type: ignore[arg-type]


_LISTINGS: Final[dict[str, Callable[[SegmentStore, str | None], AsyncGenerator[Any, None]]]] = {
    FRAMES: lambda store, _: store.list_frames(),
    OPERATIONS: lambda store, _: store.list_operations(),
    BLOCKS: SegmentStore.list_blocks,
    GARBAGE: lambda store, _: store.find_garbage(),
    COLLECTED: lambda store, _: _collected(store),
    ARCHIVED: lambda store, _: store.list_archived_parts(),
    OFFLOADED: _offloaded,
    REMOVED: _removed,
}


class StoreListings:
    """Those of one connection."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._listings: dict[int, _Listing] = {}

    def begin(self, command: BeginListing) -> Coroutine[Any, Any, RowsGiven]:
        """What gives the first part of a new listing. Raises what the listing does, and
        InvalidArgumentError.

        Call it in the order of arrival. The listing counts from here on: an `end` in the same
        bytes comes before the first step of what is given, which then makes no part.
        """
        refusal = self._refusal(command)
        if refusal is not None:
            return _refused(refusal)
        rows = _LISTINGS[command.listing](self._context.store, command.segment or None)
        listing = self._listings[command.request_id] = _Listing(rows)
        return self._first(command, listing)

    def _refusal(self, command: BeginListing) -> InvalidArgumentError | None:
        if command.listing not in _LISTINGS:
            detail = f"it is one of {', '.join(_LISTINGS)}"
        elif len(self._listings) >= LISTINGS_MAX:
            detail = f"the connection has {LISTINGS_MAX} that have not ended: close one first"
        else:
            return None
        return InvalidArgumentError("listing", command.listing, detail)

    async def _first(self, command: BeginListing, listing: _Listing) -> RowsGiven:
        number = command.request_id
        if self._listings.get(number) is not listing:
            raise InvalidArgumentError("listing", number, "it has ended")
        return await self._next(number, number, listing)

    async def resume(self, command: ContinueListing) -> RowsGiven:
        """The next part of one. Raises InvalidArgumentError if there is none."""
        listing = self._listings.get(command.listing)
        if listing is None:
            raise InvalidArgumentError("listing", command.listing, "it has ended")
        return await self._next(command.request_id, command.listing, listing)

    def end(self, command: CloseListing) -> None:
        """Forget one."""
        listing = self._listings.pop(command.listing, None)
        if listing is not None:
            self._context.begin(listing.close(), "close listing")

    def close(self) -> None:
        """Forget all: the connection has ended."""
        listings, self._listings = self._listings, {}
        for listing in listings.values():
            self._context.begin(listing.close(), "close listing")

    async def _next(self, request_id: int, number: int, listing: _Listing) -> RowsGiven:
        more = False
        try:
            rows, more = await listing.part()
        finally:
            if not more and self._listings.get(number) is listing:
                del self._listings[number]
        return RowsGiven(request_id, more, rows)


async def _refused(refusal: InvalidArgumentError) -> RowsGiven:
    raise refusal


class _Listing:
    """One; its parts are made one after another."""

    def __init__(self, rows: AsyncGenerator[Any, None]) -> None:
        self._rows = rows
        self._lock = asyncio.Lock()

    async def part(self) -> tuple[bytes, bool]:
        """The next rows, and whether there may be more. At the end, or failed, it is closed."""
        async with self._lock:
            rows: list[bytes] = []
            size = 0
            try:
                async for row in self._rows:
                    rows.append(encode_document(row))
                    size += len(rows[-1])
                    if len(rows) >= ROWS_OF_A_PART or size >= PART_BYTES:
                        return _joined(rows), True
                    if not len(rows) % ROWS_OF_A_TURN:
                        await asyncio.sleep(0)
            except BaseException:
                await self._rows.aclose()
                raise
            return _joined(rows), False

    async def close(self) -> None:
        """Release what it holds."""
        async with self._lock:
            await self._rows.aclose()


def _joined(rows: list[bytes]) -> bytes:
    return b"[%s]" % b",".join(rows)
