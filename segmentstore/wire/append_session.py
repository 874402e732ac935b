"""AppendSession: the appends of one writer to one segment on one connection.

Rules (those of Pravega's AppendProcessor, release 0.13.0):

- each append replaces the writer's number in the segment by its own, and is refused if the number
  there is not that of the append before it. So blocks that were cut anew for a resend are refused
  rather than stored twice, whatever is still on its way from a former connection;
- outcomes are reported in the order of the appends. A failure waits for the acknowledgements of
  what was sent before it;
- a failed condition on the offset ends nothing: the number may be used again. Any other failure
  ends the session, and nothing that was sent behind it is stored or answered;
- an acknowledgement stands for all earlier ones of the same request id. Those that are due at once
  become one. Java's conditional appends have ids of their own, and wait for each.

Ours, and safe: an append whose number is not above the last one is not stored again, and is
acknowledged as soon as that one is durable.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final, NamedTuple

from segmentstore.wire.errors import WireError

LENGTH_UNKNOWN: Final = -1


class Refusal(enum.Enum):
    """What became of an append that was not stored."""

    OFFSET = enum.auto()
    """The segment's length was not the one expected."""
    NUMBER = enum.auto()
    """The segment's number of this writer was not the one before."""
    SEALED = enum.auto()
    MISSING = enum.auto()
    """There is no such segment."""
    ELSEWHERE = enum.auto()
    """Its container is not served here."""
    ILLEGAL = enum.auto()
    """It is too large, or the segment has too many writers: sending it again does not help."""
    UNKNOWN = enum.auto()
    """Anything else: the connection ends, and the writer asks what was stored."""


class AppendAcknowledged(NamedTuple):
    """Everything up to `number` is durable; `previous` was the number acknowledged before."""

    number: int
    previous: int
    length: int
    """Of the segment behind it; LENGTH_UNKNOWN for a repeated append."""
    request_id: int
    """Of the append."""


class AppendRefused(NamedTuple):
    """The append of this number was not stored."""

    number: int
    reason: Refusal
    request_id: int


AppendReport = AppendAcknowledged | AppendRefused


class AppendTicket:
    """One append on its way. Made by `AppendSession.begin`."""

    __slots__ = ("_length", "_refusal", "_request_id", "expected", "is_settled", "number")

    def __init__(self, number: int, expected: int, request_id: int) -> None:
        self.number: Final = number
        self._request_id: Final = request_id
        self.expected: Final = expected
        """What the writer's number in the segment has to be."""
        self.is_settled = False
        self._length = LENGTH_UNKNOWN
        self._refusal: Refusal | None = None

    @property
    def is_repeated(self) -> bool:
        """It must not be stored: what it holds is stored, or on its way."""
        return self.number <= self.expected

    def stored(self, length: int) -> None:
        """It is durable; `length` of the segment is where it ends."""
        self._length, self.is_settled = length, True

    def refused(self, reason: Refusal) -> None:
        """It was not stored."""
        self._refusal, self.is_settled = reason, True

    def report(self, acked: int) -> AppendReport:
        """What becomes of it, behind an append of number `acked`."""
        if self._refusal is not None:
            return AppendRefused(self.number, self._refusal, self._request_id)
        if not self.is_repeated:
            return AppendAcknowledged(self.number, acked, self._length, self._request_id)
        if self.number > acked:
            # The append that it repeats was refused.
            return AppendRefused(self.number, Refusal.NUMBER, self._request_id)
        return AppendAcknowledged(self.number, self.number - 1, LENGTH_UNKNOWN, self._request_id)


class AppendSession:
    """State of a writer on a segment, from one set-up on."""

    __slots__ = ("_acked", "_sent", "_stored", "_tickets", "ended", "segment")

    def __init__(self, segment: str, last_number: int) -> None:
        """`last_number`: the writer's number in the segment, durable; NOT_SET for none."""
        self.segment: Final = segment
        self.ended = False
        """A failure was reported: further appends are dropped."""
        self._stored = self._acked = last_number
        self._sent = 0
        """The highest number of this session. Numbers of events begin at 1."""
        self._tickets: deque[AppendTicket] = deque()

    def begin(self, number: int, request_id: int) -> AppendTicket:
        """Enter an append of events up to `number`, which is to be stored unless it is repeated.

        Raises WireError if numbers go down, or below 0.
        """
        if number < self._sent:
            raise WireError(f"event number {number} follows {self._sent}")
        self._sent = number
        ticket = AppendTicket(number, self._stored, request_id)
        if ticket.is_repeated:
            ticket.is_settled = True
        else:
            self._stored = number
        self._tickets.append(ticket)
        return ticket

    @property
    def in_flight(self) -> int:
        """Appends without a report."""
        return len(self._tickets)

    def settle(self) -> list[AppendReport]:
        """What is to be reported now that tickets were settled, in order. O(reports)."""
        tickets, reports = self._tickets, list[AppendReport]()
        while tickets and tickets[0].is_settled:
            report = tickets.popleft().report(self._acked)
            if isinstance(report, AppendRefused):
                reports.append(report)
                if report.reason is not Refusal.OFFSET:
                    self.ended = True
                    tickets.clear()
                elif not tickets:
                    self._stored = self._acked
            elif (
                reports
                and isinstance(joined := reports[-1], AppendAcknowledged)
                and joined.request_id == report.request_id
            ):
                if report.number > joined.number:
                    reports[-1] = report._replace(previous=joined.previous)
            else:
                reports.append(report)
            if isinstance(report, AppendAcknowledged):
                self._acked = max(self._acked, report.number)
        return reports
