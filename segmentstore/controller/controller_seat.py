"""ControllerSeat: the Controller of a cluster, at the host that serves the container of its rows.

Rules of this file:

- a *term* begins when that container serves here, and ends in the turn in which it does not any
  more. What the term has on its way is cancelled then: before the container can start here again,
  which takes several turns. So no Controller writes a row behind another one's;
- each term has a Controller of its own, which reads everything anew;
- calls that come to another host, or before the term has begun, go to the host that is to have the
  container by the assignment map. Any host answers every client.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import grpc

from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import describe
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.store_hosts import HostPlace
from segmentstore.contracts.waiting import outlast
from segmentstore.controller.authorization import Metadata
from segmentstore.controller.controller import Controller
from segmentstore.controller.controller_calls import CallCounts, CallEnd, ControllerCalls
from segmentstore.controller.controller_forwarding import FORWARDED, ControllerForwarding
from segmentstore.controller.method_types import ControllerMethod
from segmentstore.published_hosts import PublishedAddress
from segmentstore.stats_types import ControllerStats

_log = logging.getLogger(__name__)

_AGAIN_S_MIN: Final = 0.1
_AGAIN_S_MAX: Final = 5.0


class TermParts(NamedTuple):
    """What a term has."""

    controller: Controller
    calls: ControllerCalls
    close: Callable[[], Awaitable[None]]
    """Closes its connections to other hosts, which fails what waits for them."""


class _Term:
    """One Controller, from the start of its container to the stop."""

    def __init__(
        self, make: Callable[[], TermParts], before: asyncio.Task[None] | None, rng: random.Random
    ) -> None:
        self._make = make
        self._rng = rng
        self._parts: TermParts | None = None
        self.calls: ControllerCalls | None = None
        """Once it has begun."""
        self.trouble: str | None = None
        self._ended = False
        self.task = own_task(self._run(before), name="controller-term")

    def end(self) -> None:
        """Begin nothing more, and cancel what is on its way; `task` ends when nothing is left."""
        self._ended, self.calls = True, None
        if self._parts is not None:
            self._parts.calls.cut_off()
            self._parts.controller.cut_off()
        self.task.cancel()

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await outlast(before)
        backoff = Backoff(self._rng, min_s=_AGAIN_S_MIN, max_s=_AGAIN_S_MAX)
        while not self._ended:
            self._parts = self._make()
            try:
                await self._parts.controller.start()
                self.calls, self.trouble = self._parts.calls, None
                await asyncio.get_running_loop().create_future()  # until it is cancelled
            except Exception as error:  # noqa: BLE001 - whatever it is, it is to start all the same
                self.trouble = f"controller: it does not start: {describe(error)}"
                _log.warning("%s", self.trouble)
            finally:
                self.calls = None
                await outlast(own_task(_release(self._parts), name="controller-term-end"))
            if not self._ended:
                await asyncio.sleep(backoff.next_s())


class ControllerSeat:
    """Answers the calls that come to one host; ended by `stop`."""

    def __init__(
        self,
        container: int,
        serves: Callable[[], bool],
        make: Callable[[], TermParts],
        owner: Callable[[], Awaitable[HostPlace | None]],
        trusted: Callable[[], bytes] | None,
        counts: CallCounts,
        rng: random.Random,
    ) -> None:
        """`serves` says whether the container serves here, `make` makes a term's parts, `owner`
        says which host is to have it. `trusted` is that of `ControllerForwarding`.
        """
        self._container = container
        self._serves = serves
        self._make = make
        self._owner = owner
        self._counts = counts
        self._rng = rng
        self._forwarding = ControllerForwarding(self._address, trusted)
        self._term: _Term | None = None
        self._last: asyncio.Task[None] | None = None
        """Of the last term that has ended, or is about to."""

    def begin(self) -> None:
        """The container serves here from now on."""
        self._term = _Term(self._make, self._last, self._rng)
        self._last = self._term.task

    def end(self) -> None:
        """It does not serve here any more. Idempotent."""
        term, self._term = self._term, None
        if term is not None:
            term.end()

    async def stop(self) -> None:
        """Answer no more calls, and wait for the end of what is on its way. Idempotent."""
        self.end()
        if self._last is not None:
            await outlast(self._last)
        await self._forwarding.close()

    async def answer(self, method: ControllerMethod, data: bytes, metadata: Metadata) -> bytes:
        calls = None if self._term is None else self._term.calls
        if calls is not None and self._serves():
            return await calls.answer(method, data, metadata)
        if any(name == FORWARDED for name, _ in metadata):
            raise self._unavailable("it is not served by the host that was asked")
        owner = await self._owner()
        if owner is None:
            raise self._unavailable("no host is known to serve it")
        if not owner.controller_port:
            raise self._unavailable(f"the host {owner.host_id} serves it without controller_port")
        to = PublishedAddress(owner.controller_host, owner.controller_port)
        self._counts.begun += 1
        return await self._forwarding.ask(to, method, data, metadata)

    def statistics(self) -> ControllerStats:
        """Those of the calls that came here. O(streams with transactions)."""
        if self._term is not None and self._term.calls is not None:
            return self._term.calls.statistics()
        return {
            "calls": self._counts.begun,
            "calls_in_flight": 0,
            "transactions_open": 0,
            "refusals": dict(self._counts.refusals),
        }

    def health(self) -> list[str]:
        """A sentence for what it cannot do so far."""
        if self._term is None:
            return []
        calls, trouble = self._term.calls, self._term.trouble
        return [*([trouble] if trouble else ()), *(calls.health() if calls is not None else ())]

    async def _address(self) -> PublishedAddress | None:
        owner = await self._owner()
        return owner and PublishedAddress(owner.controller_host, owner.controller_port)

    def _unavailable(self, why: str) -> CallEnd:
        return CallEnd(
            grpc.StatusCode.UNAVAILABLE,
            f"the Controller is with container {self._container}: {why}",
        )


async def _release(parts: TermParts) -> None:
    parts.controller.cut_off()
    parts.calls.cut_off()
    await parts.close()
    await parts.calls.stop()
    await parts.controller.stop()
