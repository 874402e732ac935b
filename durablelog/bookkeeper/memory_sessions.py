"""Sessions of the clients of nodes in memory, as the service sees them, and what hangs on them.

Rules of this file:

- a session whose process says nothing ends SESSION_S after that is seen first. It is seen at each
  call of any client, and in intervals while a client watches a node;
- a client whose session has ended gets another one by itself, with what it holds, unless its
  process is silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

SESSION_S: Final = 10.0
"""How long a session is kept of a process that says nothing any more, from when that is seen first.

Loop time.
"""
CHECK_S: Final = 1.0
"""From one check of the sessions to the next."""


class NodeSession:
    """A client's, as the service sees it.

    `silent` says whether its process has stopped, or is dead.
    """

    def __init__(self, silent: Callable[[], bool]) -> None:
        self.ended = False
        self._silent = silent
        self._silent_since: float | None = None

    def expired(self, now: float) -> bool:
        """Whether the service has given it up. A process that speaks again before is in time."""
        if not self.ended and not self._silent():
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        self.ended = self.ended or (
            self._silent_since is not None and now - self._silent_since >= SESSION_S
        )
        return self.ended


class SessionTree(Protocol):
    """What sessions need of the tree."""

    def hold(self, path: str, data: bytes, session: NodeSession) -> None: ...
    def enter(self, path: str, prefix: str, data: bytes, session: NodeSession) -> None: ...
    def drop(self, path: str) -> None: ...
    def expire(self, now: float) -> None: ...


class HeldNodes:
    """What one client holds, in whatever session it has. `silent` as in NodeSession; `renewed` is
    called when it has another one.
    """

    def __init__(
        self, tree: SessionTree, silent: Callable[[], bool], renewed: Callable[[], None]
    ) -> None:
        self._tree = tree
        self._silent = silent
        self._renewed = renewed
        self._session = NodeSession(silent)
        self._held: dict[str, bytes] = {}

    def hold(self, path: str, data: bytes) -> None:
        """Have it, in the session of now."""
        self._held[path] = data
        self._tree.hold(path, data, self._session)

    def enter(self, path: str, prefix: str, data: bytes) -> None:
        """Create a numbered node that goes with the session of now, and is in no later one."""
        self._tree.enter(path, prefix, data, self._session)

    def release(self, path: str) -> None:
        """Remove it."""
        self._held.pop(path, None)
        self._tree.drop(path)

    def expire_sessions(self, now: float) -> None:
        """A call comes at this loop time: sessions that are over end; of ours that one another
        begins, with what we hold.
        """
        self._tree.expire(now)
        if self._session.expired(now):
            self._session = NodeSession(self._silent)
            for path, data in self._held.items():
                self._tree.hold(path, data, self._session)
            self._renewed()

    def lose_session(self, now: float) -> None:
        """The service ends it at this loop time, whatever the process does."""
        self._session.ended = True
        self._tree.expire(now)

    def end(self, now: float) -> None:
        """In order, unless the process is dead."""
        self.abandon()
        self._tree.expire(now)

    def abandon(self) -> None:
        """As `end`; the next check sees it."""
        self._session.ended = not self._silent()


class SessionChecks:
    """Calls `check` every CHECK_S on the running loop, from `begin` until it is False, or `end`.

    Without it a client that only watches would see no session expire.
    """

    def __init__(self, check: Callable[[], bool]) -> None:
        self._check = check
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Idempotent."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._run)

    def end(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer = None
        if self._check():
            self.begin()
