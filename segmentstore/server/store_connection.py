"""StoreCommands: what one connection asks by commands of our own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from segmentstore.contracts.errors import AccessRefusedError
from segmentstore.server.outstanding import OutstandingShare, ignore
from segmentstore.server.server_context import ServerContext
from segmentstore.server.store_appends import StoreAppend, StoreAppends
from segmentstore.server.store_listings import StoreListings
from segmentstore.server.store_requests import STORE_HANDLERS
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import Command
from segmentstore.wire.fields import FRAME_BYTES_MAX
from segmentstore.wire.store_commands import (
    AppendBytes,
    AppendEvents,
    BeginListing,
    CancelRead,
    CloseListing,
    CloseWriter,
    ContinueListing,
    OpenWriter,
)
from segmentstore.wire.store_documents import refused
from segmentstore.wire.store_formats import STORE_REQUESTS

STORE_APPENDS: Final = frozenset({AppendBytes, AppendEvents})
STORE_KINDS: Final = frozenset(layout.kind for layout in STORE_REQUESTS.values())
_UNANSWERED: Final = frozenset({CancelRead, CloseListing, CloseWriter})
_FRAME_ROOM: Final = 64 * 1024
"""Of an append besides its data."""


class StoreCommands:
    """Those of one connection. `write` sends bytes; `cancel_read` is given a request's id."""

    def __init__(
        self,
        context: ServerContext,
        share: OutstandingShare,
        write: Callable[[bytes], None],
        cancel_read: Callable[[int], None],
        *,
        needs_token: bool,
    ) -> None:
        """`needs_token`: every request is refused, as no token allows it."""
        self._context = context
        self._write = write
        self._cancel_read = cancel_read
        self._needs_token = needs_token
        self._appends = StoreAppends(context, share, self._send_soon)
        self._listings = StoreListings(context)
        self._due: list[bytes] = []
        """Replies of this turn of the loop."""

    @property
    def frame_bytes_max(self) -> int:
        """Bytes of the longest frame, header included."""
        return max(FRAME_BYTES_MAX, self._context.store.config.append_bytes_max + _FRAME_ROOM)

    def append(self, command: StoreAppend, *, has_room: bool) -> asyncio.Future[None] | None:
        """As `StoreAppends.append`."""
        if self._needs_token:
            self._send_soon(refused(command.request_id, _no_token()))
            return None
        return self._appends.append(command, has_room=has_room)

    def begin(self, command: Any) -> Coroutine[Any, Any, Command] | None:
        """What carries out any other request and gives its reply; None if it needs nothing more."""
        if self._needs_token:
            if type(command) not in _UNANSWERED:
                self._send_soon(refused(command.request_id, _no_token()))
            return None
        if type(command) is CloseWriter:
            self._appends.close_writer(command)
            return None
        if type(command) is CancelRead:
            self._cancel_read(command.request_id)
            return None
        if type(command) is CloseListing:
            self._listings.end(command)
            return None
        if type(command) is OpenWriter:
            return self._appends.open_writer(command)
        if type(command) is BeginListing:
            return self._listings.begin(command)
        if type(command) is ContinueListing:
            return self._listings.resume(command)
        return STORE_HANDLERS[type(command)](self._context, command)

    def _send_soon(self, reply: Command) -> None:
        """Send a reply at the end of this turn of the loop, with the others of it."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._send_due)
        self._due.append(encode(reply))

    def _send_due(self) -> None:
        due, self._due = self._due, []
        self._write(b"".join(due))

    def close(self) -> None:
        """The connection has ended: release what it has begun."""
        self._listings.close()
        self._appends.close()
        self._write = self._cancel_read = ignore

    async def quiet(self) -> None:
        """Wait until no append is on its way."""
        await self._appends.quiet()


def _no_token() -> AccessRefusedError:
    return AccessRefusedError("no token of this port allows commands of the store's own")
