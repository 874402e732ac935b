"""The workload of clients of `segmentstore.connect`: what it reaches, and that no crash and no cut
loses or doubles anything.

More of it: HARNESS_CONNECT_RUNS.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from recovery.harness.history import Call, CallKind, CallOutcome
from recovery.harness.records import append_record, event_record
from recovery.harness.runs.plan import draw_plan
from recovery.harness.runs.scenario import Scenario
from recovery.harness.simulation.memory_links import MemoryLink
from recovery.harness.simulation.virtual_loop import run_virtual
from recovery.harness.workloads.outcome_watch import OutcomeWatch
from recovery.harness.workloads.wire_writers import WireFaultError
from segmentstore.wire.codec import encode
from segmentstore.wire.store_commands import (
    NO_LIMIT,
    SEAL,
    AppendBytes,
    AppendEvents,
    ChangeSegment,
    EventToAppend,
    MergeSegment,
    MergeSegmentList,
    NumbersGiven,
    RequestRefused,
)
from tests.support.suites import size, sized

RUNS = size("HARNESS_CONNECT_RUNS", 4, 40)


@sized(180)
@pytest.mark.timeout(300 + 15 * RUNS)
def test_no_crash_and_no_cut_connection_loses_or_doubles_anything() -> None:
    ends: Counter[tuple[CallKind, CallOutcome]] = Counter()
    errors: Counter[str] = Counter()
    merged = 0
    for number in range(RUNS):
        result = Scenario(draw_plan(f"connect/{number}", "connect")).run()
        assert [str(violation) for violation in result.violations] == [], number
        ends.update((call.kind, call.outcome) for call in result.history.calls)
        errors.update(call.error for call in result.history.calls)
        merged += sum(
            call.kind is CallKind.MERGE and call.event > 0 for call in result.history.calls
        )
    for kind in (CallKind.APPEND, CallKind.EVENT):
        assert ends[kind, CallOutcome.OK] > 0
        assert ends[kind, CallOutcome.UNKNOWN] > 0
    for kind in (CallKind.CREATE, CallKind.DELETE, CallKind.MERGE, CallKind.READ):
        assert ends[kind, CallOutcome.OK] > 0
    met = ("AppendOutcomeUnknownError", "StoreDisconnectedError", "BadOffsetError")
    assert [error for error in met if not errors[error]] == []
    assert merged > 0


# --- links ----------------------------------------------------------------------------------------


class Side(asyncio.Protocol):
    """Keeps what it receives; a server gives it back."""

    transport: asyncio.Transport

    def __init__(self, *, echoes: bool = False) -> None:
        self.echoes = echoes
        self.data = b""
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        if self.echoes:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


async def turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("delay_s", [0.0, 0.002])
@pytest.mark.parametrize(
    ("bounds", "received"), [((3, None), b"abc"), ((None, 4), b"abcd"), ((None, None), b"abcdef")]
)
def test_a_link_is_cut_at_its_byte(
    bounds: tuple[int | None, int | None], received: bytes, delay_s: float
) -> None:
    async def main() -> None:
        client, server = Side(), Side(echoes=True)
        link = MemoryLink(client, server, *bounds, delay_s)
        client.transport.writelines([b"ab", b"c"])
        client.transport.write(b"def")
        await turns()
        if bounds == (3, None):
            assert (client.data, server.data) == (b"", received)
        else:
            assert client.data == received
        assert link.is_cut == client.is_lost == server.is_lost == (bounds != (None, None))
        assert link.ended_by == ("cut" if link.is_cut else "")

    run_virtual(main())


def test_a_close_lets_arrive_what_was_written_and_an_abort_does_not() -> None:
    async def main() -> None:
        for end, arrived in (("close", b"ab"), ("abort", b"")):
            client, server = Side(), Side()
            link = MemoryLink(client, server)
            server.transport.write(b"ab")
            getattr(server.transport, end)()
            server.transport.write(b"c")
            await turns()
            assert (client.data, link.ended_by, client.is_lost) == (arrived, "server", True)

    run_virtual(main())


def test_who_does_not_read_has_the_rest_later() -> None:
    async def main() -> None:
        client, server = Side(), Side()
        MemoryLink(client, server)
        server.transport.pause_reading()
        client.transport.write(b"ab")
        await turns()
        assert server.data == b""
        server.transport.resume_reading()
        await turns()
        assert server.data == b"ab"

    run_virtual(main())


# --- outcomes -------------------------------------------------------------------------------------


def call_of(kind: CallKind, number: int, error: str, **fields: Any) -> Call:
    call = Call(number, 0, "one", kind, "s", 1, **fields)
    call.error = error
    return call


def watched(*replies: Any) -> OutcomeWatch:
    """Call 0 and two events of writer 7 were sent, a seal, and merges of three sources."""
    watch = OutcomeWatch()
    events = tuple(EventToAppend(each, event_record(7, each, 3)) for each in (1, 2))
    for command in (
        AppendBytes(1, NO_LIMIT, "s", (), append_record(0, 0, 5)),
        AppendEvents(2, 9, events),
        ChangeSegment(3, SEAL, 0, "s"),
        MergeSegmentList(4, "s", ("a", "b")),
        MergeSegment(5, "s", "c", ()),
    ):
        watch.sent(encode(command))
    for reply in replies:
        watch.received(encode(reply))
    return watch


APPEND = call_of(CallKind.APPEND, 0, "AppendOutcomeUnknownError")
EVENT_1 = call_of(CallKind.EVENT, 1, "AppendOutcomeUnknownError", writer=7, event=1)
EVENT_2 = call_of(CallKind.EVENT, 2, "AppendOutcomeUnknownError", writer=7, event=2)
SEALING = call_of(CallKind.SEAL, 3, "AppendOutcomeUnknownError")
MERGES = [
    call_of(CallKind.MERGE, 4, "AppendOutcomeUnknownError", source=source) for source in "abc"
]
REFUSED = RequestRefused(1, "AppendOutcomeUnknownError", b"{}")


def test_what_was_sent_and_has_no_result_is_unknown() -> None:
    watched().check([APPEND, EVENT_1, EVENT_2, SEALING])
    watched(NumbersGiven(2, (0,))).check([APPEND, EVENT_2, SEALING])
    watched(REFUSED).check([APPEND])
    watched().check(MERGES)
    watched(NumbersGiven(4, (3, 9))).check(MERGES[2:])
    watched(NumbersGiven(5, (0, 3))).check(MERGES[:2])


@pytest.mark.parametrize(
    ("watch", "call"),
    [
        (lambda: watched(NumbersGiven(1, (0,))), APPEND),
        (lambda: watched(NumbersGiven(2, (0,))), EVENT_1),
        (lambda: watched(NumbersGiven(2, (0, 9))), EVENT_2),
        (lambda: watched(NumbersGiven(3, (9,))), SEALING),
        (lambda: watched(NumbersGiven(4, (3, 9))), MERGES[0]),
        (lambda: watched(NumbersGiven(4, (3, 9))), MERGES[1]),
        (lambda: watched(NumbersGiven(5, (0, 3))), MERGES[2]),
        (OutcomeWatch, APPEND),
        (OutcomeWatch, MERGES[0]),
        (watched, call_of(CallKind.APPEND, 0, "StoreDisconnectedError")),
    ],
)
def test_a_wrong_outcome_is_reported(watch: Callable[[], OutcomeWatch], call: Call) -> None:
    with pytest.raises(WireFaultError):
        watch().check([call])
