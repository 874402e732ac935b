"""Logs that the kernel syncs, in the simulated world: both ways are used, and what strikes between
the beginning of a sync and its report is met.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator

import pytest

from durablelog.durable_data_log import LogAddress
from durablelog.file.file_log import FileLog
from durablelog.file.group_commit import SLOW_PAUSE_MS
from durablelog.file.log_state import StateFile
from recovery.harness.enumeration.driver import enumerate_group, replay
from recovery.harness.enumeration.workloads import EnumeratedWorkload, prepare, record
from recovery.harness.examples import check_counter
from recovery.harness.mutants.catalogue import MUTANTS
from recovery.harness.mutants.mutant import Hunt
from recovery.harness.runs.plan import Plan, draw_plan
from recovery.harness.runs.scenario import Scenario
from recovery.harness.simulation.store_world import StoreWorld
from recovery.harness.simulation.world import ProcessDiedError, SimulatedProcess, World
from segmentstore.contracts.disk import make_directories
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    NotPrimaryError,
    TierUnavailableError,
)

BEGUN = "kernel-sync.begun"
FOLDER = "/log"
PLANS = 200


class OneLog:
    """A log of a process, in a world without chance: nothing is refused, and a kernel is free."""

    def __init__(self, name: str) -> None:
        self.world = World(name, kernel_syncs=True, keep_trace=True)
        maker = self.world.process("maker")
        make_directories(maker.runtime.disk, FOLDER)
        self.world.kill(maker)

    def process(self) -> tuple[SimulatedProcess, FileLog]:
        process = self.world.process("owner")
        log = FileLog(FOLDER, 0, process.runtime, file_bytes=1 << 20, payload_bytes_max=1000)
        self.world.run_task(process, log.open())
        return process, log

    @property
    def begun(self) -> int:
        return self.world.points.counts().get(BEGUN, 0)

    def append(self, process: SimulatedProcess, log: FileLog) -> asyncio.Task[LogAddress]:
        async def append() -> LogAddress:
            return await log.append([b"frame"])

        return process.start(append())


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[OneLog]:
    for share in ("_NONE_FREE", "_REFUSED"):
        monkeypatch.setattr(f"recovery.harness.simulation.kernel_syncs.{share}", 0.0)
    one = OneLog(request.node.name)
    yield one
    assert one.world.unhandled == []
    one.world.close()


def until_begun(one: OneLog, process: SimulatedProcess, log: FileLog) -> asyncio.Task[LogAddress]:
    """An append whose sync the kernel has begun, and not reported."""
    # The first groups of an opening grow the file or change it, which is the thread's.
    for _ in range(8):
        one.world.run(one.append(process, log).done)
    begun = one.begun
    task = one.append(process, log)
    one.world.run(lambda: one.begun > begun)
    assert not task.done()
    return task


# --- between a beginning and its report -----------------------------------------------------------


def test_what_is_begun_is_acknowledged_behind_its_sync(one: OneLog) -> None:
    process, log = one.process()
    task = until_begun(one, process, log)
    synced = len(lines(one.world, "log.sync"))
    one.world.run(task.done)
    assert task.result() > 0
    assert len(lines(one.world, "log.sync")) == synced + 1
    one.world.run_task(process, log.close())


def test_an_error_of_the_kernel_fails_the_log(one: OneLog) -> None:
    process, log = one.process()
    task = until_begun(one, process, log)
    one.world.rates["disk.sync.eio"] = 1.0
    one.world.run(task.done)
    with pytest.raises(TierUnavailableError, match="Input/output"):
        task.result()
    one.world.run_task(process, log.close())


def test_a_close_waits_for_the_kernel(one: OneLog) -> None:
    process, log = one.process()
    task = until_begun(one, process, log)
    one.world.rates["disk.stall"] = 1.0
    began = one.world.time.now_us
    one.world.run_task(process, log.close())
    with pytest.raises(ContainerStoppedError):
        task.result()
    assert one.world.time.now_us - began > 1_000_000


def test_an_owner_that_is_stopped_between_both_acknowledges_nothing_once_another_has_opened(
    one: OneLog,
) -> None:
    process, log = one.process()
    task = until_begun(one, process, log)
    process.pause()
    one.world.image.expire_locks(process.name)
    _, follower = one.process()
    assert follower.epoch == log.epoch + 1
    process.resume()
    one.world.run(task.done)
    with pytest.raises(NotPrimaryError):
        task.result()


@pytest.mark.parametrize("kind", ["log.write", "log.sync"])
def test_a_process_that_dies_of_it_leaves_nothing_behind(one: OneLog, kind: str) -> None:
    process, log = one.process()
    task = until_begun(one, process, log)
    one.world.run(task.done)
    process.dies_before = kind
    last = one.append(process, log)
    one.world.run(lambda: process.dead)
    assert not last.done() or isinstance(last.exception(), ProcessDiedError)
    assert one.world.points.counts()[f"crash.before.{kind}"] == 1
    follower, again = one.process()
    assert again.last_address() is not None
    one.world.run_task(follower, again.close())


def test_a_write_that_stalls_on_the_loop_takes_the_time_of_all_and_then_the_thread_writes(
    one: OneLog,
) -> None:
    process, log = one.process()
    task = until_begun(one, process, log)
    one.world.run(task.done)
    one.world.rates["disk.stall"] = 1.0
    began, begun = one.world.time.now_us, one.begun
    stalled = one.append(process, log)
    one.world.run(lambda: one.begun > begun)
    one.world.rates.clear()
    assert one.world.time.now_us - began > 1_000_000
    one.world.run(stalled.done)
    one.world.run(one.append(process, log).done)
    assert one.begun == begun + 1

    async def wait() -> None:
        await asyncio.sleep(2 * SLOW_PAUSE_MS / 1000)

    one.world.run_task(process, wait())
    one.world.run(one.append(process, log).done)
    assert one.begun == begun + 2
    one.world.run_task(process, log.close())


def lines(world: World, kind: str) -> list[str]:
    return [line for line in world.trace.lines or () if f" {kind} " in line]


# --- what the simulated world does not have -------------------------------------------------------


def test_a_check_of_the_loop_that_a_truncation_overtakes_is_done_again() -> None:
    """Here a check is one step, so that the next record never comes in the midst of it."""

    class Overtaken:
        overtaken = False

        def is_at(self, path: str) -> bool:
            if not self.overtaken:
                self.overtaken = True
                state.truncate(LogAddress(1), 1)
            return first.is_at(path)

        def close(self) -> None:
            first.close()

    one = OneLog("overtaken")
    disk = one.world.process("owner").runtime.disk
    state = StateFile.claim(FOLDER, disk, 0, "tag")
    record = state._record
    assert record.file is not None
    first = record.file

    state._record = record._replace(file=Overtaken())  # type: ignore[arg-type]
    assert state.is_ours()
    assert state.state.truncation_address == 1
    one.world.close()


# --- runs -----------------------------------------------------------------------------------------


def test_a_run_uses_both_ways_and_one_without_it_the_thread_alone() -> None:
    plan = dataclasses.replace(draw_plan("both/0", "default"), tier1="file", rates={})
    for kernel_syncs in (True, False):
        scenario = Scenario(dataclasses.replace(plan, kernel_syncs=kernel_syncs), keep_trace=True)
        result = scenario.run()
        assert result.violations == []
        kernel = result.points.get(BEGUN, 0)
        thread = len(lines(scenario.world, "log.sync")) - kernel
        assert thread > 50
        assert (kernel > 50) is kernel_syncs
        for point in ("kernel-sync.refused", "kernel-sync.none-free"):
            assert (result.points.get(point, 0) > 3) is kernel_syncs


def test_half_of_the_drawn_plans_have_it_and_are_the_same_beside_it() -> None:
    plans = [draw_plan(f"half/{number}", "default") for number in range(PLANS)]
    assert 0.4 * PLANS < sum(plan.kernel_syncs for plan in plans) < 0.6 * PLANS
    # Of before there was such a setting.
    fields = json.loads(plans[0].to_json())
    del fields["kernel_syncs"]
    before = Plan.from_json(json.dumps(fields))
    assert before == dataclasses.replace(plans[0], kernel_syncs=False)


def test_a_hunt_has_it_only_if_it_says_so() -> None:
    for number in range(20):
        assert not Hunt().plan("any", number).kernel_syncs
        assert Hunt(kernel_syncs=True).plan("any", number).kernel_syncs


def test_on_another_log_than_files_it_is_nothing() -> None:
    plan = dataclasses.replace(
        draw_plan("ledger", "default", cycles=2), tier1="ledger", kernel_syncs=True
    )
    scenario = Scenario(plan)
    assert not scenario.world.kernel_syncs
    assert BEGUN not in scenario.run().points


def test_the_example_has_it_in_some_of_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds: list[StoreWorld] = []

    class Seen(StoreWorld):
        def close(self) -> None:
            worlds.append(self)
            super().close()

    monkeypatch.setattr(check_counter, "StoreWorld", Seen)
    for number in range(6):
        assert check_counter.check_counter(f"example/{number}").problems == []
    assert 0 < sum(world.points.counts().get(BEGUN, 0) > 0 for world in worlds) < len(worlds)


# --- crash points ---------------------------------------------------------------------------------


def test_crash_points_of_a_group_that_the_kernel_syncs_are_tried_and_a_mutant_is_caught() -> None:
    base = prepare("kernel")
    workload = EnumeratedWorkload.parse("kernel/append,append")
    recording = record(workload, base, keep_trace=True)
    assert any(BEGUN in line for line in recording.trace or ())
    whole = enumerate_group((workload,), cap=4, deeper_of=0, base=base)
    assert [str(each) for each in whole.violations] == []
    name = "acknowledged-before-the-kernel-has-synced"
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with mutant.apply():
        found = enumerate_group((workload,), cap=4, deeper_of=0, base=base)
        assert 0 < found.broken < found.states
        first = found.violations[0]
        assert tuple(replay(first.name, base=base).violations) == first.violations
