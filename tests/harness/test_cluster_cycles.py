"""Cycles of faults of a real cluster: the plan, the checks, and a small run."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from recovery.harness.clusters.__main__ import run_cycles
from recovery.harness.clusters.cycle_plan import KINDS, SESSION_TIMEOUT_S, draw_steps
from recovery.harness.clusters.cycle_report import CycleSeen, CyclesReport, quantile
from recovery.harness.clusters.sent_events import Sender, event_bytes, events_in, violations
from tests.support.suites import slow

SEGMENT = "s"
SEED = "small-818"
"""Of six cycles of different kinds: kills, a pause, cuts and a bookie."""


def test_a_plan_comes_from_its_seed_and_has_all_kinds_in_each_deck() -> None:
    deck = sum(KINDS.values())
    steps = list(islice(draw_steps("a"), 3 * deck))
    assert steps == list(islice(draw_steps("a"), 3 * deck))
    assert steps != list(islice(draw_steps("b"), 3 * deck))
    for begin in range(0, len(steps), deck):
        assert Counter(step.kind for step in steps[begin : begin + deck]) == KINDS
    for step in steps:
        if "shorter" in step.kind:
            assert step.seconds < SESSION_TIMEOUT_S
        assert "longer" not in step.kind or step.seconds > SESSION_TIMEOUT_S


def sender(*, exactly_once: bool = True, number: int = 0, sent: int = 4) -> Sender:
    """One whose events were all acknowledged, one behind the other."""
    made = Sender(number, SEGMENT, exactly_once, sent=sent)
    offset = 0
    for event in range(sent):
        made.acknowledged[event] = offset
        offset += len(event_bytes(number, event))
    return made


def content(*numbers: int, of: int = 0) -> bytes:
    return b"".join(event_bytes(of, number) for number in numbers)


@pytest.mark.parametrize("exactly_once", [True, False])
def test_what_was_acknowledged_is_there_once_in_order(exactly_once: bool) -> None:
    made = sender(exactly_once=exactly_once)
    whole = content(0, 1, 2, 3)
    assert [each.number for each in events_in(whole)] == [0, 1, 2, 3]
    assert violations(SEGMENT, whole, [made]) == []
    for wrong, text in (
        (content(0, 1, 2), "1 acknowledged events are missing: [3]"),
        (content(0, 1, 2, 3, 3), "1 events are there twice"),
        (content(0, 2, 1, 3), "another order"),
        (content(1, 0, 2, 3), "not where they were acknowledged"),
        (content(0, 1, 2, 3, 4), "never sent: [4]"),
        (whole + content(0, of=1), "sends to others"),
        (whole[:-1], "not the bytes of event 3"),
        (whole + b"x", "ends within an event"),
        (whole[:20] + b"\0" + whole[21:], "not the bytes of event 0"),
    ):
        found = violations(SEGMENT, wrong, [made])
        assert any(text in each for each in found), (text, found)


def test_an_append_of_unknown_outcome_may_be_missing_or_late() -> None:
    made = sender(exactly_once=False)
    offset = made.acknowledged.pop(1)
    assert offset is not None
    made.unknown.add(1)
    # Offsets are those of a segment in which it is the last one.
    for number in (2, 3):
        made.acknowledged[number] = content(0, 2, 3).index(event_bytes(0, number))
    assert violations(SEGMENT, content(0, 2, 3), [made]) == []
    assert violations(SEGMENT, content(0, 2, 3, 1), [made]) == []
    assert violations(SEGMENT, content(0, 2, 3, 1, 1), [made])


def test_a_gap_in_the_events_of_a_writer_is_found() -> None:
    made = sender(sent=3)
    made.acknowledged = {0: 0}
    assert violations(SEGMENT, content(0, 1), [made]) == []
    assert "there is a gap in its events" in violations(SEGMENT, content(0, 2), [made])[0]


def test_a_report_has_each_kind_with_its_waits() -> None:
    report = CyclesReport("a", acknowledged=7, violations=["one"])
    report.cycles += [CycleSeen("x", 2.0, 0.5, 0.7), CycleSeen("y", 3.0, 1.5, 0.25)]
    assert report.cycles[0].text() == "x: 2.0 s, longest wait 0.5 s, of the wire 0.7 s"
    text = report.text()
    assert text.splitlines()[4].split() == ["x", "1", *["0.50"] * 3, *["0.70"] * 3]
    assert "7 events acknowledged" in text
    assert text.endswith("1 violations\none")
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0]


@slow(90)
@pytest.mark.timeout(900)
def test_a_real_cluster_serves_on_over_faults_of_six_kinds_and_a_rolling_restart(
    tmp_path: Path,
) -> None:
    """`make cluster-kills` runs hundreds of cycles."""
    said: list[str] = []
    report = run_cycles(tmp_path, SEED, 6, said.append)
    assert report.violations == [], "\n".join(said)
    assert len({each.kind for each in report.cycles}) == 6
    assert len(report.rolling) == 7
    assert report.killed == 3
    assert report.acknowledged > 500
    assert report.openings > 6
