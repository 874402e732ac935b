"""The workload behind a wire server: what it reaches, and that no crash and no cut loses anything.

More of it: HARNESS_WIRE_RUNS.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from recovery.harness.history import CallKind, CallOutcome
from recovery.harness.runs.plan import draw_plan
from recovery.harness.runs.scenario import Scenario
from recovery.harness.simulation.virtual_loop import run_virtual
from recovery.harness.simulation.wire_connections import MemoryConnection
from segmentstore.wire.commands import Hello, KeepAlive
from tests.support.suites import size, sized

RUNS = size("HARNESS_WIRE_RUNS", 3, 40)


@sized(45)
@pytest.mark.timeout(300 + 15 * RUNS)
def test_no_crash_and_no_cut_connection_loses_anything() -> None:
    ends: Counter[tuple[CallKind, CallOutcome]] = Counter()
    errors: Counter[str] = Counter()
    windows: Counter[str] = Counter()
    compacted = 0
    for number in range(RUNS):
        result = Scenario(draw_plan(f"wire/{number}", "wire")).run()
        assert [str(violation) for violation in result.violations] == [], number
        ends.update((call.kind, call.outcome) for call in result.history.calls)
        errors.update(call.error for call in result.history.calls)
        windows.update(result.windows)
        compacted += sum(
            seen.entries is not None and seen.start_offset > 0
            for observation in result.history.observations
            for seen in observation.segments.values()
        )
    ok, unknown = CallOutcome.OK, CallOutcome.UNKNOWN
    for kind in (CallKind.EVENT, CallKind.SET_UP, CallKind.TABLE_UPDATE, CallKind.TABLE_REMOVE):
        assert ends[kind, ok] > 0
        assert ends[kind, unknown] > 0
    assert ends[CallKind.TABLE_READ, ok] > 0
    met = ("NotStored", "BadOffsetError", "BadKeyVersionError", "KeyNotFoundError", "Decided")
    assert [error for error in met if not errors[error]] == []
    assert compacted > 0
    assert windows["decided"] > 10 * windows["undecided"]


class Echo(asyncio.Protocol):
    """A server that gives back every byte."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def test_a_server_that_does_not_read_has_the_rest_later_and_a_cut_loses_it() -> None:
    async def main() -> None:
        server = Echo()
        connection = MemoryConnection(lambda: server)
        server.transport.pause_reading()
        connection.put(Hello(16, 5), KeepAlive())
        assert connection.received == 0
        server.transport.resume_reading()
        assert await connection.take() == Hello(16, 5)
        assert await connection.take() == KeepAlive()
        server.transport.pause_reading()
        connection.put(KeepAlive())
        connection.cut()
        server.transport.resume_reading()
        assert await connection.take() is None

    run_virtual(main())


@pytest.mark.parametrize(("sent_max", "received_max"), [(20, None), (None, 20)])
def test_a_cut_ends_both_directions_at_its_byte(
    sent_max: int | None, received_max: int | None
) -> None:
    async def main() -> None:
        connection = MemoryConnection(Echo, sent_max, received_max)
        connection.put(Hello(16, 5), Hello(16, 5), Hello(16, 5))
        assert connection.received == 20
        assert await connection.take() == Hello(16, 5)
        assert await connection.take() is None
        assert connection.reached_bound

    run_virtual(main())
