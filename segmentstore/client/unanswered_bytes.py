"""UnansweredBytes: a bound for what a client has taken of its program and has no answer to."""

from __future__ import annotations

from segmentstore.client.client_connection import UNANSWERED_BYTES_MAX
from segmentstore.contracts.errors import TierUnavailableError


class UnansweredBytes:
    """Of all appends and events of one client, sent or not.

    No connection ever has more, so none refuses an append for want of room.
    """

    def __init__(self) -> None:
        self._bytes = 0

    def take(self, size: int) -> None:
        """Raises TierUnavailableError if that is too much; one that is larger goes alone."""
        if self._bytes and self._bytes + size > UNANSWERED_BYTES_MAX:
            detail = f"{self._bytes} bytes wait for the store already"
            raise TierUnavailableError("tier1", detail)
        self._bytes += size

    def give_back(self, size: int) -> None:
        """So much is answered."""
        self._bytes -= size
