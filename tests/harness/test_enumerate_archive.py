"""Crash points of logs that are archived: each step of it is among them, and engines that lose or
leave something there are found.
"""

from __future__ import annotations

from typing import Any

import pytest

from recovery.harness.enumeration.driver import EnumerationResult, enumerate_group
from recovery.harness.enumeration.instants import Instant
from recovery.harness.enumeration.workloads import Base, EnumeratedWorkload, prepare, record
from segmentstore.container.archive_hold import ArchiveHold
from segmentstore.container.log_truncation import LogTruncation
from tests.support.suites import sized
from tier2.archive.object_ledger_offloader import ObjectLedgerOffloader

FEW = ("archive/offload", "expiry/roll")


def instants(name: str) -> list[Instant]:
    workload = EnumeratedWorkload.parse(name)
    return record(workload, prepare(workload.stage)).instants


def archived(instant: Instant) -> set[str]:
    """Names of data and indexes in the archive."""
    return {name for name in instant.outside.archive.objects if "-ledger-" in name}


def retained(instant: Instant) -> set[str]:
    return {name for name in map(str, instant.outside.image.files()) if "/retained-" in name}


def has_half_a_part(instant: Instant) -> bool:
    names = archived(instant)
    return any(f"{name}-index" not in names for name in names if not name.endswith("-index"))


def test_parts_are_archived_and_retained_between_crash_points() -> None:
    seen = instants("archive/offload")
    assert (archived(seen[0]), retained(seen[0])) == (set(), set())
    assert any(has_half_a_part(instant) for instant in seen)
    assert len(archived(seen[-1])) >= 6
    assert len(retained(seen[-1])) >= 3


def test_parts_expire_between_crash_points() -> None:
    seen = instants("expiry/roll")
    assert archived(seen[0]) - archived(seen[-1])
    assert archived(seen[-1]) - archived(seen[0])
    assert any(has_half_a_part(instant) for instant in seen)
    assert not any(retained(instant) for instant in seen)


def test_an_opening_deletes_what_an_attempt_left() -> None:
    seen = instants("expiry/")
    left = archived(seen[0])
    assert left
    assert not left & archived(seen[-1])


@sized(12)
def test_few_crash_points_of_archived_logs_lose_nothing() -> None:
    result = EnumerationResult()
    for name in FEW:
        workload = EnumeratedWorkload.parse(name)
        result.add(enumerate_group((workload,), cap=1, deeper_of=0))
    assert [str(each) for each in result.violations] == []
    assert result.recoveries > 50


# --- planted faults -------------------------------------------------------------------------------


async def _nothing(*_: Any) -> None:
    """Nothing."""


def found(name: str, base: Base) -> list[str]:
    """What the crash points of a workload break; `base` was made by an engine without a fault."""
    workload = EnumeratedWorkload.parse(name)
    result = enumerate_group((workload,), cap=1, deeper_of=0, base=base)
    assert result.broken > 0
    return [violation for broken in result.violations for violation in broken.violations]


def test_a_log_that_is_truncated_in_front_of_its_archive_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = prepare("archive")
    monkeypatch.setattr(ArchiveHold, "truncation_bound", lambda _: None)
    monkeypatch.setattr(LogTruncation, "_retain_from", lambda _: None)
    assert any("of the operations behind" in each for each in found("archive/checkpoint", base))


def test_an_attempt_whose_objects_stay_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    base = prepare("archive")
    monkeypatch.setattr(ObjectLedgerOffloader, "delete_offloaded", _nothing)
    assert any("is of no part" in each for each in found("archive/offload", base))
