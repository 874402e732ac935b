"""Workloads on real stores: they do what they promise, end, stay bounded, and repeat themselves
from the same seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import segmentstore
from recovery.harness.history import Call, CallKind, CallOutcome, History, Observation
from recovery.harness.observer import observe
from recovery.harness.records import append_record, event_record
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from recovery.harness.workloads.bench import ClientBench
from recovery.harness.workloads.catalogue import CLIENTS, WORKLOADS, Client, Workload
from recovery.harness.workloads.running import run_workload
from recovery.harness.workloads.stage import Stage, event_length, first_event
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import TINY, WorldDisk, open_tiny, run, until
from tests.support.suites import share, slow

PACE = 0.002
_CHANGES_OF_A_PROCESS_RUN = {
    CallKind.CREATE,
    CallKind.APPEND,
    CallKind.SEAL,
    CallKind.TRUNCATE,
    CallKind.MERGE,
    CallKind.DELETE,
}
_BY_WIRE = {
    CallKind.SET_UP,
    CallKind.TABLE_UPDATE,
    CallKind.TABLE_REMOVE,
    CallKind.TABLE_READ,
}
PROMISED = {
    "default": {CallKind.CREATE, CallKind.APPEND},
    "appends": {CallKind.CREATE, CallKind.APPEND},
    "exactly-once": {CallKind.APPEND, CallKind.EVENT, CallKind.READ, CallKind.CHECKPOINT},
    "conditional": {CallKind.APPEND, CallKind.READ, CallKind.INFO},
    "attributes": {CallKind.APPEND, CallKind.UPDATE, CallKind.ATTRIBUTES, CallKind.FLUSH},
    "lifecycle": {*_CHANGES_OF_A_PROCESS_RUN, CallKind.READ, CallKind.INFO, CallKind.CHECKPOINT},
    "readers": {CallKind.APPEND, CallKind.READ, CallKind.INFO, CallKind.TRUNCATE, CallKind.FLUSH},
    "tier2": {
        CallKind.APPEND,
        CallKind.FLUSH,
        CallKind.TRUNCATE,
        CallKind.DELETE,
        CallKind.MERGE,
        CallKind.READ,
    },
    "mixed": set(CallKind) - {CallKind.MERGE} - _BY_WIRE,
    "everything": set(CallKind) - _BY_WIRE,
    "wire": {CallKind.EVENT, CallKind.FLUSH, CallKind.CHECKPOINT, *_BY_WIRE},
    "connect": {CallKind.CREATE, CallKind.APPEND},
}


class StandingClock:
    def time_ms(self) -> int:
        return 1_700_000_000_000


def two_process_runs(
    folder: Path,
    workload: Workload,
    operations: int = 120,
    seed: int = 3,
    *,
    virtual: bool = False,
) -> History:
    """A store that is closed and opened again in the middle.

    In `virtual` time, without threads, what clients meet is the same on every machine.
    """
    history = History()
    rng = random.Random(seed)

    async def main() -> None:
        for process_run in range(2):
            runtime = (
                Runtime(
                    disk=WorldDisk(),
                    clock=StandingClock(),
                    random=random.Random(process_run),
                    executor=inline_executor,
                )
                if virtual
                else Runtime(disk=WorldDisk())
            )
            pace = 1.0 if virtual else PACE
            async with open_tiny(folder, runtime=runtime) as store:
                await observe(store, history, process_run)
                await run_workload(
                    workload, store, history, process_run, Stage(), rng, operations, pace=pace
                )
                await observe(store, history, process_run)

    (run_virtual if virtual else run)(main())
    return history


def data_of(call: Call) -> bytes:
    if call.kind is CallKind.EVENT:
        return event_record(call.writer, call.event, call.lengths[0])
    return b"".join(
        append_record(call.number, item, length) for item, length in enumerate(call.lengths)
    )


def still_readable(history: History, seen: Observation) -> Iterator[tuple[Call, bytes]]:
    """Acknowledged appends to segments that are the same at the end as when they were written, with
    what lies there.
    """
    replaced = {call.segment for call in history.calls if call.kind is CallKind.DELETE}
    for call in history.calls:
        if (
            call.kind in {CallKind.APPEND, CallKind.EVENT}
            and call.outcome is CallOutcome.OK
            and call.result is not None
        ):
            segment = seen.segments.get(call.segment)
            if (
                segment is not None
                and call.segment not in replaced
                and call.result >= segment.start_offset
            ):
                at = call.result - segment.start_offset
                yield call, segment.content[at : at + call.size]


def test_every_workload_has_its_promise() -> None:
    assert list(PROMISED) == list(WORKLOADS)
    cast = {client.name for workload in WORKLOADS.values() for client in workload.clients}
    assert cast == set(CLIENTS)


@pytest.mark.parametrize("name", share(WORKLOADS, 5, 5))
def test_a_workload_does_what_it_promises_and_leaves_no_call_open(
    name: str, tmp_path: Path
) -> None:
    history = two_process_runs(
        tmp_path, WORKLOADS[name], 400 if name in {"mixed", "everything"} else 150
    )
    assert PROMISED[name] <= {call.kind for call in history.calls if call.outcome is CallOutcome.OK}
    assert all(call.ended is not None and call.begun < call.ended for call in history.calls)
    assert [call.number for call in history.calls] == list(range(len(history.calls)))
    assert {call.process_run for call in history.calls} == {0, 1}
    compared = list(still_readable(history, history.observations[-1]))
    assert compared
    assert [call for call, found in compared if found != data_of(call)] == []
    before, after = history.observations[1:3]
    assert {name: (seen.content, seen.attributes) for name, seen in before.segments.items()} == {
        name: (seen.content, seen.attributes) for name, seen in after.segments.items()
    }


@slow(8)
def test_clients_meet_the_refusals_they_ask_for(tmp_path: Path) -> None:
    everything = two_process_runs(tmp_path / "a", WORKLOADS["everything"], 500, virtual=True)
    lifecycle = two_process_runs(tmp_path / "b", WORKLOADS["lifecycle"], 300, virtual=True)
    refused = {call.error for history in (everything, lifecycle) for call in history.calls}
    assert {
        "BadOffsetError",
        "BadAttributeUpdateError",
        "SegmentSealedError",
        "SegmentNotFoundError",
        "SegmentTruncatedError",
        "CancelledError",
    } <= refused


@slow(10)
def test_mixed_calls_meet_both_conditions_and_are_taken_back(tmp_path: Path) -> None:
    calls = [
        call
        for call in two_process_runs(tmp_path, WORKLOADS["mixed"], 800, virtual=True).calls
        if ".mixed." in call.client
    ]
    both = [
        call
        for call in calls
        if call.kind is CallKind.APPEND and call.expected is not None and call.updates
    ]
    assert {"", "BadOffsetError", "BadAttributeUpdateError"} <= {call.error for call in both}
    taken_back = {call.kind for call in calls if call.error == "CancelledError"}
    assert taken_back & {
        CallKind.CREATE,
        CallKind.SEAL,
        CallKind.DELETE,
        CallKind.TRUNCATE,
        CallKind.FLUSH,
        CallKind.MERGE,
    }
    assert {call.outcome for call in calls if call.error == "CancelledError"} == {
        CallOutcome.UNKNOWN
    }
    refused = {(call.kind, call.error) for call in calls}
    assert {
        (CallKind.UPDATE, "SegmentSealedError"),
        (CallKind.UPDATE, "BadAttributeUpdateError"),
        (CallKind.APPEND, "SegmentSealedError"),
        (CallKind.EVENT, "SegmentNotFoundError"),
    } <= refused


def test_exactly_once_writers_send_again_and_leave_each_event_once(tmp_path: Path) -> None:
    history = two_process_runs(tmp_path, WORKLOADS["exactly-once"], 300, virtual=True)
    events = [call for call in history.calls if call.kind is CallKind.EVENT]
    assert any(call.result is None and call.outcome is CallOutcome.OK for call in events)
    assert len({call.segment for call in events}) < len({call.writer for call in events})
    placed = [(call.writer, call.event) for call in events if call.result is not None]
    assert len(placed) == len(set(placed))


def test_a_store_that_stops_under_its_clients_ends_the_workload_quietly(tmp_path: Path) -> None:
    history = History()

    async def main() -> None:
        store = await open_tiny(tmp_path)
        working = asyncio.create_task(
            run_workload(
                WORKLOADS["default"], store, history, 0, Stage(), random.Random(5), 10**9, pace=PACE
            )
        )
        await until(lambda: len(history.calls) >= 300)
        await store.close()
        await working

    run(main())
    assert all(call.ended is not None for call in history.calls)
    assert any(call.error == "ContainerStoppedError" for call in history.calls)


def test_a_log_that_fails_leaves_doubt_and_ends_the_workload_quietly(tmp_path: Path) -> None:
    history = History()
    disk = WorldDisk()

    async def main() -> None:
        async with open_tiny(tmp_path, runtime=Runtime(disk=disk)) as store:
            working = asyncio.create_task(
                run_workload(
                    WORKLOADS["appends"],
                    store,
                    history,
                    0,
                    Stage(),
                    random.Random(5),
                    10**9,
                    pace=PACE,
                )
            )
            await until(lambda: len(history.calls) >= 300)
            disk.log_sync_fails()
            await working
            disk.heal()

    run(main())
    assert all(call.ended is not None for call in history.calls)
    doubtful = [call for call in history.calls if call.error == "AppendOutcomeUnknownError"]
    assert doubtful
    assert {call.outcome for call in doubtful} == {CallOutcome.UNKNOWN}


async def _break(bench: ClientBench) -> None:
    await bench.pause(0.01)
    raise KeyError(bench.index)


async def _check_elsewhere(bench: ClientBench) -> None:
    future = bench.store.append(bench.segment("plain"), (1,))
    failing: Any = bench.store
    failing.unforeseen.append(AssertionError("inside"))
    await future


@pytest.mark.parametrize(
    ("client", "error"), [(_break, KeyError), (_check_elsewhere, AssertionError)]
)
def test_what_no_client_foresaw_is_raised(
    client: Any, error: type[Exception], tmp_path: Path
) -> None:
    workload = Workload("odd", "", (Client("odd", client),))
    with pytest.raises(ExceptionGroup) as raised:
        two_process_runs(tmp_path, workload)
    assert raised.group_contains(error)


@slow(2)
def test_what_is_kept_stays_bounded_over_many_process_runs(tmp_path: Path) -> None:
    history = History()
    rng = random.Random(8)
    stage = Stage(process_runs_per_generation=2)

    async def main() -> None:
        for process_run in range(10):
            async with open_tiny(tmp_path, runtime=Runtime(disk=WorldDisk())) as store:
                await run_workload(
                    WORKLOADS["lifecycle"], store, history, process_run, stage, rng, 80, pace=PACE
                )
                await observe(store, history, process_run)

    run(main())
    kept = [
        sum(len(seen.content) for seen in observation.segments.values())
        for observation in history.observations
    ]
    assert max(kept[4:]) < 3 * max(kept[:4])
    last = history.observations[-1].segments
    assert last
    assert not [name for name in last if stage.is_retired(name, 9)]


@pytest.mark.parametrize("name", ["default", "everything", "appends", "mixed", "wire", "connect"])
def test_the_same_seed_gives_the_same_calls(name: str, tmp_path: Path) -> None:
    def calls(folder: Path) -> list[str]:
        history = History()

        async def main() -> None:
            runtime = Runtime(
                clock=StandingClock(), random=random.Random(1), executor=inline_executor
            )
            options: dict[str, Any] = {**TINY, "tier1": "memory", "tier2": f"memory://{folder}"}
            async with segmentstore.open(folder, runtime=runtime, **options) as store:
                await run_workload(
                    WORKLOADS[name], store, history, 0, Stage(), random.Random(4), 150
                )
                await observe(store, history, 0)

        run_virtual(main())
        return [repr(call) for call in history.calls] + [repr(history.observations)]

    assert calls(tmp_path / "one") == calls(tmp_path / "two")


def test_names_follow_from_the_process_run_and_retire_with_their_generation() -> None:
    stage = Stage("here", process_runs_per_generation=3)
    plain = stage.shared("plain", 0, 2)
    own = stage.own("sealed", 2, 7, 0)
    source = stage.source(stage.shared("merged", 0, 2), 2, 7, 1)
    assert stage.shared("plain", 0, 0) == plain != stage.shared("plain", 0, 3)
    for name in (plain, own, source):
        assert not stage.is_retired(name, 2)
        assert stage.is_retired(name, 3)
    assert not stage.is_retired("elsewhere/plain-0-0", 9)
    writers = [stage.writer(place, process_run) for process_run in (0, 3, 6) for place in range(9)]
    assert len(set(writers)) == len(writers)
    assert 0 not in writers


def test_events_are_the_same_whenever_they_are_sent_again_and_some_numbers_are_never_used() -> None:
    assert [first_event(number) for number in (-5, 0, 6, 7, 8, 30)] == [0, 0, 6, 8, 8, 31]
    lengths = [event_length(1, event) for event in range(300)]
    assert lengths == [event_length(1, event) for event in range(300)]
    assert min(lengths) < 5
    assert max(lengths) > 300
