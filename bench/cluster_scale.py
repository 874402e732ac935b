"""What 10,000 containers on 100 hosts cost the leader and ZooKeeper, and what such a cluster needs.

The decision is the real one (segmentstore/cluster/assignment.py), on records of hosts that do at
once what the map says; no time passes but CPU. Beside it: the bytes of the real nodes, the CPU of
an append that is alone in its frame (log in memory), and the formulas of bench/cluster_needs.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import segmentstore
from bench.cluster_needs import ClusterLoad, needs
from bench.report import CaseResult, Row, Samples
from segmentstore.cluster.assignment import assign
from segmentstore.cluster.assignment_map import (
    AssignmentMap,
    decode_assignment_map,
    encode_assignment_map,
)
from segmentstore.cluster.host_record import (
    ContainerReport,
    HostRecord,
    ReportedState,
    encode_host_record,
)

QUESTION = "what 10,000 containers on 100 hosts cost the leader, ZooKeeper and the rest"
LOAD: Final = ClusterLoad(
    hosts=100,
    containers=10_000,
    segments=100_000_000,
    appends_per_s=1_000_000.0,
    append_bytes=100,
)
QUICK: Final = dataclasses.replace(LOAD, hosts=20, containers=1_000)
_START_MS: Final = 1_760_000_000_000
_STEP_MS: Final = 1_000
_ROUNDS_MAX: Final = 1_000
_APPENDS: Final = 20_000
_NODE_BYTES_MAX: Final = 1_048_575

Hosts = Mapping[str, HostRecord]


class Change(NamedTuple):
    """From one even cluster to the next."""

    after: AssignmentMap
    hosts: Hosts
    first_s: float
    """CPU of the first decision."""
    slowest_s: float
    writes: int
    """Of the map."""
    moved: int
    """Containers whose host changed."""


def run(directory: Path, *, quick: bool) -> CaseResult:
    """The case. Some seconds of CPU."""
    load = QUICK if quick else LOAD
    rows = [*_decisions(load), *_frames(directory), *_needed(load)]
    return CaseResult(case="cluster_scale", question=QUESTION, rows=rows)


# --- the leader -----------------------------------------------------------------------------------


def settled(containers: int, hosts: Hosts, before: AssignmentMap, now_ms: int) -> Change:
    """Decide, and have the hosts do it, until nothing is to change any more."""
    current, slowest_s, first_s, writes = before, 0.0, 0.0, 0
    for number in range(_ROUNDS_MAX):
        hosts = _obeyed(hosts, current)
        begun_s = time.process_time()
        after = assign(now_ms + number * _STEP_MS, containers, hosts, current)
        taken_s = time.process_time() - begun_s
        slowest_s, first_s = max(slowest_s, taken_s), first_s or taken_s
        if after is current:
            break
        current, writes = after, writes + 1
    moved = sum(host != before.owners.get(each) for each, host in current.owners.items())
    return Change(current, hosts, first_s, slowest_s, writes, moved)


def host(number: int) -> HostRecord:
    """A host without containers."""
    return HostRecord(f"host-{number:03}", f"10.0.0.{number}", 9090, "0.1.0", _START_MS + number)


def _obeyed(hosts: Hosts, current: AssignmentMap) -> dict[str, HostRecord]:
    """The hosts, each with what the map gives to it, and with nothing else."""
    given: dict[str, dict[int, ContainerReport]] = {host_id: {} for host_id in hosts}
    for number, owner in current.owners.items():
        if owner in given:
            had = hosts[owner].containers.get(number)
            given[owner][number] = had or ContainerReport(ReportedState.RUNNING, _START_MS)
    return {
        host_id: dataclasses.replace(record, containers=given[host_id])
        for host_id, record in hosts.items()
    }


def _decisions(load: ClusterLoad) -> list[Row]:
    count = load.containers
    hosts = {each.host_id: each for each in map(host, range(load.hosts))}
    made = settled(count, hosts, AssignmentMap(), _START_MS)
    later_ms = _START_MS + 3_600_000
    begun_s = time.process_time()
    assert assign(later_ms, count, made.hosts, made.after) is not None
    idle_s = time.process_time() - begun_s
    lost_id = "host-007"
    left = {host_id: each for host_id, each in made.hosts.items() if host_id != lost_id}
    lost = settled(count, left, made.after, later_ms)
    more = {**lost.hosts, "host-999": dataclasses.replace(host(999), host="10.0.1.1")}
    joined = settled(count, more, lost.after, later_ms + 3_600_000)
    mine = sum(owner == lost_id for owner in made.after.owners.values())
    share = count // len(more)
    data = encode_assignment_map(joined.after)
    begun_s = time.process_time()
    decode_assignment_map(data, "the map")
    decode_s = time.process_time() - begun_s
    record = max(len(encode_host_record(each)) for each in joined.hosts.values())
    return [
        _row("first assignment: decision", "ms CPU", made.first_s * 1e3),
        _row("nothing to do: decision", "ms CPU", idle_s * 1e3),
        _row("a host lost: decision", "ms CPU", lost.first_s * 1e3),
        _row("a host lost: containers moved", "", lost.moved, mine, mine * 1.01),
        _row("a host lost: writes of the map", "", lost.writes, 1, 2),
        _row("a host joins: slowest decision", "ms CPU", joined.slowest_s * 1e3),
        _row("a host joins: containers moved", "", joined.moved, share, share + 1),
        _row("a host joins: writes of the map", "", joined.writes, math.ceil(share / 4)),
        _row("the map", "bytes", len(data), None, _NODE_BYTES_MAX),
        _row("the map: decoding", "ms CPU", decode_s * 1e3),
        _row("a host's record", "bytes", record, None, _NODE_BYTES_MAX),
        _row("a write of the map: sent to all hosts", "bytes", len(data) * load.hosts),
    ]


# --- a frame of its own ---------------------------------------------------------------------------


def _frames(directory: Path) -> list[Row]:
    cpu_s, overhead = asyncio.run(_lone_appends(directory))
    return [
        _row("an append alone in its frame", "us CPU", cpu_s * 1e6),
        _row("bytes of a frame beside its append", "bytes", overhead),
    ]


async def _lone_appends(directory: Path) -> tuple[float, float]:
    """CPU of each, and bytes of its frame that are not the append's."""
    bytes_each = LOAD.append_bytes
    async with segmentstore.open(
        directory / "lone", tier1="memory", tier2="memory://cluster-scale", local_server=False
    ) as store:
        for number in range(100):
            await store.create_segment(f"segment-{number}")
        before, begun_s = store.stats()["containers"][0]["log"], time.process_time()
        for number in range(_APPENDS):
            await store.append(f"segment-{number % 100}", bytes(bytes_each))
        cpu_s = (time.process_time() - begun_s) / _APPENDS
        after = store.stats()["containers"][0]["log"]
    frames = after["frames_appended"] - before["frames_appended"]
    return cpu_s, (after["bytes_appended"] - before["bytes_appended"]) / frames - bytes_each


# --- what it needs --------------------------------------------------------------------------------


def _needed(load: ClusterLoad) -> list[Row]:
    return [
        _row(f"needs: {field.name.replace('_', ' ')}", "", float(getattr(found, field.name)))
        for found in (needs(load),)
        for field in dataclasses.fields(found)
    ]


def _row(
    name: str, unit: str, value: float, floor: float | None = None, most: float | None = None
) -> Row:
    return Row(
        name=name,
        unit=unit,
        engine=Samples((value,)),
        floor=None if floor is None else Samples((floor,)),
        bar="" if most is None else f"≤ {most:,.0f}",
        met=None if most is None else value <= most,
    )


if __name__ == "__main__":
    from bench.suite import main

    main("cluster_scale")
