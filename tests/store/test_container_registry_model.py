"""Any sequence of starts, stops, cancellations, appends, reads, failures and crashes, against a
model, in virtual time.

What was acknowledged is there whenever its container serves; what was not is there at its end or
not at all. A container serves after its start, and after nothing else.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore import (
    AppendOutcomeUnknownError,
    ContainerNotServedError,
    ContainerStoppedError,
    NotPrimaryError,
    SegmentStore,
    StoreClosedError,
)
from segmentstore.contracts.errors import SegmentStoreError
from tests.store.harness import read_all
from tests.store.registry_world import COUNT, NAMES, World, begin

EXAMPLES = 40
REFUSED = (ContainerStoppedError, NotPrimaryError)


class Step(NamedTuple):
    """One thing that a caller does, and how long it waits then."""

    action: str
    number: int
    pause_s: float


ACTIONS = ("start", "stop", "append", "read", "cancel", "fence", "break", "flush", "crash")
STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(ACTIONS),
        st.integers(0, COUNT - 1),
        st.sampled_from((0.0, 0.0, 0.001, 0.1)),
    ),
    max_size=40,
)


class Run:
    """A store, what was acknowledged, and what may be there besides."""

    def __init__(self, world: World, store: SegmentStore) -> None:
        self.world = world
        self.store = store
        self.acknowledged = [b"begin"] * COUNT
        """From the beginning of each segment."""
        self.in_flight: list[list[tuple[bytes, asyncio.Future[int]]]] = [[] for _ in range(COUNT)]
        self.orders: list[asyncio.Future[Any]] = []
        self.appended = 0

    async def step(self, step: Step) -> None:
        number, store = step.number, self.store
        match step.action:
            case "start":
                self.orders.append(begin(store.start_container(number)))
            case "stop":
                self.orders.append(begin(store.stop_container(number)))
            case "cancel":
                if self.orders:
                    self.orders[number % len(self.orders)].cancel()
            case "append":
                self.appended += 1
                data = b"<%d>" % self.appended
                self.in_flight[number].append((data, store.append(NAMES[number], data)))
            case "read":
                await self.read(number)
            case "fence":
                self.world.memory.contents(number).epoch += 1
            case "break":
                keep = bool(self.appended % 2)
                self.world.memory.fail_append_after(0, container_id=number, keep=keep)
            case "flush":
                self.orders.append(begin(store.flush()))
            case "crash":
                await self.reopen()
        await asyncio.sleep(step.pause_s)

    async def read(self, number: int) -> None:
        await self.settle(number)
        try:
            data = await read_all(self.store, NAMES[number])
        except REFUSED:
            return
        known = self.acknowledged[number]
        assert data.startswith(known), "what was acknowledged is lost"
        # What came of unknown outcomes is in the order of the calls, and is settled from now on.
        self.acknowledged[number] = data

    async def settle(self, number: int) -> None:
        """Wait for the answers of all appends."""
        for data, append in self.in_flight[number]:
            try:
                offset = await append
            except (*REFUSED, AppendOutcomeUnknownError):
                continue
            known = self.acknowledged[number]
            assert offset >= len(known) or known[offset : offset + len(data)] == data
            if offset == len(known):
                self.acknowledged[number] += data
        self.in_flight[number].clear()

    async def settle_orders(self) -> None:
        for outcome in await asyncio.gather(*self.orders, return_exceptions=True):
            allowed = (SegmentStoreError, asyncio.CancelledError)
            assert outcome is None or isinstance(outcome, allowed), repr(outcome)
        self.orders.clear()

    async def reopen(self) -> None:
        """All logs are taken away from the owner at once, in the middle of everything, as by a
        crash; then it closes, and there is a new one.
        """
        for number in range(COUNT):
            self.world.memory.contents(number).epoch += 1
        before = self.store
        await before.close()
        for number in range(COUNT):
            await self.settle(number)
            self.world.memory.contents(number).fail_after = None
        await self.settle_orders()
        self.store = await self.world.open()
        for call in (before.start_container(0), before.stop_container(0)):
            try:
                await call
            except StoreClosedError:
                continue
            raise AssertionError("a closed store takes no orders")

    async def check(self) -> None:
        """All orders have ended: what the store says is so, and every container can be started."""
        for number in range(COUNT):
            await self.settle(number)
        await self.settle_orders()
        # A stop whose caller was cancelled goes on.
        await asyncio.sleep(60)
        states = self.store.stats()["container_states"]
        for number in range(COUNT):
            contents = self.world.memory.contents(number)
            contents.fail_after = None
            status = states[number]
            assert status["state"] in ("running", "stopped", "failed")
            assert (status["cause"] is not None) == (status["state"] == "failed")
            assert (number in self.store.served) == (status["state"] == "running")
            if status["state"] == "stopped":
                try:
                    await self.store.get_info(NAMES[number])
                except ContainerNotServedError:
                    pass
                else:
                    raise AssertionError("it serves, and is stopped")
            if number in self.world.opened:
                # Whether it was fenced it learns from its next frame.
                await asyncio.gather(self.store.append(NAMES[number], b""), return_exceptions=True)
            await self.store.start_container(number)
            await self.read(number)
            offset = await self.store.append(NAMES[number], b"end")
            assert offset == len(self.acknowledged[number])
        assert self.store.served == list(range(COUNT))
        assert self.store.stats()["health"] == []


@settings(max_examples=EXAMPLES, deadline=None)
@given(STEPS)
def test_the_registry_does_what_its_model_does(steps: list[Step]) -> None:
    async def main(folder: Path) -> None:
        world = World(folder / "s")
        run = Run(world, await world.open())
        for name in NAMES:
            await run.store.create_segment(name)
            await run.store.append(name, b"begin")
        for step in steps:
            await run.step(step)
        await run.check()
        await run.store.close()
        assert world.opened == {}
        assert world.starting_max <= 2

    with tempfile.TemporaryDirectory() as folder:
        run_virtual(main(Path(folder)))
