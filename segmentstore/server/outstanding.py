"""OutstandingBytes: how many bytes of appends connections may have on their way.

The rule is that of Pravega's store. A connection is read while all together have less than
`total_max`. It must have less than its free share too, or than twice what `shared_max` leaves. So
one connection alone may have much, and many have little each. Pure, but for the callback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MIB: Final = 1 << 20


class OutstandingBytes:
    """The account of one server. Everything O(1), but for waking those that wait."""

    def __init__(
        self, *, total_max: int = 512 * MIB, shared_max: int = 128 * MIB, free: int = MIB
    ) -> None:
        self._total_max = total_max
        self._shared_max = shared_max
        self._free = free
        self.total = 0
        self._waiting: dict[OutstandingShare, None] = {}

    def share(self, resume: Callable[[], None]) -> OutstandingShare:
        """An account of one connection; `resume()` is called when it may be read again."""
        return OutstandingShare(self, resume)

    def has_room(self, taken: int) -> bool:
        """Whether a connection that has `taken` bytes on their way may be read."""
        if self.total >= self._total_max:
            return False
        return taken < self._free or taken < 2 * (self._shared_max - self.total)

    def wait(self, share: OutstandingShare) -> None:
        """Have a share resumed once it has room."""
        self._waiting[share] = None

    def leave(self, share: OutstandingShare) -> None:
        """Nothing is to be resumed any more."""
        self._waiting.pop(share, None)

    def wake(self) -> None:
        """Resume those that have room again, in the order in which they began to wait."""
        for share in list(self._waiting):
            if self.total >= self._total_max:
                return
            if self.has_room(share.taken):
                del self._waiting[share]
                share.resume()

    @property
    def is_waited_for(self) -> bool:
        """Whether a connection is held back."""
        return bool(self._waiting)


class OutstandingShare:
    """What one connection has on its way."""

    __slots__ = ("_account", "resume", "taken")

    def __init__(self, account: OutstandingBytes, resume: Callable[[], None]) -> None:
        self._account = account
        self.resume = resume
        self.taken = 0

    def take(self, count: int) -> None:
        """So many bytes are on their way."""
        self.taken += count
        self._account.total += count

    def give_back(self, count: int) -> None:
        """So many bytes are done with."""
        self.taken -= count
        self._account.total -= count
        if self._account.is_waited_for:
            self._account.wake()

    def must_wait(self) -> bool:
        """Whether the connection is to be held back; it is resumed then."""
        if self._account.has_room(self.taken):
            return False
        self._account.wait(self)
        return True

    def close(self) -> None:
        """The connection is not read any more."""
        self._account.leave(self)
        self.resume = ignore


def ignore(*_: object) -> None:
    """Of a connection that has ended, in the place of its methods: with them its parts and it would
    be a cycle, which only the garbage collector frees.
    """
