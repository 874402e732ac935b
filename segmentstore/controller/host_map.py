"""Which process serves a segment: its published address, by the container of its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.published_hosts import PublishedAddress


class SegmentHosts(Protocol):
    """Where segments are served."""

    async def address_of(self, segment: str) -> PublishedAddress:
        """Of the process that serves a segment with this name, there or not.

        Raises HostUnavailableError: no process is known to serve it now.
        """

    async def controllers(self) -> Sequence[PublishedAddress]:
        """Where Controllers are, one at least."""


class HostsByContainer:
    """A process for each container, as a setting says. With one address, one serves them all."""

    def __init__(
        self,
        addresses: Mapping[int, PublishedAddress],
        controllers: Sequence[PublishedAddress] = (),
    ) -> None:
        """Addresses by container id, from 0 on, none missing; and those of Controllers."""
        if not addresses or set(addresses) != set(range(len(addresses))):
            raise InvalidArgumentError(
                "addresses", sorted(addresses), "each container from 0 on has an address"
            )
        self._addresses = addresses
        self._controllers = controllers

    async def address_of(self, segment: str) -> PublishedAddress:
        return self._addresses[container_of(segment, len(self._addresses))]

    async def controllers(self) -> Sequence[PublishedAddress]:
        return self._controllers
