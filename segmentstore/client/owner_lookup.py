"""OwnerLookup: the map of a cluster, asked for again from any host when it has proved wrong.

A host that is cut off from the others may answer with an old map. So an older one than is known is
not taken, and the hosts are asked in turn.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from segmentstore.client.host_connections import HostConnections
from segmentstore.client.owner_map import OwnerMap
from segmentstore.client.remote_store import RemoteStore
from segmentstore.client.retry_rules import was_not_taken
from segmentstore.client.store_addresses import StoreAddress
from segmentstore.contracts.errors import (
    ContainerNotServedError,
    SegmentStoreError,
    StoreUnreachableError,
    describe,
)
from segmentstore.contracts.owned_tasks import own_task

ASK_S: Final = 2.0
"""Longest that one host is waited for while there are others."""


class OwnerLookup:
    """Of one client, once `renew` has succeeded. `seeds` are the hosts that it was given."""

    def __init__(
        self, seeds: Sequence[StoreAddress], hosts: HostConnections, rng: random.Random
    ) -> None:
        self._seeds = tuple(seeds)
        self._hosts = hosts
        self._rng = rng
        self._map: OwnerMap | None = None
        self.generation = 0
        """Grows whenever a host has answered."""
        self._renewing: asyncio.Task[None] | None = None
        self._asked: StoreAddress | None = None
        """The host that was asked last."""

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
        if address is None:
            raise ContainerNotServedError(container, "no host of the cluster is assigned to it")
        return await self._hosts.store(address)

    async def renew(self, generation: int, first: StoreAddress | None = None) -> None:
        """Ask for the map, unless a host has answered since `generation`; `first` this host.

        Raises StoreUnreachableError if no host answers, AccessRefusedError.
        """
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
        was_answered = False
        for address in self._in_turn(first):
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
        if not was_answered:
            raise StoreUnreachableError(self._hosts.location, "; ".join(failures))
        self.generation += 1

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
        """All hosts: `first`, then the connected ones, and the one that was asked last behind."""
        known = self._map.hosts if self._map is not None else ()
        hosts = list(dict.fromkeys((*known, *self._seeds)))
        self._rng.shuffle(hosts)
        return sorted(
            hosts,
            key=lambda each: (
                each != first,
                each == self._asked,
                self._hosts.connected(each) is None,
            ),
        )
