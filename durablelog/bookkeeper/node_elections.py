"""NodeElections: one client's candidacies, by the recipe of ZooKeeper and of kazoo's `Lock`.

A candidate has a node below the election's, `<token>__lock__<sequence>`, which goes with its
session. The one with the lowest sequence number leads. Each of the others watches the one before
it, so that an end wakes one candidate and not all. The names are those of kazoo's `Lock`: it and we
see each other's candidates. It is not used here, for it blocks a thread while another leads.

Rules of this file:

- a candidate knows its node by the token, which is drawn anew for each candidacy: a create whose
  reply was lost is not repeated;
- the leader watches its own node. A node that is missing went with its session: the candidate goes
  to the end of the row;
- what was asked for while there was no connection, or before it was lost, makes no candidate a
  leader;
- a candidacy that is withdrawn ends when its nodes are deleted, or with the client. So does one
  that was refused: a node without a candidate would stop the election.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from durablelog.bookkeeper.metadata_node import (
    NodeConflictError,
    NodeRefusedError,
    NodeUnavailableError,
    NodeWatch,
)
from durablelog.bookkeeper.waiting import pause
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.owned_tasks import own_task

_log = logging.getLogger(__name__)

AGAIN_MIN_S: Final = 0.1
AGAIN_MAX_S: Final = 5.0
_MARK: Final = "__lock__"
_PLACE: Final = re.compile(rf"{_MARK}(\d{{10}})$")
_NOT_DONE: Final = (NodeUnavailableError, NodeRefusedError, NodeConflictError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionCalls:
    """What an election asks of its client. They raise the node errors."""

    enter: Callable[[str, str, bytes], Awaitable[None]]
    """Create a node below this one that goes with the session: its name begins as given, and ends
    with the next number of its parent, 10 digits. Parents as needed.
    """
    children: Callable[[str], Awaitable[Sequence[str]]]
    remove: Callable[[str], Awaitable[None]]
    """In whatever version it is; nothing happens if it is missing."""
    watch: Callable[[str, Callable[[], object]], NodeWatch]


def candidates(names: Iterable[str]) -> list[str]:
    """Those of an election's children that are candidates, the leader first."""
    places = [(place[1], name) for name in names if (place := _PLACE.search(name))]
    return [name for _, name in sorted(places)]


class NodeElections:
    """Of one client, on its loop."""

    def __init__(self, calls: ElectionCalls, rng: random.Random) -> None:
        self._calls = calls
        self._rng = rng
        self._candidacies: dict[str, _Candidacy] = {}
        """By the election's node."""
        self._leaving: set[_Candidacy] = set()
        self._closed = False

    async def lead(
        self, path: str, identity: str, ended: Callable[[], object] | None = None
    ) -> None:
        """As MetadataNodes.lead."""
        if not path.startswith("/"):
            raise ValueError(f"{path!r}: a path begins with /")
        if self._closed:
            raise NodeUnavailableError(path, "the session is closed")
        candidacy = self._candidacies.get(path)
        if candidacy is None:
            candidacy = _Candidacy(self._calls, path, identity, self._rng)
            self._candidacies[path] = candidacy
            candidacy.begin()
        elif candidacy.identity != identity or candidacy.awaited:
            raise ValueError(f"{path}: this client is a candidate already")
        try:
            await candidacy.until_first(ended)
        except (asyncio.CancelledError, NodeRefusedError):
            self._withdraw(candidacy)
            raise

    def leads(self, path: str) -> bool:
        """As MetadataNodes.leads."""
        candidacy = self._candidacies.get(path)
        return candidacy is not None and candidacy.leads

    async def resign(self, path: str) -> None:
        """As MetadataNodes.resign."""
        if path in self._candidacies:
            self._withdraw(self._candidacies[path])
        for candidacy in [each for each in self._leaving if each.path == path]:
            await candidacy.left()

    def disconnected(self) -> None:
        """The connection is lost: whether the session lives cannot be known."""
        for candidacy in self._candidacies.values():
            candidacy.disconnected()

    async def close(self) -> None:
        """End all candidacies; their nodes go with the session. Idempotent."""
        self._closed = True
        candidacies = {*self._candidacies.values(), *self._leaving}
        self._candidacies.clear()
        for candidacy in candidacies:
            await candidacy.close()

    def _withdraw(self, candidacy: _Candidacy) -> None:
        if self._candidacies.get(candidacy.path) is not candidacy:
            return
        del self._candidacies[candidacy.path]
        self._leaving.add(candidacy)
        candidacy.withdraw(lambda: self._leaving.discard(candidacy))


class _Candidacy:
    """Of one client in one election, from `lead` to `resign`."""

    def __init__(self, calls: ElectionCalls, path: str, identity: str, rng: random.Random) -> None:
        self.path = path
        self.identity = identity
        self.leads = False
        """From the return of `until_first` until `ended` is due."""
        self._calls = calls
        self._rng = rng
        self._token = f"{rng.getrandbits(128):032x}"
        self._news = asyncio.Event()
        self._first = False
        self._waiter: asyncio.Future[None] | None = None
        self._ended: Callable[[], object] | None = None
        self._stopped = ""
        """Why: withdrawn, or closed."""
        self._cuts = 0
        """Connections lost so far."""
        self._watch: NodeWatch | None = None
        self._watched = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def awaited(self) -> bool:
        """True while `until_first` waits."""
        return self._waiter is not None

    def begin(self) -> None:
        self._task = own_task(self._run(), name="election", on_failure=self._fail)

    async def until_first(self, ended: Callable[[], object] | None) -> None:
        """Return when we lead."""
        self._ended = ended
        self._news.set()
        loop = asyncio.get_running_loop()
        while not self._first:
            if self._stopped:
                raise NodeUnavailableError(self.path, self._stopped)
            self._waiter = loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self.leads = True

    def disconnected(self) -> None:
        self._cuts += 1
        self._end()

    def withdraw(self, left: Callable[[], object]) -> None:
        """Begin to leave; `left` is called when that is over."""
        assert self._task is not None
        self._stop("the candidate resigned")
        self._news.set()
        self._task.add_done_callback(lambda _: left())

    async def left(self) -> None:
        """Return when our nodes are deleted. Raises NodeUnavailableError if the client is closed
        first.
        """
        assert self._task is not None
        await asyncio.wait((self._task,))
        if self._task.cancelled():
            raise NodeUnavailableError(self.path, "the session is closed")
        self._task.result()

    async def close(self) -> None:
        assert self._task is not None
        self._stop("the session is closed")
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        backoff = Backoff(self._rng, min_s=AGAIN_MIN_S, max_s=AGAIN_MAX_S)
        while not self._stopped:
            self._news.clear()
            try:
                await self._find_place()
            except _NOT_DONE as error:
                self._not_done("is no candidate yet", error)
                if isinstance(error, NodeRefusedError):
                    self._end()
                    self._fail(error)
                await pause(self._news, backoff.next_s())
            else:
                backoff.reset()
                await self._news.wait()
        await self._leave()

    async def _find_place(self) -> None:
        cuts = self._cuts
        names = candidates(await self._calls.children(self.path))
        place = self._place(names)
        if place is None and not self._stopped:
            self._end()
            await self._calls.enter(self.path, self._token + _MARK, self.identity.encode())
            names = candidates(await self._calls.children(self.path))
            place = self._place(names)
        if self._stopped:
            return
        if place is None:
            raise NodeUnavailableError(self.path, "the node of the candidate is missing again")
        self._watch_node(names[max(place - 1, 0)])
        if cuts != self._cuts:
            raise NodeUnavailableError(self.path, "the connection was lost meanwhile")
        if place:
            self._end()
        elif not self._first:
            self._first = True
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    async def _leave(self) -> None:
        """Delete what we have there; again, until it succeeds."""
        backoff = Backoff(self._rng, min_s=AGAIN_MIN_S, max_s=AGAIN_MAX_S)
        while True:
            try:
                for name in await self._calls.children(self.path):
                    if name.startswith(self._token):
                        await self._calls.remove(f"{self.path}/{name}")
            except _NOT_DONE as error:
                self._not_done("has not resigned yet", error)
                await asyncio.sleep(backoff.next_s())
            else:
                return

    def _place(self, names: Sequence[str]) -> int | None:
        places = (place for place, name in enumerate(names) if name.startswith(self._token))
        return next(places, None)

    def _watch_node(self, name: str) -> None:
        if name == self._watched:
            return
        if self._watch is not None:
            self._watch.cancel()
        self._watched = name
        self._watch = self._calls.watch(f"{self.path}/{name}", self._news.set)

    def _end(self) -> None:
        """We do not lead, or cannot know."""
        self._first = False
        if self.leads:
            self.leads = False
            if self._ended is not None:
                asyncio.get_running_loop().call_soon(self._report, self._ended)

    def _report(self, ended: Callable[[], object]) -> None:
        if not self._stopped:
            ended()

    def _stop(self, reason: str) -> None:
        self._stopped = reason
        self._first = self.leads = False
        if self._watch is not None:
            self._watch.cancel()
        self._fail(NodeUnavailableError(self.path, reason))

    def _not_done(self, what: str, error: Exception) -> None:
        level = logging.WARNING if isinstance(error, NodeRefusedError) else logging.INFO
        _log.log(level, "%s: %s %s: %s", self.path, self.identity, what, error)

    def _fail(self, error: BaseException) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
