"""Hosts whose containers Pravega's Controller assigns: they register where it sees them, and start
and stop what its mapping says. Another node plays the Controller.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from durablelog.bookkeeper.memory_nodes import MemoryNodes
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore import SegmentStore
from segmentstore.cluster.pravega_nodes import FAILED_AGAIN_S
from segmentstore.cluster.pravega_records import PravegaHost, encode_host
from segmentstore.config import StoreConfig
from segmentstore.contracts.errors import ConfigError
from tests.client.cluster_world import ClusterWorld
from tests.store.bookkeeper_world import name_in
from tests.store.harness import bury, read_all

PLACE = "/pravega/p/cluster"
UNAUTHORIZED = -102
MAPPING = f"{PLACE}/segmentContainerHostMapping"


class PlayedController:
    """Reads the hosts, and writes the mapping."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._nodes = MemoryNodes(world.tree)

    async def hosts(self) -> set[str]:
        return set(await self._nodes.children(f"{PLACE}/hosts"))

    def host(self, name: str) -> PravegaHost:
        address = self._world.hosts[name].address
        return PravegaHost(address.host, address.port)

    def assign(self, **containers: list[int]) -> None:
        """Give these to hosts by name."""
        body = bytes((len(containers),))
        for name, numbers in containers.items():
            listed = bytes((len(numbers),)) + b"".join(each.to_bytes(4) for each in numbers)
            body += encode_host(self.host(name)) + _object(listed)
        self._world.tree.put(MAPPING, _object(body))

    async def until(self, **containers: list[int]) -> None:
        """Until hosts serve these, and no others do."""
        await self._world.until(
            lambda: (
                {name: each for name, each in self._world.served().items() if each}
                == {name: each for name, each in containers.items() if each}
            )
        )


def _object(body: bytes) -> bytes:
    return bytes((0, 0, 1, 0)) + len(body).to_bytes(4) + body


def check(folder: Path, body: Any) -> None:
    async def main() -> None:
        world = ClusterWorld(folder, containers=4, serve="pravega:p")
        await world.start("one", "two")
        try:
            await body(world, PlayedController(world))
            # The last hosts wait for a Controller that is not there any more.
            await asyncio.gather(*map(world.stop, list(world.hosts)))
        finally:
            await bury()

    run_virtual(main())


def test_hosts_serve_what_the_mapping_gives_them(tmp_path: Path) -> None:
    async def main(world: ClusterWorld, controller: PlayedController) -> None:
        assert await controller.hosts() == {
            controller.host(name).node_name for name in ("one", "two")
        }
        assert world.served() == {"one": [], "two": []}
        controller.assign(one=[0, 1], two=[2, 3])
        await controller.until(one=[0, 1], two=[2, 3])
        async with world.client() as client:
            for number in range(4):
                await client.create_segment(name_in(number, 4))
                await client.append(name_in(number, 4), b"before")
            controller.assign(one=[1, 2], two=[0, 3])
            await controller.until(one=[1, 2], two=[0, 3])
            for number in range(4):
                await client.append(name_in(number, 4), b" after")
                assert await read_all(client, name_in(number, 4)) == b"before after"

    check(tmp_path, main)


def test_a_host_that_leaves_is_missing_at_once_and_its_containers_are_handed_over(
    tmp_path: Path,
) -> None:
    async def main(world: ClusterWorld, controller: PlayedController) -> None:
        controller.assign(one=[0, 1], two=[2, 3])
        await controller.until(one=[0, 1], two=[2, 3])
        leaving = world.hosts["one"]
        left = controller.host("one").node_name
        closing = asyncio.ensure_future(world.stop("one"))
        while left in await controller.hosts():  # noqa: ASYNC110 - as the Controller does
            await asyncio.sleep(0.01)
        assert leaving.store.served == [0, 1]
        controller.assign(two=[0, 1, 2, 3])
        await controller.until(two=[0, 1, 2, 3])
        await closing

    check(tmp_path, main)


def test_a_container_that_failed_is_started_again_after_a_while(tmp_path: Path) -> None:
    async def main(world: ClusterWorld, controller: PlayedController) -> None:
        # The Controller does not learn of it.
        world.ledgers.fail("create", UNAUTHORIZED)
        controller.assign(one=[0])
        store = world.hosts["one"].store

        def has_failed() -> bool:
            state = store.stats()["container_states"].get(0)
            return state is not None and state["state"] == "failed"

        await world.until(has_failed)
        loop = asyncio.get_running_loop()
        failed_s = loop.time()
        await controller.until(one=[0])
        assert loop.time() - failed_s >= FAILED_AGAIN_S - 0.1

    check(tmp_path, main)


def test_a_host_is_ready_when_it_serves_what_the_mapping_gives_it(tmp_path: Path) -> None:
    async def main(world: ClusterWorld, controller: PlayedController) -> None:
        one, two = (world.hosts[name].store for name in ("one", "two"))
        controller.assign(one=[0, 1, 2, 3])
        await controller.until(one=[0, 1, 2, 3])
        assert one.health()["ready"]
        # Pravega's Controller gives each host that it has seen some.
        (sentence,) = two.health()["waits_for"]
        assert "since host 127.0.0.1-2 joined" in sentence
        controller.assign(one=[0, 1], two=[2, 3])
        await controller.until(one=[0, 1], two=[2, 3])
        assert two.health()["ready"]

    check(tmp_path, main)


def test_a_mapping_of_more_containers_than_there_are_is_reported_and_not_followed(
    tmp_path: Path,
) -> None:
    async def main(world: ClusterWorld, controller: PlayedController) -> None:
        controller.assign(one=[0])
        await controller.until(one=[0])
        store = world.hosts["one"].store
        controller.assign(one=[0, 4], two=[1])
        await world.until(lambda: bool(_membership(store)))
        assert "assigns container 4, and the store has 4" in _membership(store)[0]
        assert world.served() == {"one": [0], "two": []}
        cluster = store.stats()["cluster"]
        assert cluster is not None
        assert cluster["start_failures"] == 0
        controller.assign(one=[0], two=[1])
        await controller.until(one=[0], two=[1])
        assert not _membership(store)

    def _membership(store: SegmentStore) -> list[str]:
        return [each for each in store.stats()["health"] if "follow the map" in each]

    check(tmp_path, main)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"serve": "pravega:"}, "serve: '' is not 1 to 200"),
        ({"serve": "pravega:a/b"}, "serve: 'a/b' is not 1 to 200"),
        ({"wire_port": 0}, "serve"),
        ({"controller_port": 2}, "controller_port"),
        ({"host_id": "one"}, "host_id: where Pravega's Controller assigns it is 127.0.0.1-1"),
    ],
)
def test_settings_that_pravegas_controller_cannot_assign_to_are_refused(
    settings: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(ConfigError, match=wrong):
        StoreConfig(**{"serve": "pravega:p", "wire_port": 1, **settings})
