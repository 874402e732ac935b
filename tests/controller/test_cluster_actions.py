"""Actions on segments of a cluster keep connections to hosts that are there, and to no others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.controller.cluster_actions import CHECK_S, ClusterActions
from segmentstore.controller.segment_actions import SegmentState
from segmentstore.published_hosts import PublishedAddress

STATE = SegmentState(0, 0, False)


class _Hosts:
    """Where segments are, for a test to change."""

    def __init__(self) -> None:
        self.at = PublishedAddress("one", 1)
        self.present: set[PublishedAddress] = {self.at}

    async def address_of(self, segment: str) -> PublishedAddress:
        return self.at

    async def controllers(self) -> Sequence[PublishedAddress]:
        return []

    async def wire_addresses(self) -> Collection[PublishedAddress]:
        return self.present


class _Remote:
    """A connection that answers."""

    def __init__(self, address: PublishedAddress) -> None:
        self.address = address
        self.closed = False

    async def info(self, name: str) -> SegmentState:
        assert not self.closed
        return STATE

    async def close(self) -> None:
        self.closed = True


def test_a_connection_to_a_host_that_left_is_closed() -> None:
    made: list[Any] = []

    def connect(address: PublishedAddress) -> Any:
        made.append(_Remote(address))
        return made[-1]

    async def main() -> None:
        hosts, here = _Hosts(), _Remote(PublishedAddress("here", 0))
        actions = ClusterActions(
            here,  # type: ignore[arg-type]
            lambda _: False,
            hosts,
            connect,
            random.Random(1),
        )
        for name, leaves in (("one", True), ("two", False), ("three", True), ("two", False)):
            hosts.at = PublishedAddress(name, 1)
            hosts.present.add(hosts.at)
            assert await actions.info("s") == STATE
            if leaves:
                hosts.present.discard(hosts.at)
        assert [(each.address.host, each.closed) for each in made] == [
            ("one", True),
            ("two", False),
            ("three", False),
        ]
        await actions.close()
        assert all(each.closed for each in made)

    asyncio.run(main())


@pytest.mark.parametrize("comes_here", [False, True])
def test_an_action_that_waits_for_a_host_which_was_replaced_is_given_up(comes_here: bool) -> None:
    """A process that is stopped, or a machine that is cut off, closes no connection."""

    class Silent(_Remote):
        async def info(self, name: str) -> SegmentState:
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    def connect(address: PublishedAddress) -> Any:
        return Silent(address) if address.host == "one" else _Remote(address)

    async def main() -> None:
        hosts = _Hosts()
        here: Any = _Remote(PublishedAddress("here", 0))
        at_here: set[str] = set()
        actions = ClusterActions(here, at_here.__contains__, hosts, connect, random.Random(1))
        asked = asyncio.ensure_future(actions.info("s"))
        await asyncio.sleep(10 * CHECK_S)
        assert not asked.done()
        hosts.at = PublishedAddress("two", 1)
        hosts.present.add(hosts.at)
        at_here.update({"s"} if comes_here else ())
        async with asyncio.timeout(3 * CHECK_S):
            assert await asked == STATE
        await actions.close()

    run_virtual(main())


def test_hosts_that_left_are_closed_once_beside_other_actions() -> None:
    """Each of several actions closed all of them, and one found nothing to close."""

    class Slow(_Remote):
        async def close(self) -> None:
            await asyncio.sleep(0)
            await super().close()

    made: list[Any] = []

    def connect(address: PublishedAddress) -> Any:
        made.append(Slow(address))
        return made[-1]

    async def main() -> None:
        hosts = _Hosts()
        here: Any = _Remote(PublishedAddress("here", 0))
        actions = ClusterActions(here, lambda _: False, hosts, connect, random.Random(1))
        for name in ("one", "two"):
            hosts.at = PublishedAddress(name, 1)
            hosts.present.add(hosts.at)
            await actions.info("s")
        hosts.at = PublishedAddress("three", 1)
        hosts.present = {hosts.at}
        assert await asyncio.gather(*(actions.info("s") for _ in range(3))) == [STATE] * 3
        assert [each.closed for each in made[:2]] == [True, True]
        await actions.close()

    asyncio.run(main())
