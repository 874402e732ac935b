"""Every crash point of short workloads: nothing is lost, planted faults are found, names lead back
to their states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from durablelog.file.group_writer import GroupWriter
from durablelog.file.log_state import StateFile
from recovery.harness.checkers import all_checks
from recovery.harness.checkers.index import HistoryIndex
from recovery.harness.enumeration.driver import (
    DEEPER_OF,
    EnumerationResult,
    enumerate_all,
    enumerate_group,
    groups,
    lower_cap,
    replay,
)
from recovery.harness.enumeration.instants import CopiedBucket, states
from recovery.harness.enumeration.recovery import StateRecovery
from recovery.harness.enumeration.workloads import (
    OPERATIONS,
    STAGES,
    EnumeratedWorkload,
    prepare,
    record,
    workloads,
)
from recovery.harness.history import CallOutcome, Violation
from recovery.harness.simulation.fault_points import EFFECTS, TABLE
from tests.harness.trace_program import of_another_process, shown_names
from tests.support.suites import slow

SLICES = 24
SHARE = 4
"""Here the caps are divided by it; `crashtest` and the long run have them whole."""
STATES_OF_A_SLICE = 500
"""What is expected at the least; most have more than 2,000."""
SELDOM = ("ledger.append", "ledger.open", "ledger.truncate")
"""Effects of parts that short workloads do not have, or of retries they never need."""
REFUSED = {"idle/claim": ["SegmentExistsError"]}
"""By workload of one operation; all the others do what they ask for."""
OTHER_TIER1 = ("bookkeeper.", "node.")
"""Short workloads have their log in files."""


def test_few_crash_points_lose_nothing() -> None:
    result = EnumerationResult()
    for group in groups()[:: 8 * SLICES]:
        result.add(enumerate_group(group, cap=lower_cap(group, SHARE), deeper_of=2 * DEEPER_OF))
    assert [str(each) for each in result.violations] == []
    assert result.broken == 0
    assert result.recoveries > 0


@slow(35)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(SLICES))
def test_no_crash_point_of_any_short_workload_loses_anything(number: int) -> None:
    result = EnumerationResult()
    for group in groups()[number::SLICES]:
        result.add(enumerate_group(group, cap=lower_cap(group, SHARE), deeper_of=2 * DEEPER_OF))
    print(
        f"slice {number}: {result.workloads} workloads, {result.points} points, "
        f"{result.states} states, "
        f"{result.recoveries} recoveries, {result.sampled} sampled, longest "
        f"{result.longest_recovery_s:.3f} s"
    )
    assert [str(each) for each in result.violations] == []
    assert result.broken == 0
    assert result.states >= STATES_OF_A_SLICE
    assert result.points >= STATES_OF_A_SLICE // 3
    assert result.recoveries >= STATES_OF_A_SLICE // 2
    assert set(result.fault_points) <= set(TABLE)


def test_the_slices_hold_every_workload_of_up_to_three_operations_once() -> None:
    sliced = [
        str(each)
        for number in range(SLICES)
        for group in groups()[number::SLICES]
        for each in group
    ]
    assert len(set(sliced)) == len(sliced)
    count = len(OPERATIONS)
    alone = [name for name in sliced if re.fullmatch(r"object/[a-z,]*", name)]
    assert len(alone) == 1 + count + count**2 + count**3
    assert all(str(EnumeratedWorkload.parse(name)) == name for name in sliced)


def test_every_operation_does_its_work_and_every_effect_is_a_crash_point() -> None:
    met: dict[str, None] = {}
    for stage in STAGES:
        base = prepare(stage)
        for workload in [each for each in workloads(1) if each.stage == stage]:
            recording = record(workload, base)
            calls = recording.history.calls
            errors = [call.error for call in calls if call.outcome is not CallOutcome.OK]
            assert errors == REFUSED.get(str(workload), []), str(workload)
            met |= dict.fromkeys(instant.before for instant in recording.instants)
    missed = [
        effect for effect in EFFECTS if effect not in met and not effect.startswith(OTHER_TIER1)
    ]
    assert sorted(missed) == sorted(SELDOM)


def test_a_put_that_is_on_its_way_takes_effect_or_not_or_during_the_recovery() -> None:
    recording = record(EnumeratedWorkload.parse("object/append,seal,flush"), prepare("object"))
    # Puts of the marker, which is there already, change nothing.
    instant = next(
        each
        for each in recording.instants
        if each.after == "object.put"
        and len({len(bucket.objects) for bucket in each.outside.bucket.outcomes()}) > 1
    )
    none, landed, late = instant.outside.bucket.outcomes()
    assert len(landed.objects) == len(none.objects) + 1 == len(late.objects) + 1
    assert (none.in_flight(), landed.in_flight(), late.in_flight()) == (0, 0, 1)
    assert len({bucket.key() for bucket in (none, landed, late)}) == 3
    assert [state.name for state in states(instant, 64)][-3:] == ["kill.0", "kill.1", "kill.2"]
    assert CopiedBucket().outcomes()[0].objects == {}


# --- planted faults -------------------------------------------------------------------------------


class Without:
    """Another object, one of whose methods does nothing."""

    def __init__(self, whole: Any, method: str) -> None:
        self._whole = whole
        self._method = method

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: None) if name == self._method else getattr(self._whole, name)


def without(owner: type, method: str, field: str, call: str) -> Callable[..., Any]:
    """`owner.method` in which `self.field.call()` does nothing."""
    real = getattr(owner, method)

    def planted(self: Any, *arguments: Any) -> Any:
        whole = getattr(self, field)
        setattr(self, field, Without(whole, call))
        try:
            return real(self, *arguments)
        finally:
            if isinstance(getattr(self, field), Without):
                setattr(self, field, whole)

    return planted


def believing(self: GroupWriter, prepared: Any, first_sequence: int, copied: list[bytes]) -> None:
    """`GroupWriter._name` without the sync of the frames that the log before has left in doubt."""
    whole = prepared.file
    prepared.file = Without(whole, "sync")
    try:
        REAL_NAME(self, prepared, first_sequence, copied)
    finally:
        prepared.file = whole


REAL_NAME = GroupWriter._name
PLANTED = {
    # What is left out: where, how, and a workload that needs it.
    "the sync before the acknowledgement": (
        (GroupWriter, "write", without(GroupWriter, "write", "_file", "sync")),
        "append,append",
    ),
    "the sync of the folder a log file got its name in": (
        (GroupWriter, "_name", without(GroupWriter, "_name", "_disk", "sync_directory")),
        "append,roll",
    ),
    "the sync of the folder of the state record": (
        (StateFile, "_follow", without(StateFile, "_follow", "_disk", "sync_directory")),
        "flush,checkpoint",
    ),
    "the sync of a tail that recovery believes": (
        (GroupWriter, "_name", believing),
        "append,append",
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_in_one_workload(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (owner, method, planted), operations = PLANTED[fault]
    workload = EnumeratedWorkload.parse(f"object/{operations}")
    base = prepare(workload.stage)
    monkeypatch.setattr(owner, method, planted)
    found = enumerate_group((workload,), base=base, cap=4)
    assert 0 < found.broken < found.states
    first = found.violations[0]
    assert tuple(replay(first.name, base=base).violations) == first.violations


def test_a_state_whose_checker_raises_is_broken_under_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = prepare("object")

    def planted(index: HistoryIndex) -> Iterator[Violation]:
        if index.observations[-1].segments:
            raise KeyError("planted")
        yield from ()

    monkeypatch.setattr(all_checks, "CHECKERS", (planted,))
    found = enumerate_group(
        (EnumeratedWorkload.parse("object/append"),), base=base, cap=1, deeper_of=0
    )
    assert found.broken == found.states > 1
    first = found.violations[0]
    error = "harness: KeyError: 'planted' ["
    assert str(first).startswith(f"{first.name}: {error}")
    # Behind it are the last frames, some of which differ.
    assert [each.startswith(error) for each in replay(first.name, base=base).violations] == [True]


def test_a_recovery_whose_driver_raises_is_broken_under_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planted(self: StateRecovery) -> Any:
        raise ZeroDivisionError(self)

    base = prepare("object")
    monkeypatch.setattr(StateRecovery, "run", planted)
    found = enumerate_group(
        (EnumeratedWorkload.parse("object/append"),), base=base, cap=1, deeper_of=0
    )
    assert found.broken == found.states > 1
    again = replay(found.violations[0].name, base=base)
    assert [each[:26] for each in again.violations] == ["harness: ZeroDivisionError"]
    assert again.trace


# --- names ----------------------------------------------------------------------------------------

NAME = "object/flush,checkpoint@5.kill.0"


def test_a_name_leads_to_the_same_state_and_trace_in_every_process() -> None:
    names = (NAME, "object/append@1.0.0@7.kill.0", "object/append+flush@2.kill.1")
    shown = list(shown_names(*names))
    assert "\n".join(shown).splitlines() == of_another_process("names", *names)
    again = replay(NAME)
    assert f"{NAME} {again.digest} []" in shown
    assert any("--- crash 5.kill.0" in line for line in again.trace)


@pytest.mark.parametrize(
    "name", ["object/append", "object/jump@0.kill.0", "object/append@0.9.0", "object/@999.kill.0"]
)
def test_a_name_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no "):
        replay(name)


@slow(8)
def test_one_process_and_two_show_the_same() -> None:
    shown: list[EnumerationResult] = []
    for jobs in (1, 2):
        seen: list[int] = []

        def note(so_far: EnumerationResult, seen: list[int] = seen) -> None:
            seen.append(so_far.points)

        result = enumerate_all(
            depth=1, cap=1, deeper_of=0, operations=("seal",), jobs=jobs, on_progress=note
        )
        assert seen == sorted(seen)
        assert seen[-1] == result.points
        assert result.violations == []
        shown.append(replace(result, seconds=0.0))
    assert shown[0] == shown[1]
