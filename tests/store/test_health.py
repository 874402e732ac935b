"""`health()`: the tree of a store, whether it is ready, and the pages for probes."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from recovery.harness.services.server import free_port
from segmentstore import StoreHealth, TierUnavailableError
from segmentstore.contracts.health_tree import HealthNode
from tests.store.harness import open_tiny, run
from tests.store.registry_world import COUNT, NAMES, World, begin, error_of, opened, scenario


def part(health: StoreHealth, *names: str) -> HealthNode:
    """A node by its path below the host."""
    (node,) = health["hosts"]
    for name in names:
        (node,) = [each for each in node["parts"] if each["name"] == name]
    return node


async def probe(port: int, page: str) -> tuple[int, Any]:
    def fetch() -> tuple[int, Any]:
        url = f"http://127.0.0.1:{port}{page}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    return await asyncio.to_thread(fetch)


@scenario
async def test_each_container_and_each_part_has_its_state_and_time(world: World) -> None:
    async with await opened(world) as store:
        health = store.health()
        assert health["ready"]
        assert part(health)["state"] == "well"
        running = [each for each in part(health)["parts"] if each["name"].startswith("container")]
        assert len(running) == COUNT
        assert {each["name"] for each in part(health, "container 1")["parts"]} == {
            "log", "storage_writer", "snapshots", "active_segments", "processor",
        }  # fmt: skip
        before = part(health, "container 1")
        await asyncio.sleep(100)
        assert store.health() == health, "nothing has changed: the times neither"

        world.memory.contents(1).epoch += 1
        await error_of(store.append(NAMES[1], b"x"))
        health = store.health()
        assert health["waits_for"] == ["container 1 is failed"]
        assert not health["ready"]
        fenced = part(health, "container 1")
        assert fenced["state"] == "failed"
        assert fenced["since_ms"] >= before["since_ms"] + 100_000
        assert fenced["causes"]
        assert part(health)["state"] == "impaired"
        assert part(health)["since_ms"] == fenced["since_ms"]
        assert part(health, "container 0")["state"] == "well"

        await store.stop_container(1)
        health = store.health()
        assert health["ready"], "it is no longer asked for"
        assert part(health)["state"] == "well"
        assert len([each for each in part(health)["parts"] if "container" in each["name"]]) == 3


@scenario
async def test_a_store_is_not_ready_while_a_container_starts(world: World) -> None:
    async with await opened(world, serve="0") as store:
        assert store.health()["ready"]
        world.starts[1].shut()
        starting = begin(store.start_container(1))
        await asyncio.sleep(1)
        health = store.health()
        assert health["waits_for"] == ["container 1 is starting"]
        assert part(health, "container 1")["state"] == "starting"
        assert part(health)["state"] == "well"
        world.starts[1].open()
        await starting
        assert store.health()["ready"]


@scenario
async def test_the_sentences_of_stats_are_those_of_the_tree(world: World) -> None:
    async with await opened(world) as store:
        await store.stop_container(1)
        world.refused[1] = TierUnavailableError("tier1", "the bookies sleep")
        await error_of(store.start_container(1))
        (sentence,) = store.stats()["health"]
        (cause,) = part(store.health(), "container 1")["causes"]
        assert cause in sentence


def test_probes_are_answered_at_the_metrics_port(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        async with open_tiny(tmp_path / "s", containers=2, metrics_port=port) as store:
            assert await probe(port, "/live") == (200, {})
            assert await probe(port, "/ready") == (200, {"waits_for": []})
            error = TierUnavailableError("tier1", "the disk is away")
            store._parts.containers[1]._failed(error)
            status, said = await probe(port, "/ready")
            assert (status, said) == (503, {"waits_for": ["container 1 is failed"]})
            assert await probe(port, "/ready/") == (status, said)
            # It serves the other one: an end of the process would not help.
            assert await probe(port, "/live") == (200, {})

    run(main())
