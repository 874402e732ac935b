"""The case of large clusters: its decisions, and its formulas. No timing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.cluster_needs import ClusterLoad, needs
from bench.cluster_scale import LOAD, host, run, settled
from segmentstore.cluster.assignment_map import AssignmentMap


def test_the_decisions_meet_their_bars(tmp_path: Path) -> None:
    result = run(tmp_path, quick=True)
    rows = {row.name: row for row in result.rows}
    assert rows["a host lost: containers moved"].engine.median == 1_000 / 20
    assert [name for name, row in rows.items() if row.met is False] == []
    assert rows["bytes of a frame beside its append"].engine.median == 45


def test_a_settled_cluster_is_even_and_stays() -> None:
    hosts = {each.host_id: each for each in map(host, range(7))}
    made = settled(100, hosts, AssignmentMap(), 1_760_000_000_000)
    counts = [len(each.containers) for each in made.hosts.values()]
    assert sum(counts) == 100
    assert max(counts) - min(counts) <= 1
    assert settled(100, made.hosts, made.after, 1_760_000_100_000).writes == 0


def test_fewer_containers_write_larger_frames() -> None:
    many = needs(LOAD)
    few = needs(dataclasses.replace(LOAD, containers=500))
    assert many.entries_per_s == pytest.approx(LOAD.appends_per_s), "each append is an entry"
    assert few.entries_per_s < many.entries_per_s
    assert few.cores_of_a_host < many.cores_of_a_host
    assert few.zookeeper_reads_per_s < many.zookeeper_reads_per_s
    assert few.lists_per_s < many.lists_per_s


def test_needs_grow_with_what_they_are_of() -> None:
    one = ClusterLoad(
        hosts=3, containers=12, segments=1_000, appends_per_s=100.0, append_bytes=1_000
    )
    two = dataclasses.replace(one, append_bytes=2_000)
    assert needs(two).object_bytes == 2 * needs(one).object_bytes
    assert needs(two).unflushed_bytes_of_a_host == 2 * needs(one).unflushed_bytes_of_a_host
    assert needs(two).segment_bytes_of_a_host == needs(one).segment_bytes_of_a_host
