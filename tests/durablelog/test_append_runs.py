"""Appends that are taken as a run are packed and answered as each alone would be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog.frame_requests import LARGE_APPEND_BYTES
from durablelog.operations import CreateOperation, SealOperation
from durablelog.pending_segment import EventSession
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, VALUE_MAX, KeyedUpdate, UpdateType
from tests.durablelog.test_frame_packer import Bench
from tests.support.suites import examples

NAMES = ("one", "two")
WRITER, COUNT, OTHER = b"w" * 16, b"c" * 16, b"o" * 16
LIKE = ("plain", "numbered", "event")
"""Kinds that come in runs."""
UNLIKE = (
    "at the end",
    "elsewhere",
    "cancelled",
    "cancelled and numbered",
    "cancelled event",
    "replaced",
    "misnumbered",
    "set back",
    "numbered elsewhere",
    "numbered at the end",
    "without a number",
    "counted",
    "counted too far",
    "removed",
    "two of another",
    "another count",
    "numbered event",
    "event elsewhere",
    "event of another",
    "event of another elsewhere",
    "event of another writer",
    "event with a count",
    "event at the end",
    "repeated event",
    "seal",
    "create",
)


@dataclass(frozen=True)
class Call:
    """One append, or what is done to a segment in between."""

    segment: int
    size: int
    kind: str


class Caller:
    """Queues calls as callers would who know what is on its way."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._lengths = [0, 0]
        self._numbers = [0, 0]
        self._events = 0
        self._sessions = (EventSession(), EventSession())

    def queue(self, call: Call, number: int) -> asyncio.Future[object]:
        segment_id = self._bench.metadata.names[NAMES[call.segment]]
        if call.kind == "seal":
            return self._bench.submit(SealOperation(segment_id))
        if call.kind == "create":
            return self._bench.submit(CreateOperation(f"other-{number}"))
        conditions: dict[str, object] = {}
        if "at the end" in call.kind:
            conditions["expected"] = self._lengths[call.segment]
        elif "elsewhere" in call.kind:
            conditions["expected"] = self._lengths[call.segment] + 1
        if "event" in call.kind:
            conditions["event"] = self._event(call.kind)
        updates = self._updates(call)
        if updates:
            conditions["updates"] = updates
        future = self._bench.append(segment_id, bytes([number % 256]) * call.size, **conditions)
        if "cancelled" in call.kind:
            future.cancel()
        elif "elsewhere" not in call.kind:
            self._lengths[call.segment] += call.size
        return future  # type: ignore[return-value]

    def _event(self, kind: str) -> tuple[bytes, int, EventSession]:
        self._events += kind != "repeated event"
        session = self._sessions["of another" in kind]
        return OTHER if kind.endswith("writer") else WRITER, self._events, session

    def _updates(self, call: Call) -> list[KeyedUpdate]:
        last = self._numbers[call.segment]
        numbered = (WRITER, UpdateType.REPLACE_IF_EQUALS, last + 1, last or None)
        count = (COUNT, UpdateType.ACCUMULATE, 2, None)
        if not last or call.kind == "replaced":
            numbered = (WRITER, UpdateType.REPLACE, last + 1, None)
        updates: dict[str, list[KeyedUpdate]] = {
            "misnumbered": [(WRITER, UpdateType.REPLACE_IF_EQUALS, last + 9, last + 8), count],
            "set back": [(WRITER, UpdateType.REPLACE_IF_GREATER, 1, None), count],
            "without a number": [count],
            "counted": [numbered, (COUNT, UpdateType.REPLACE, 7, None)],
            "counted too far": [numbered, (COUNT, UpdateType.ACCUMULATE, VALUE_MAX, None)],
            "another count": [numbered, (OTHER, UpdateType.ACCUMULATE, 1, None)],
            "removed": [(WRITER, UpdateType.REPLACE, ATTRIBUTE_UNSET, None), count],
            "two of another": [(OTHER, UpdateType.REPLACE, 1, None), count],
            "event with a count": [count],
        }
        if call.kind in updates:
            return updates[call.kind]
        if "numbered" not in call.kind and call.kind != "replaced":
            return []
        if "cancelled" not in call.kind and "elsewhere" not in call.kind:
            self._numbers[call.segment] += 1
        return [numbered, count]


sizes = st.sampled_from((0, 1, 7, 30, 60, LARGE_APPEND_BYTES))
run_of_like = st.builds(
    lambda kind, size, times: [Call(0, size, kind)] * times,
    st.sampled_from(LIKE),
    st.integers(0, 40),
    st.integers(1, 6),
)
another = st.builds(Call, st.sampled_from((0, 0, 1)), sizes, st.sampled_from(LIKE + UNLIKE))
calls = st.lists(st.one_of(run_of_like, another.map(lambda call: [call])), max_size=12).map(
    lambda runs: [call for run in runs for call in run]
)


def _outcome(future: asyncio.Future[object]) -> object:
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    return future.result() if error is None else repr(error)


def _packed(
    steps: list[Call], payload_bytes_max: int, *, together: bool
) -> tuple[bytes, list[int], list[object], int]:
    """The log, the lengths of its frames, what the calls gave, and the bytes taken from the queue.

    `together`: they all wait before the first is packed.
    """
    with asyncio.Runner() as runner:
        bench = Bench(runner.get_loop(), payload_bytes_max)
        for name in NAMES:
            created = bench.submit(CreateOperation(name))
            bench.run()
            assert created.done()
        caller, futures = Caller(bench), []
        for number, call in enumerate(steps):
            futures.append(caller.queue(call, number))
            if not together:
                bench.gather()
        bench.gather()
        bench.run()
        frames = [frame.length for frame in bench.frames]
        outcomes = [_outcome(future) for future in futures]
        return bytes(bench.log), frames, outcomes, bench.packer.bytes_taken


def test_a_refused_session_does_not_go_on_within_a_run_of_another() -> None:
    kinds = ["event"] * 4 + ["event of another elsewhere"] + ["event"] * 3 + ["event of another"]
    steps = [Call(0, 7, kind) for kind in [*kinds, "event"]]
    together = _packed(steps, 40_000, together=True)
    assert together == _packed(steps, 40_000, together=False)
    assert [isinstance(outcome, int) for outcome in together[2]].count(False) == len(NAMES)


@settings(max_examples=examples(400), deadline=None)
@given(calls, st.sampled_from((90, 150, 300, 40_000)))
def test_a_run_is_packed_as_each_of_it_alone(steps: list[Call], payload_bytes_max: int) -> None:
    together = _packed(steps, payload_bytes_max, together=True)
    assert together == _packed(steps, payload_bytes_max, together=False)


@pytest.mark.parametrize("kind", LIKE)
@pytest.mark.parametrize(
    "behind",
    [
        *(Call(0, 7, kind) for kind in LIKE + UNLIKE),
        *(Call(1, 7, kind) for kind in LIKE),
        *(Call(0, size, kind) for size in (30, 60, LARGE_APPEND_BYTES) for kind in LIKE),
    ],
    ids=lambda call: f"{call.kind}, {call.size} bytes, to {call.segment}",
)
def test_a_run_ends_before_what_is_no_part_of_it(kind: str, behind: Call) -> None:
    steps = [Call(0, 7, kind)] * 4 + [behind] + [Call(0, 7, kind)] * 3
    for payload_bytes_max in (90, 150, 200, 40_000):
        together = _packed(steps, payload_bytes_max, together=True)
        assert together == _packed(steps, payload_bytes_max, together=False)
        assert sum(isinstance(outcome, int) for outcome in together[2]) >= len(LIKE)


class Meanwhile(bytes):
    """Data at whose measuring something else is done, the first time: a signal handler's work."""

    work: list[Callable[[], object]]

    def __len__(self) -> int:
        if self.work:
            self.work.pop()()
        return super().__len__()


def test_what_a_signal_handler_appends_in_the_midst_of_a_run_comes_behind_it() -> None:
    with asyncio.Runner() as runner:
        bench = Bench(runner.get_loop(), 40_000)
        created = bench.submit(CreateOperation("one"))
        bench.run()
        segment_id = int(str(created.result()))
        data = Meanwhile(b"interrupted")
        data.work = []
        futures = [bench.append(segment_id, each) for each in (b"a", b"b", b"c", data, b"d")]
        data.work = [lambda: futures.append(bench.append(segment_id, b"handler's"))]
        bench.run()
        assert [future.result() for future in futures] == [0, 1, 2, 3, 14, 15]
        assert not data.work
