"""The tree of health: a state of its own comes first, then what is wrong below."""

from __future__ import annotations

from segmentstore.contracts.health_tree import (
    HealthNode,
    HealthState,
    PartSeen,
    StoreHealth,
    joined_health,
    joined_node,
    observed,
    part_node,
)

LOG = (0, "log")
CACHE = (None, "cache")


def test_a_part_keeps_its_time_until_it_changes() -> None:
    first = observed(1000, {}, {LOG: (), CACHE: ()})
    assert first == {LOG: PartSeen(True, 1000), CACHE: PartSeen(True, 1000)}
    second = observed(2000, first, {LOG: ["full"], CACHE: ()})
    assert second == {LOG: PartSeen(False, 2000), CACHE: PartSeen(True, 1000)}
    # Another cause of the same trouble is no change.
    assert observed(3000, second, {LOG: ["fuller"], CACHE: ()}) == second
    assert observed(4000, second, {LOG: ()}) == {LOG: PartSeen(True, 4000)}


def test_what_is_wrong_below_impairs_what_is_above() -> None:
    well = part_node("cache", (), 500)
    log = part_node("log", ["full"], 2000)
    container = joined_node("container 0", HealthState.WELL, 100, (), [well, log])
    assert container["state"] == "impaired"
    assert container["since_ms"] == 2000
    assert container["causes"] == []
    host = joined_node("host a", HealthState.WELL, 0, (), [well, container])
    assert (host["state"], host["since_ms"]) == ("impaired", 2000)
    failed = joined_node("container 1", HealthState.FAILED, 1500, ["fenced"], [])
    assert (failed["state"], failed["causes"]) == ("failed", ["fenced"])
    host = joined_node("host a", HealthState.WELL, 0, (), [well, container, failed])
    assert (host["state"], host["since_ms"]) == ("impaired", 1500)


def test_a_container_that_starts_is_no_trouble_of_its_host() -> None:
    starting = joined_node("container 0", HealthState.STARTING, 900, (), [])
    host = joined_node("host a", HealthState.WELL, 0, (), [part_node("cache", (), 500), starting])
    assert (host["state"], host["since_ms"]) == ("well", 500)


def test_a_cluster_is_ready_when_each_of_its_hosts_is() -> None:
    def of(name: str, *waits_for: str) -> StoreHealth:
        node: HealthNode = joined_node(name, HealthState.WELL, 0, (), [])
        return {"ready": not waits_for, "waits_for": list(waits_for), "hosts": [node]}

    joined = joined_health([of("host a"), of("host b", "container 3 starts")])
    assert not joined["ready"]
    assert joined["waits_for"] == ["host b: container 3 starts"]
    assert [each["name"] for each in joined["hosts"]] == ["host a", "host b"]
    assert joined_health([of("host a"), of("host b")])["ready"]
