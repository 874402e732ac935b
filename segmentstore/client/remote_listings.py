"""Listings of a store in another process: its logs, what it has in Tier 2, its garbage."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from segmentstore.client.client_connection import ClientConnection
from segmentstore.wire.store_commands import BeginListing, CloseListing, ContinueListing, RowsGiven
from segmentstore.wire.store_documents import decode_rows


async def listed_rows(
    connection: ClientConnection, listing: str, segment: str = ""
) -> AsyncGenerator[Any, None]:
    """The rows, a part asked for when the one before has been taken.

    Raises what the store's listing does, StoreDisconnectedError, StoreClosedError.
    """
    number, more = connection.next_id(), True
    request: BeginListing | ContinueListing = BeginListing(number, listing, segment)
    try:
        while more:
            reply = await connection.ask(request, request.request_id, RowsGiven)
            for row in decode_rows(listing, reply.rows):
                yield row
            more = reply.more
            request = ContinueListing(connection.next_id(), number)
    finally:
        if more:
            connection.tell(CloseListing(number))
