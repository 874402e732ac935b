"""CycleClients: all clients of a run: those of `connect`, and those of the wire protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import segmentstore
from recovery.harness.clusters.client_load import PAUSE_S, ConnectClients
from recovery.harness.clusters.sent_events import FollowedSegment, Sender
from recovery.harness.clusters.wire_load import WireClients

if TYPE_CHECKING:
    from segmentstore.store_api import StoreApi

_CHECK_S: Final = 0.05
_READ_BYTES: Final = 1 << 20


class CycleClients:
    """Of one cluster, at work from `begin` to `end`.

    `locations` are for `connect`, `controllers` are addresses of the hosts' Controllers.
    """

    def __init__(
        self, locations: Sequence[str], controllers: Sequence[str], containers: int
    ) -> None:
        self._location = locations[0]
        self._connect = ConnectClients(locations, containers)
        self._wire = WireClients(controllers, len(self._connect.senders), PAUSE_S)

    @property
    def senders(self) -> list[Sender]:
        """All of them."""
        return [*self._connect.senders, *self._wire.senders]

    @property
    def followed(self) -> list[FollowedSegment]:
        """All segments, each with what its reader was given."""
        return [*self._connect.followed, *self._wire.followed]

    async def begin(self) -> None:
        """Connect, create the segments, and have all clients begin."""
        await self._connect.begin()
        await self._wire.begin()

    async def end(self) -> None:
        """Have all senders end with what they are at."""
        await asyncio.gather(self._connect.end(), self._wire.end())

    async def close(self) -> None:
        """End all. Idempotent."""
        await self._connect.close()
        await self._wire.close()

    async def contents(self) -> dict[str, bytes]:
        """All segments, as another client reads them, by name; behind `end`."""
        async with segmentstore.connect(self._location) as store:
            return {each.name: await _read_all(store, each.name) for each in self.followed}

    async def readers_at(self, contents: dict[str, bytes], seconds: float) -> None:
        """Return when the readers that follow have got as much as there is, or after so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _until(
                    lambda: all(
                        each.error is not None or each.length >= len(contents[each.name])
                        for each in self.followed
                    )
                )

    async def all_go_on(self) -> None:
        """Return when each sender was acknowledged an event that it sent since this call, or has
        failed.
        """
        before = {sender.number: sender.sent for sender in self.senders}
        await _until(
            lambda: all(
                sender.errors or sender.last_acknowledged >= before[sender.number]
                for sender in self.senders
            )
        )

    def take_waits(self) -> tuple[float, float]:
        """The longest wait of any sender since the last call, in seconds: of `connect`, and of the
        wire protocol.
        """
        return _take_longest(self._connect.senders), _take_longest(self._wire.senders)


def _take_longest(senders: Sequence[Sender]) -> float:
    longest = max(sender.longest_wait_s for sender in senders)
    for sender in senders:
        sender.longest_wait_s = 0.0
    return longest


async def _until(holds: Callable[[], bool]) -> None:
    """Checked: nothing reports it."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(_CHECK_S)


async def _read_all(store: StoreApi, name: str) -> bytes:
    content = bytearray()
    length = (await store.get_info(name)).length
    while len(content) < length:
        content += await store.read(name, len(content), _READ_BYTES)
    return bytes(content)
