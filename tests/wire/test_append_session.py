"""Append sessions: order of reports, failures, and exactly once through broken connections."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.wire.append_session import (
    LENGTH_UNKNOWN,
    AppendAcknowledged,
    AppendRefused,
    AppendSession,
    AppendTicket,
    Refusal,
)
from segmentstore.wire.commands import NOT_SET
from segmentstore.wire.errors import WireError


def session(last: int = NOT_SET) -> AppendSession:
    return AppendSession("s", last)


class TestReports:
    def test_an_append_is_acknowledged_with_the_number_before_it(self) -> None:
        one = session(last=4)
        ticket = one.begin(9, 7)
        assert (ticket.expected, one.settle()) == (4, [])
        ticket.stored(120)
        assert one.settle() == [AppendAcknowledged(9, 4, 120, 7)]
        assert one.settle() == []

    def test_each_append_expects_the_number_of_the_one_before_it(self) -> None:
        one = session()
        assert [one.begin(number, 7).expected for number in (2, 3, 7)] == [NOT_SET, 2, 3]

    def test_acknowledgements_that_are_due_become_one(self) -> None:
        one = session(last=1)
        for number in (2, 3, 4):
            one.begin(number, 7).stored(100 * number)
        assert one.settle() == [AppendAcknowledged(4, 1, 400, 7)]

    def test_appends_with_ids_of_their_own_are_acknowledged_each(self) -> None:
        one = session(last=1)
        for number in (2, 3):
            one.begin(number, 10 + number).stored(100 * number)
        assert one.settle() == [
            AppendAcknowledged(2, 1, 200, 12),
            AppendAcknowledged(3, 2, 300, 13),
        ]

    def test_a_later_outcome_waits_for_an_earlier_one(self) -> None:
        one = session()
        first, second = one.begin(1, 7), one.begin(2, 7)
        second.refused(Refusal.SEALED)
        assert one.settle() == []
        first.stored(10)
        assert one.settle() == [
            AppendAcknowledged(1, NOT_SET, 10, 7),
            AppendRefused(2, Refusal.SEALED, 7),
        ]

    @pytest.mark.parametrize("reason", [each for each in Refusal if each is not Refusal.OFFSET])
    def test_a_failure_ends_the_session_and_what_is_behind_it_gets_no_report(
        self, reason: Refusal
    ) -> None:
        one = session()
        first, second = one.begin(1, 7), one.begin(2, 7)
        first.refused(reason)
        assert one.settle() == [AppendRefused(1, reason, 7)]
        assert one.ended
        second.stored(10)
        assert (one.settle(), one.in_flight) == ([], 0)


class TestConditions:
    def test_a_number_whose_offset_was_wrong_may_be_used_again(self) -> None:
        one = session(last=3)
        one.begin(4, 7).refused(Refusal.OFFSET)
        assert one.settle() == [AppendRefused(4, Refusal.OFFSET, 7)]
        assert not one.ended
        again = one.begin(4, 7)
        assert (again.expected, again.is_repeated) == (3, False)

    def test_what_was_sent_behind_a_wrong_offset_still_expects_it(self) -> None:
        one = session(last=3)
        first, second = one.begin(4, 7), one.begin(5, 7)
        first.refused(Refusal.OFFSET)
        assert one.settle() == [AppendRefused(4, Refusal.OFFSET, 7)]
        second.refused(Refusal.NUMBER)
        assert one.settle() == [AppendRefused(5, Refusal.NUMBER, 7)]


class TestRepeatedAppends:
    def test_one_that_is_durable_is_acknowledged_at_once(self) -> None:
        one = session(last=5)
        assert one.begin(5, 7).is_repeated
        assert one.settle() == [AppendAcknowledged(5, 4, LENGTH_UNKNOWN, 7)]

    def test_one_that_is_on_its_way_is_acknowledged_with_it(self) -> None:
        one = session(last=1)
        first, again = one.begin(2, 7), one.begin(2, 7)
        assert again.is_repeated
        assert one.settle() == []
        first.stored(50)
        assert one.settle() == [AppendAcknowledged(2, 1, 50, 7)]

    def test_one_whose_original_was_refused_is_not_acknowledged(self) -> None:
        one = session(last=1)
        first = one.begin(2, 7)
        one.begin(2, 7)
        first.refused(Refusal.OFFSET)
        assert one.settle() == [
            AppendRefused(2, Refusal.OFFSET, 7),
            AppendRefused(2, Refusal.NUMBER, 7),
        ]

    def test_numbers_that_go_down_are_refused(self) -> None:
        one = session()
        one.begin(3, 7)
        with pytest.raises(WireError, match="2 follows 3"):
            one.begin(2, 7)

    @pytest.mark.parametrize("number", [-1, NOT_SET])
    def test_negative_numbers_are_refused(self, number: int) -> None:
        with pytest.raises(WireError):
            session().begin(number, 7)


@dataclass
class Segment:
    """What a segment does with appends: it settles them later, in the order of their arrival."""

    events: list[int] = field(default_factory=list)
    number: int = NOT_SET
    queue: deque[tuple[AppendTicket, Sequence[int]]] = field(default_factory=deque)

    def settle_one(self) -> None:
        ticket, events = self.queue.popleft()
        if self.number == ticket.expected:
            self.events += events
            self.number = ticket.number
            ticket.stored(len(self.events))
        else:
            ticket.refused(Refusal.NUMBER)


class TestExactlyOnce:
    @given(st.data())
    def test_events_are_stored_once_and_in_order_whatever_breaks(self, data: st.DataObject) -> None:
        """A writer whose connection breaks at any time, while appends are on their way."""
        segment, total, acked = Segment(), 12, 0
        for _ in range(60):
            if acked == total:
                break
            # A new connection, of which the answer may come before older appends are settled.
            one = session(segment.number)
            sent = max(0, segment.number)
            acked = max(acked, sent)
            while data.draw(st.integers(0, 5)) and not one.ended:
                if sent < total and data.draw(st.booleans()):
                    end = data.draw(st.integers(sent + 1, total))
                    ticket = one.begin(end, 7)
                    segment.queue.append((ticket, range(sent + 1, end + 1)))
                    sent = end
                elif segment.queue:
                    segment.settle_one()
                for report in one.settle():
                    if isinstance(report, AppendAcknowledged):
                        assert report.previous < acked + 1 <= report.number
                        acked = report.number
                        assert segment.events[:acked] == list(range(1, acked + 1))
        while segment.queue:
            segment.settle_one()
        assert segment.events == list(range(1, len(segment.events) + 1))
        assert len(segment.events) >= acked
