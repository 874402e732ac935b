"""Appends that are taken as a run are packed and answered as each alone would be."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog.frame_packer import LARGE_APPEND_BYTES
from durablelog.operations import CreateOperation, SealOperation
from durablelog.pending_segment import EventSession
from segmentstore.contracts.attributes import UpdateType
from tests.durablelog.test_frame_packer import KEY, Bench
from tests.support.suites import examples

NAMES = ("one", "two")


@dataclass(frozen=True)
class Call:
    """One append, or the sealing of a segment."""

    segment: int
    size: int
    kind: str


ENDS_OF_RUNS = (
    Call(0, 7, "elsewhere"),
    Call(0, 7, "cancelled"),
    Call(0, 7, "counted"),
    Call(0, 7, "event"),
    Call(0, 7, "seal"),
    Call(1, 7, "plain"),
    Call(0, 30, "plain"),
    Call(0, LARGE_APPEND_BYTES, "plain"),
)
call = st.builds(
    Call,
    segment=st.sampled_from((0, 0, 0, 1)),
    size=st.sampled_from((0, 1, 7, 30, 60, LARGE_APPEND_BYTES)),
    kind=st.sampled_from(
        (
            "plain",
            "plain",
            "at the end",
            "elsewhere",
            "cancelled",
            "counted",
            "event",
            "seal",
            "create",
        )
    ),
)
run_of_small = st.builds(
    lambda size, times: [Call(0, size, "plain")] * times, st.integers(0, 40), st.integers(1, 6)
)
calls = st.lists(st.one_of(run_of_small, st.tuples(call).map(list)), max_size=12).map(
    lambda runs: [call for run in runs for call in run]
)


def _queue(bench: Bench, lengths: list[int], call: Call, number: int) -> asyncio.Future[object]:
    segment_id = bench.metadata.names[NAMES[call.segment]]
    if call.kind == "seal":
        return bench.submit(SealOperation(segment_id))
    if call.kind == "create":
        return bench.submit(CreateOperation(f"other-{number}"))
    conditions: dict[str, object] = {}
    if call.kind == "counted":
        conditions["updates"] = [(KEY, UpdateType.ACCUMULATE, 1, None)]
    elif call.kind == "event":
        conditions["event"] = (KEY, number, EventSession())
    elif call.kind == "elsewhere":
        conditions["expected"] = lengths[call.segment] + 1
    elif call.kind == "at the end":
        conditions["expected"] = lengths[call.segment]
    future = bench.append(segment_id, bytes([number]) * call.size, **conditions)
    if call.kind == "cancelled":
        future.cancel()
    elif call.kind != "elsewhere":
        lengths[call.segment] += call.size
    return future  # type: ignore[return-value]


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
            futures = [bench.submit(CreateOperation(name))]
            bench.run()
        futures, lengths = [], [0, 0]
        for number, call in enumerate(steps):
            futures.append(_queue(bench, lengths, call, number))
            if not together:
                bench.gather()
        bench.gather()
        bench.run()
        frames = [frame.length for frame in bench.frames]
        outcomes = [_outcome(future) for future in futures]
        return bytes(bench.log), frames, outcomes, bench.packer.bytes_taken


@settings(max_examples=examples(200), deadline=None)
@given(calls, st.sampled_from((40, 100, 300, 40_000)))
def test_a_run_is_packed_as_each_of_it_alone(steps: list[Call], payload_bytes_max: int) -> None:
    together = _packed(steps, payload_bytes_max, together=True)
    assert together == _packed(steps, payload_bytes_max, together=False)


@pytest.mark.parametrize("behind", ENDS_OF_RUNS, ids=lambda call: f"{call.kind}-{call.size}")
def test_a_run_ends_before_what_is_no_part_of_it(behind: Call) -> None:
    steps = [Call(0, 7, "plain")] * 3 + [behind] + [Call(0, 7, "plain")] * 2
    for payload_bytes_max in (90, 40_000):
        together = _packed(steps, payload_bytes_max, together=True)
        assert together == _packed(steps, payload_bytes_max, together=False)
