"""ClusterCalls: a call goes to the owner of its container, and follows it while that may be."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from segmentstore.client.host_connections import HostConnections
from segmentstore.client.owner_lookup import OwnerLookup
from segmentstore.client.remote_store import RemoteStore
from segmentstore.client.retry_rules import RetrySpan, was_not_taken
from segmentstore.client.store_addresses import StoreAddress
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerNotServedError,
    SegmentStoreError,
    StoreClosedError,
    StoreUnreachableError,
)
from segmentstore.contracts.owned_tasks import gather_outcomes, own_task

T = TypeVar("T")

Work = Callable[[RemoteStore], Awaitable[T]]
Again = Callable[[RemoteStore, AppendOutcomeUnknownError], Awaitable[T]]
"""What is done in place of the work once its outcome was unknown."""


class ClusterCalls:
    """Of one client."""

    def __init__(
        self, lookup: OwnerLookup, hosts: HostConnections, rng: random.Random, retry_s: float
    ) -> None:
        self.lookup = lookup
        self._hosts = hosts
        self._rng = rng
        self.retry_s = retry_s
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- one container ----------------------------------------------------------------------------

    async def call(self, container: int, work: Work[T], again: Again[T] | None = None) -> T:
        """Do the work at the owner of a container; again while it was not taken.

        Once its outcome is unknown it is `again` that is done; without that it is raised.
        """
        span = self.span()
        lost: AppendOutcomeUnknownError | None = None
        while True:
            self.check_open()
            seen, address = self.lookup.generation, self.lookup.map.owners.get(container)
            try:
                store = await self.lookup.owner(container)
                if lost is not None and again is not None:
                    return await again(store, lost)
                return await work(store)
            except AppendOutcomeUnknownError as error:
                if again is None or error is lost:
                    raise
                lost = error
                failure: SegmentStoreError = error
            except SegmentStoreError as error:
                if not was_not_taken(error):
                    raise
                failure = lost or error
            await self.pause(span, failure, container, seen, address)

    def span(self) -> RetrySpan:
        """For one row of tries."""
        return RetrySpan(self._rng, self.retry_s)

    def pace(self) -> RetrySpan:
        """For tries whose calls have each a time of their own."""
        return RetrySpan(self._rng, math.inf)

    async def pause(
        self,
        span: RetrySpan,
        failure: SegmentStoreError,
        container: int,
        seen: int,
        address: StoreAddress | None,
    ) -> None:
        """A try failed at the host of `address`, by the map of generation `seen`: get a newer map,
        and wait.

        Raises `failure` when the time is over, StoreClosedError, AccessRefusedError.
        """
        loop = asyncio.get_running_loop()
        is_first = span.is_first
        wait_s = span.wait_s(loop.time(), starts=isinstance(failure, ContainerNotServedError))
        if wait_s is None:
            raise failure
        with suppress(StoreUnreachableError, StoreClosedError):
            # The host that refuses knows why first. Later it may be the one that is cut off.
            await self.lookup.renew(seen, address if is_first else None)
        owner = self.lookup.map.owners.get(container)
        if owner not in (address, None):
            span.owner_changed(loop.time())
            wait_s = 0.0
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._closing.wait()
        self.check_open()

    # --- the whole store --------------------------------------------------------------------------

    async def each_owner(self, work: Work[T]) -> list[T]:
        """What the work gives at each host; every container was served at one of them all the time
        of its work.
        """
        span = self.span()
        results: list[T] = []
        left = set(range(self.lookup.map.containers))
        while left:
            self.check_open()
            seen = self.lookup.generation
            by_host = self.lookup.map.by_host(left)
            outcomes = await gather_outcomes(
                *(self._at(address, work) for address in by_host), name="ask hosts"
            )
            failure: SegmentStoreError | None = None
            for wanted, outcome in zip(by_host.values(), outcomes, strict=True):
                if not isinstance(outcome, BaseException):
                    served, result = outcome
                    results.append(result)
                    left -= served & wanted
                elif isinstance(outcome, SegmentStoreError) and was_not_taken(outcome):
                    failure = outcome
                else:
                    raise outcome
            if left:
                number = min(left)
                failure = failure or ContainerNotServedError(number, "it is on its way to a host")
                address = self.lookup.map.owners.get(number)
                await self.pause(span, failure, number, seen, address)
        return results

    async def _at(self, address: StoreAddress, work: Work[T]) -> tuple[set[int], T]:
        """The containers that the host served before and behind the work, and what that gives."""
        store = await self._hosts.store(address)
        before = await store.fetch_served()
        result = await work(store)
        return before & await store.fetch_served(), result

    async def each_host(self, work: Work[T]) -> list[T]:
        """What the work gives at each host that answers now, in the order of their addresses.

        Raises StoreUnreachableError if none does.
        """
        span = self.span()
        while True:
            self.check_open()
            seen, addresses = self.lookup.generation, sorted(self.lookup.map.hosts)
            outcomes = await gather_outcomes(
                *(self._ask(address, work) for address in addresses), name="ask hosts"
            )
            results = [each for each in outcomes if not isinstance(each, BaseException)]
            if results:
                return results
            failure = StoreUnreachableError(self._hosts.location, "none of its hosts answers")
            for outcome in outcomes:
                if not isinstance(outcome, SegmentStoreError):
                    assert isinstance(outcome, BaseException)
                    raise outcome
                if not was_not_taken(outcome):
                    raise outcome
            await self.pause(span, failure, 0, seen, self.lookup.map.owners.get(0))

    async def _ask(self, address: StoreAddress, work: Work[T]) -> T:
        return await work(await self._hosts.store(address))

    # --- the end ----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the client is not closing."""
        return not self._closing.is_set()

    def check_open(self) -> None:
        """Raise StoreClosedError once the client closes."""
        if self._closing.is_set():
            raise StoreClosedError

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Have work done that `close` waits for; it ends by itself once the client closes."""
        task = own_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Begin no more tries, and wait for what was sent. Idempotent."""
        self._closing.set()
        await self.lookup.close()
        await self._hosts.close()
        while self._tasks:
            await asyncio.wait(self._tasks)
