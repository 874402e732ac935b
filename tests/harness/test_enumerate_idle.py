"""Crash points of segments that leave memory and come back: they really do, in the workloads and in
the recoveries, and engines that break a rule of it are found.
"""

from __future__ import annotations

import pytest

from recovery.harness.enumeration.driver import EnumerationResult, enumerate_group, replay
from recovery.harness.enumeration.instants import SegmentMoves
from recovery.harness.enumeration.workloads import (
    CHAINS,
    OTHERS,
    STAGES,
    EnumeratedWorkload,
    prepare,
    record,
    workloads,
)
from recovery.harness.history import CallOutcome
from recovery.harness.mutants.catalogue import MUTANTS
from tests.support.suites import share, size, sized, slow

NEEDS_ITS_SEGMENT = ("append", "batch", "event", "update", "truncate", "seal", "delete", "roll")
CAP = size("HARNESS_IDLE_CAP", 1, 2)
"""States of a crash point, at most."""
FEW = ("idle/append,leave", "idle/delete,delete", "idle/stream,leave,stream")


def moves(name: str) -> SegmentMoves:
    """Of the last operation, and the idle time behind it."""
    recording = record(EnumeratedWorkload.parse(name), prepare("idle"))
    assert all(call.outcome is CallOutcome.OK for call in recording.history.calls), name
    return recording.moves


@slow(1)
def test_every_change_brings_its_idle_segment_back_and_has_another_one_leave() -> None:
    assert STAGES["idle"].settings["active_segments_max"] == len(OTHERS)
    for operation in (*NEEDS_ITS_SEGMENT, "load", "stream"):
        assert moves(f"idle/{operation}") == SegmentMoves(1, 1), operation
    assert moves("idle/merge") == SegmentMoves(2, 2)
    crowd = moves("idle/crowd")
    assert crowd.activations >= len(OTHERS)
    assert crowd.evictions >= len(OTHERS)


def test_what_changed_leaves_memory_again_and_comes_back() -> None:
    for first in ("append", "merge", "crowd", "stream"):
        assert moves(f"idle/{first},leave").activations == len(OTHERS), first
        assert moves(f"idle/{first},leave").evictions >= len(OTHERS) - 1, first
    # The last operation finds the target in the catalog, though the first had it in memory.
    for first in ("append", "merge", "crowd"):
        assert moves(f"idle/{first},leave,append") == SegmentMoves(1, 1), first
    assert moves("idle/stream,leave,stream") == SegmentMoves(1, 1)
    assert moves("idle/merge,leave,merge") == SegmentMoves(2, 2)


def test_a_name_whose_segment_is_deleted_is_free_though_the_catalog_may_have_it() -> None:
    assert moves("idle/delete").activations == 1
    assert moves("idle/delete,delete").activations == 0
    assert moves("idle/delete,leave,delete").activations == 0


def test_every_chain_is_among_the_workloads() -> None:
    names = {str(each) for each in workloads(3)}
    for chain in CHAINS:
        for place, operations in enumerate(chain):
            for operation in operations:
                chosen = [each[-1] for each in chain]
                chosen[place] = operation
                assert f"idle/{','.join(chosen)}" in names
    assert not any(name.count(",") > 1 for name in map(str, workloads(2)))


@sized(12)
def test_few_crash_points_of_idle_segments_lose_nothing() -> None:
    result, base = EnumerationResult(), prepare("idle")
    for name in FEW:
        group = (EnumeratedWorkload.parse(name),)
        result.add(enumerate_group(group, cap=CAP, deeper_of=0, base=base))
    assert [str(each) for each in result.violations] == []
    assert result.points > 150
    # A recovery reads all, and what was not replayed finds room by the leaving of others.
    room = len(OTHERS)
    assert result.moves.activations > room * result.recoveries
    assert result.moves.evictions > room * result.recoveries


CAUGHT = {
    # Mutant: a workload that shows it.
    "replayed-without-its-segment": "append",
    "evicted-with-unflushed-bytes": "crowd",
    "evicted-before-it-is-written": "append,leave",
    "deleted-segment-comes-back": "delete",
    "name-of-an-idle-segment-is-free": "claim",
    "waiting-appends-in-reverse": "stream,leave,stream",
    "idle-segments-not-counted": "delete",
}


@pytest.mark.parametrize("name", share(CAUGHT, 7, 6))
def test_a_mutant_of_idle_segments_is_caught_in_one_workload(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    workload = EnumeratedWorkload.parse(f"idle/{CAUGHT[name]}")
    base = prepare("idle")
    with mutant.apply():
        found = enumerate_group((workload,), cap=2, deeper_of=0, base=base)
        assert found.broken > 0
        first = found.violations[0]
        assert tuple(replay(first.name, base=base).violations) == first.violations
    whole = enumerate_group((workload,), cap=2, deeper_of=0, base=base)
    assert [str(each) for each in whole.violations] == []
