"""Three owners that compete for one log, in any interleaving, with everything failing: checked
against a plain model.

The promise: an acknowledged frame is in every later owner's log, once, in order, without a gap.
After another owner's opening has returned nothing is acknowledged that this opening did not find.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from durablelog.bookkeeper.bookkeeper_log import BookKeeperLog
from durablelog.bookkeeper.ledger_store import EMPTY
from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.durable_data_log import LogAddress, LogFrame
from recovery.harness.simulation.virtual_loop import VirtualLoop
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    NotPrimaryError,
    TierUnavailableError,
)
from tests.contracts.durable_data_log_contract import payload, read_all
from tests.durablelog.bookkeeper.bookkeeper_world import BookKeeperWorld, options
from tests.support.suites import size

EXAMPLES = size("LOG_OWNERS_EXAMPLES", 25, 100)
SLOTS = 3
EXPECTED = (NotPrimaryError, ContainerStoppedError, TierUnavailableError)


@dataclass(eq=False)
class _Owner:
    """One opening."""

    log: BookKeeperLog
    process: MemoryProcess
    asked: list[int] = field(default_factory=list)
    acknowledged: dict[int, LogAddress] = field(default_factory=dict)
    found: set[int] | None = None
    """What it read when its opening had returned."""
    done: bool = False


def number_of(frame: LogFrame) -> int:
    return int(bytes(frame.payload)[:6])


class CompetingOwners(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.world = BookKeeperWorld()
        self.owners: list[_Owner] = []
        self.slots: list[_Owner | None] = [None] * SLOTS
        self.tasks: list[asyncio.Task[None]] = []
        self.next_number = 0
        self.truncated: list[LogAddress] = []
        self.truncation_asked: list[LogAddress] = [LogAddress(0)]
        self.wrong: list[str] = []

    # --- the owners ------------------------------------------------------------------------------

    @initialize(seed=st.integers(0, 1000))
    def rng(self, seed: int) -> None:
        self.world.rng = random.Random(seed)

    @rule(slot=st.integers(0, SLOTS - 1), kill=st.booleans())
    def open(self, slot: int, kill: bool) -> None:
        before = self.slots[slot]
        if before is not None:
            if kill:
                before.process.die()
            else:
                self.spawn(self.closing(before))
        process = MemoryProcess()
        log = self.world.log(process, log_options=options(open_timeout_s=20.0))
        owner = _Owner(log, process)
        self.slots[slot] = owner
        self.owners.append(owner)
        self.spawn(self.opening(owner))

    @rule(slot=st.integers(0, SLOTS - 1), count=st.integers(1, 25))
    def append(self, slot: int, count: int) -> None:
        owner = self.slots[slot]
        if owner is not None and owner.found is not None and not owner.process.stopped:
            self.run(self.appending(owner, count))

    @rule(slot=st.integers(0, SLOTS - 1), index=st.integers(0, 60))
    def truncate(self, slot: int, index: int) -> None:
        owner = self.slots[slot]
        if owner is not None and owner.acknowledged and not owner.process.stopped:
            addresses = sorted(owner.acknowledged.values())
            self.spawn(self.truncating(owner, addresses[min(index, len(addresses) - 1)]))

    @rule(
        slot=st.integers(0, SLOTS - 1),
        call=st.integers(0, 12),
        happens=st.booleans(),
        dies=st.booleans(),
    )
    def stop_soon(self, slot: int, call: int, happens: bool, dies: bool) -> None:
        owner = self.slots[slot]
        if owner is not None and not owner.process.stopped:
            process = owner.process
            (process.die_in if dies else process.sleep_in)(
                len(process.calls) + call, happens=happens
            )

    @rule(slot=st.integers(0, SLOTS - 1))
    def wake(self, slot: int) -> None:
        owner = self.slots[slot]
        if owner is not None:
            self.run(self.waking(owner))

    # --- the world -------------------------------------------------------------------------------

    @rule(
        code=st.sampled_from([-6, -11, -12, -21, -101, -19, -999]),
        after=st.integers(0, 12),
        kept=st.integers(0, 4),
    )
    def fail_add(self, code: int, after: int, kept: int) -> None:
        self.world.cluster.fail_add(code, after=after, kept=kept)

    @rule(
        call=st.sampled_from(["create", "recover", "read", "delete"]),
        times=st.integers(1, 4),
        happens=st.booleans(),
    )
    def fail_call(self, call: Any, times: int, happens: bool) -> None:
        self.world.cluster.fail(call, -23, times=times, happens=happens)

    @rule(
        call=st.sampled_from(["read", "write", "create"]),
        times=st.integers(1, 3),
        happens=st.booleans(),
    )
    def fail_node(self, call: Any, times: int, happens: bool) -> None:
        self.world.tree.fail(call, times=times, happens=happens)

    @rule(outage=st.booleans())
    def nodes(self, outage: bool) -> None:
        self.world.tree.outage = outage

    @rule(count=st.integers(1, 3))
    def bookies(self, count: int) -> None:
        self.world.cluster.bookies_up = count

    @rule(turns=st.integers(1, 40))
    def turn(self, turns: int) -> None:
        self.run(self.turning(turns))

    @precondition(lambda self: self.owners)
    @rule(seconds=st.sampled_from([0.05, 0.5, 5.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    # --- what they do ----------------------------------------------------------------------------

    async def opening(self, owner: _Owner) -> None:
        try:
            await owner.log.open()
            found = {number_of(frame) for frame in await read_all(owner.log)}
        except EXPECTED:
            return
        for older in self.owners:
            if older is not owner and older.log.epoch < owner.log.epoch:
                for number, address in older.acknowledged.items():
                    if number not in found and address >= max(self.truncation_asked):
                        self.wrong.append(
                            f"{number} was acknowledged, and its successor did not find it"
                        )
        owner.found = found

    async def closing(self, owner: _Owner) -> None:
        await owner.log.close()

    async def appending(self, owner: _Owner, count: int) -> None:
        for _ in range(count):
            number = self.next_number
            self.next_number += 1
            owner.asked.append(number)
            future = owner.log.append([payload(number)])
            future.add_done_callback(partial(self.appended, owner, number))

    async def truncating(self, owner: _Owner, address: LogAddress) -> None:
        self.truncation_asked.append(address)
        try:
            await owner.log.truncate(address)
        except EXPECTED:
            return
        self.truncated.append(address)

    async def turning(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def waking(self, owner: _Owner) -> None:
        owner.process.wake()

    def appended(self, owner: _Owner, number: int, future: asyncio.Future[LogAddress]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            if not isinstance(error, EXPECTED):
                self.wrong.append(f"append {number} failed with {error!r}")
            return
        owner.acknowledged[number] = future.result()
        for other in self.owners:
            if (
                other.found is not None
                and other.log.epoch > owner.log.epoch
                and number not in other.found
            ):
                self.wrong.append(
                    f"{number} was acknowledged after epoch {other.log.epoch} had opened without it"
                )

    # --- the end ---------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.run(self.final())
        finally:
            self.loop.discard()

    async def final(self) -> None:
        world = self.world
        world.tree.outage = False
        world.cluster.bookies_up = 3
        world.tree._planted.clear()
        world.cluster._planted.clear()
        world.cluster._planted_adds.clear()
        for owner in self.owners:
            owner.process.wake()
        log = world.log(log_options=options(open_timeout_s=1e6))
        await asyncio.sleep(120)
        await log.open()
        await asyncio.sleep(120)
        frames = await read_all(log)
        assert self.wrong == []
        self.check(frames)
        for owner in self.owners:
            if not owner.process.dead:
                await owner.log.close()
        last = await log.append([payload(999_999)])
        await log.truncate(last)
        await asyncio.sleep(600)
        await log.append([payload(999_999)])
        for ledger_id in sorted(world.cluster.ledgers):
            if ledger_id not in world.ids_listed():
                assert world.cluster.ledgers[ledger_id].describe().last_entry == EMPTY, (
                    "an orphan holds something"
                )
        await log.close()

    def check(self, frames: list[LogFrame]) -> None:
        numbers = [number_of(frame) for frame in frames]
        assert len(set(numbers)) == len(numbers)
        assert [frame.address for frame in frames] == sorted({frame.address for frame in frames})
        if frames:
            start = frames[0].sequence
            assert [frame.sequence for frame in frames] == list(range(start, start + len(frames)))
            assert [frame.epoch for frame in frames] == sorted(frame.epoch for frame in frames)
            assert all(frames[0].address >= address for address in self.truncated)
        places = {number: place for place, number in enumerate(numbers)}
        for owner in self.owners:
            inside = [number for number in owner.asked if number in places]
            assert [places[number] for number in inside] == sorted(
                places[number] for number in inside
            )
            if inside:
                first = owner.asked.index(inside[0])
                assert owner.asked[first : first + len(inside)] == inside, "a hole"
                assert first == 0 or frames[0].sequence > 1
            for number, address in owner.acknowledged.items():
                assert number in places or (frames and address < frames[0].address), (
                    f"{number} is lost"
                )
                if number in places:
                    assert frames[places[number]].address == address

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(self.loop.create_task(work))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(work)
        for task in self.tasks:
            if task.done():
                task.result()


TestCompetingOwners = CompetingOwners.TestCase
TestCompetingOwners.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None
)
TestCompetingOwners.pytestmark = [  # type: ignore[attr-defined]
    pytest.mark.timeout(300 + 2 * EXAMPLES)
]
