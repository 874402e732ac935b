"""OwnerLookup: the map of a cluster, asked for again from any host when it has proved wrong.

A host that is cut off from the others may answer with an old map. So an older one than is known is
not taken, and the hosts are asked in turn. A client that found them by ZooKeeper asks there when no
host answers, or when for a while none has anything new (search_pace.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from segmentstore.client.host_connections import HostConnections
from segmentstore.client.owner_map import OwnerMap
from segmentstore.client.remote_store import RemoteStore
from segmentstore.client.retry_rules import was_not_taken
from segmentstore.client.search_pace import SearchPace
from segmentstore.client.store_addresses import StoreAddress
from segmentstore.contracts.errors import (
    ContainerNotServedError,
    SegmentStoreError,
    StoreClosedError,
    StoreUnreachableError,
    describe,
)
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.store_hosts import FoundStore
from segmentstore.contracts.waiting import outlast

ASK_S: Final = 2.0
"""Longest that one host is waited for while there are others."""
SEARCH_S: Final = 5.0
"""Longest that ZooKeeper is waited for, while the map is known."""

Search = Callable[[], Awaitable[FoundStore]]
"""Finds the hosts without asking one. Raises SegmentStoreError."""


class OwnerLookup:
    """Of one client, once `renew` has succeeded. `seeds` are the hosts that it was given; with
    `search` it has just found them, and may do so again.
    """

    def __init__(
        self,
        seeds: Sequence[StoreAddress],
        hosts: HostConnections,
        rng: random.Random,
        search: Search | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._search = search
        self._pace = SearchPace(rng, self._loop.time())
        self._seeds = tuple(seeds)
        self._hosts = hosts
        self._rng = rng
        self._map: OwnerMap | None = None
        self.generation = 0
        """Grows whenever a host has answered."""
        self._renewing: asyncio.Task[None] | None = None
        self._asked: StoreAddress | None = None
        """The host that was asked last."""
        self._is_closed = False

    @property
    def map(self) -> OwnerMap:
        """As it was given last."""
        assert self._map is not None
        return self._map

    def connected(self, container: int) -> RemoteStore | None:
        """The owner of a container, if there is a connection to it."""
        address = self.map.owners.get(container)
        return None if address is None else self._hosts.connected(address)

    async def owner(self, container: int) -> RemoteStore:
        """The owner of a container, connected.

        Raises ContainerNotServedError if there is none, and as `HostConnections.store`.
        """
        address = self.map.owners.get(container)
        if address is not None and self._hosts.is_given_up(address):
            # Others have taken over from it long ago, and it would be waited for again.
            with suppress(StoreUnreachableError):
                await self.renew(self.generation)
            address = self.map.owners.get(container)
        if address is None:
            raise ContainerNotServedError(container, "no host of the cluster is assigned to it")
        return await self._hosts.store(address)

    async def renew(self, generation: int, first: StoreAddress | None = None) -> None:
        """Ask for the map, unless a host has answered since `generation`; `first` this host.

        Raises StoreUnreachableError if no host answers, AccessRefusedError, StoreClosedError.
        """
        if self._is_closed:
            raise StoreClosedError
        if generation != self.generation:
            return
        if self._renewing is None:
            self._renewing = own_task(self._renew(first), name="ask for owners")
            self._renewing.add_done_callback(self._renewed)
        await asyncio.shield(self._renewing)

    def _renewed(self, task: asyncio.Task[None]) -> None:
        self._renewing = None
        if not task.cancelled():
            task.exception()  # of those who wait for it, if there are any

    async def _renew(self, first: StoreAddress | None) -> None:
        failures: list[str] = []
        before = self._map
        try:
            was_answered = await self._ask(self._in_turn(first), failures)
            is_news = was_answered and self._map != before
            if self._search is not None and self._pace.is_due(
                self._loop.time(), was_answered=was_answered, is_news=is_news
            ):
                was_answered |= await self._find(self._search, failures)
        except asyncio.CancelledError:
            if self._is_closed:
                raise StoreClosedError from None  # those who wait for it are not cancelled
            raise
        if not was_answered:
            raise StoreUnreachableError(self._hosts.location, "; ".join(failures))
        self.generation += 1

    async def _ask(self, addresses: Sequence[StoreAddress], failures: list[str]) -> bool:
        """Take the first map that is not older; whether a host has answered."""
        was_answered = False
        for address in addresses:
            try:
                async with asyncio.timeout(ASK_S):
                    described = await (await self._hosts.store(address)).fetch_hosts()
            except TimeoutError:
                failures.append(f"{address}: there was no answer for {ASK_S:g} s")
                continue
            except SegmentStoreError as error:
                if not was_not_taken(error):
                    raise
                failures.append(f"{address}: {describe(error)}")
                continue
            self._asked, was_answered = address, True
            if self._take(OwnerMap.of(described, address)):
                break
        return was_answered

    async def _find(self, search: Search, failures: list[str]) -> bool:
        """Find the hosts as they are now; whether there is a map of them."""
        try:
            async with asyncio.timeout(SEARCH_S):
                found = await search()
        except TimeoutError:
            failures.append(f"ZooKeeper has not answered for {SEARCH_S:g} s")
            return False
        except SegmentStoreError as error:
            failures.append(describe(error))
            return False
        finally:
            self._pace.searched(self._loop.time())
        before = self._seeds
        self._seeds = tuple(StoreAddress(each.host, each.port) for each in found.hosts.hosts)
        if self._map is not None:
            return self._take(OwnerMap.found(found, self._map.append_bytes_max))
        return await self._ask([each for each in self._seeds if each not in before], failures)

    def _take(self, given: OwnerMap) -> bool:
        known = self._map
        if known is not None and given.store_id != known.store_id:
            detail = f"it is another store, {given.store_id}, and was {known.store_id}"
            raise StoreUnreachableError(self._hosts.location, detail)
        if known is not None and given.epoch < known.epoch:
            return False
        self._map = given
        return True

    def _in_turn(self, first: StoreAddress | None) -> list[StoreAddress]:
        """All hosts: `first`, unless it is silent, then the connected ones, and the one that was
        asked last behind.
        """
        known = self._map.hosts if self._map is not None else ()
        hosts = list(dict.fromkeys((*known, *self._seeds)))
        self._rng.shuffle(hosts)
        return sorted(
            hosts,
            key=lambda each: (
                each != first or self._hosts.is_given_up(each),
                each == self._asked,
                self._hosts.connected(each) is None,
            ),
        )

    async def close(self) -> None:
        """Ask no more. Those who wait get StoreClosedError. Idempotent."""
        self.abort()
        if self._renewing is not None:
            await outlast(self._renewing)

    def abort(self) -> None:
        """The same without waiting for the end of what was begun."""
        self._is_closed = True
        if self._renewing is not None:
            self._renewing.cancel()
