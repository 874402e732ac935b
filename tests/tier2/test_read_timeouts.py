"""When a read is late, and when a connection is dead: by what reads took lately, within bounds."""

from __future__ import annotations

import pytest

from tier2.s3.read_timeouts import (
    DEAD_IN_A_ROW,
    LATE_MIN_S,
    LENGTHS,
    OBJECTS_MAX,
    READ_TIMEOUTS_S,
    SAMPLES_MIN,
    SAVED_MAX,
    SHARE,
    UNMEASURED_S,
    ReadTimeouts,
)

SMALL, LARGE = LENGTHS


def measured(seconds: float, length: int = SMALL) -> ReadTimeouts:
    patience = ReadTimeouts()
    for _ in range(SAMPLES_MIN):
        patience.took(length, seconds)
    return patience


def test_nothing_is_late_before_there_is_a_measure() -> None:
    patience = ReadTimeouts()
    for _ in range(SAMPLES_MIN - 1):
        patience.took(SMALL, 0.02)
        assert patience.late_after_s(SMALL) is None
        assert patience.dead_after_s() == UNMEASURED_S
    patience.took(SMALL, 0.02)
    assert patience.late_after_s(SMALL) == pytest.approx(0.06)
    assert patience.dead_after_s() == READ_TIMEOUTS_S[0]
    assert patience.late_after_s(LARGE) is None
    assert patience.late_after_s(LARGE + 1) is None


@pytest.mark.parametrize(
    ("usual", "late", "dead"),
    [(0.001, LATE_MIN_S, 5), (0.1, 0.3, 5), (0.4, 1.2, 10), (1.0, 3.0, 30), (60.0, 180.0, 30)],
)
def test_both_follow_what_nearly_all_took_within_bounds(
    usual: float, late: float, dead: int
) -> None:
    patience = measured(usual)
    assert patience.late_after_s(1) == pytest.approx(late)
    assert patience.dead_after_s() == dead


def test_a_few_that_took_long_change_nothing() -> None:
    patience = measured(0.02)
    for number in range(400):
        patience.took(SMALL, 50.0 if number % 40 == 0 else 0.02)
    assert patience.late_after_s(SMALL) == pytest.approx(0.06)
    assert patience.dead_after_s() == READ_TIMEOUTS_S[0]


def test_second_requests_are_a_share_of_all_reads() -> None:
    patience = ReadTimeouts()
    sent = 0
    for _ in range(1000):
        patience.begun()
        sent += patience.may_repeat()
    assert sent == pytest.approx(SAVED_MAX + 1000 * SHARE, abs=1)


def test_a_provider_that_is_slow_as_a_whole_is_given_longer_until_a_row_of_reads_succeeded() -> (
    None
):
    patience = measured(0.02)
    for timeout_s, longer in zip(
        READ_TIMEOUTS_S, (*READ_TIMEOUTS_S[1:], READ_TIMEOUTS_S[-1]), strict=True
    ):
        for _ in range(DEAD_IN_A_ROW):
            assert patience.dead_after_s() == timeout_s
            patience.timed_out(timeout_s)
        assert patience.dead_after_s() == longer
    for _ in range(SAMPLES_MIN):
        assert patience.dead_after_s() == READ_TIMEOUTS_S[-1]
        patience.took(SMALL, 0.02)
    assert patience.dead_after_s() == READ_TIMEOUTS_S[0]


def test_one_connection_that_is_dead_among_others_that_live_is_no_reason_to_wait_longer() -> None:
    patience = measured(0.02)
    for _ in range(10 * DEAD_IN_A_ROW):
        patience.timed_out(READ_TIMEOUTS_S[0])
        patience.took(SMALL, 0.02)
    assert patience.dead_after_s() == READ_TIMEOUTS_S[0]


def test_an_object_that_begins_slowly_gets_longer_while_others_answer_at_once() -> None:
    """Else it could not be read at all: it would be given up for ever, and others end each row of
    dead connections.
    """
    patience = measured(0.02)
    patience.timed_out(READ_TIMEOUTS_S[0], "slow")
    patience.timed_out(READ_TIMEOUTS_S[0], "slow")
    assert patience.dead_after_s("slow") == READ_TIMEOUTS_S[0], "no answer came between"
    for timeout_s, longer in zip(
        READ_TIMEOUTS_S, (*READ_TIMEOUTS_S[1:], READ_TIMEOUTS_S[-1]), strict=True
    ):
        assert patience.dead_after_s("slow") == timeout_s
        patience.took(SMALL, 0.02, "other")
        patience.timed_out(timeout_s, "slow")
        assert patience.dead_after_s("slow") == longer
        assert patience.dead_after_s("other") == READ_TIMEOUTS_S[0]
    patience.took(LARGE, 20.0, "slow")
    assert patience.dead_after_s("slow") == READ_TIMEOUTS_S[-1]
    patience.took(LARGE, 0.2, "slow")
    assert patience.dead_after_s("slow") == READ_TIMEOUTS_S[0]


def test_what_is_kept_of_slow_objects_is_bounded() -> None:
    patience = measured(0.02)
    for number in range(OBJECTS_MAX + 10):
        patience.timed_out(READ_TIMEOUTS_S[0], str(number))
    assert len(patience._slow) == OBJECTS_MAX
