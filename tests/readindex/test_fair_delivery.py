"""Portions and pauses of fetched bytes, and the budget of those who catch up, with exact
numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from readindex.catch_up_budget import CHARGED_S_MAX, CatchUpBudget
from readindex.fair_delivery import PAUSE_S, WRITING_S, FairDelivery
from recovery.harness.simulation.virtual_loop import run_virtual


class Writer:
    """Appends a byte whenever it is looked at, while it is `active`."""

    def __init__(self) -> None:
        self.active = False
        self.appended = 0

    def __call__(self) -> int:
        self.appended += self.active
        return self.appended


def paced(test: Callable[[FairDelivery, Writer], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            writer = Writer()
            pacer = FairDelivery(100, writer)
            await test(pacer, writer)
            pacer.close()

        run_virtual(main())

    run.__name__ = test.__name__
    return run


async def take(pacer: FairDelivery, count: int) -> None:
    if pacer.spend(count):
        await pacer.give_way()


@paced
async def test_a_portion_is_handed_out_without_a_pause(pacer: FairDelivery, writer: Writer) -> None:
    assert [pacer.spend(25) for _ in range(5)] == [False, False, False, False, True]
    await pacer.give_way()
    assert pacer.pauses == 1


@paced
async def test_each_turn_has_a_new_portion(pacer: FairDelivery, writer: Writer) -> None:
    for _ in range(10):
        assert not pacer.spend(100)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@paced
async def test_who_waits_goes_first_come_first_served(pacer: FairDelivery, writer: Writer) -> None:
    order: list[int] = []

    async def read(reader: int) -> None:
        for _ in range(3):
            await take(pacer, 100)
            order.append(reader)

    await asyncio.gather(*(read(reader) for reader in range(4)))
    for end in range(len(order)):
        counts = [order[:end].count(reader) for reader in range(4)]
        assert max(counts) - min(counts) <= 2


@paced
async def test_without_a_writer_no_time_passes(pacer: FairDelivery, writer: Writer) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for _ in range(100):
        await take(pacer, 100)
    assert loop.time() == begun


@paced
async def test_while_somebody_appends_there_is_a_pause_behind_each_portion(
    pacer: FairDelivery, writer: Writer
) -> None:
    loop = asyncio.get_running_loop()
    writer.active = True
    begun = loop.time()
    for _ in range(100):
        await take(pacer, 100)
    assert loop.time() - begun >= 45 * PAUSE_S
    writer.active = False
    await asyncio.sleep(2 * WRITING_S)
    await take(pacer, 100)
    await take(pacer, 100)
    await asyncio.sleep(0)
    begun = loop.time()
    for _ in range(20):
        await take(pacer, 100)
    assert loop.time() - begun <= PAUSE_S


@paced
async def test_a_reader_that_gave_up_holds_nobody_up(pacer: FairDelivery, writer: Writer) -> None:
    waiting = [asyncio.ensure_future(take(pacer, 100)) for _ in range(4)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.wait(waiting)
    assert [reader.cancelled() for reader in waiting] == [False, True, False, False]


@paced
async def test_closing_lets_all_go(pacer: FairDelivery, writer: Writer) -> None:
    writer.active = True
    waiting = [asyncio.ensure_future(take(pacer, 100)) for _ in range(10)]
    await asyncio.sleep(0)
    pacer.close()
    pacer.close()
    await asyncio.wait_for(asyncio.gather(*waiting), 1)
    assert not pacer.spend(1000)


def test_a_budget_is_kept_over_time_and_lets_every_fetch_begin() -> None:
    budget = CatchUpBudget(100)
    now, begun = 5.0, []
    for count in (50, 1000, 1, 100, 49):
        now += budget.take(now, count)
        begun.append(now)
    assert begun == pytest.approx([5.0, 5.5, 15.5, 15.51, 16.51])
    assert budget.wait_s(16.51) == pytest.approx(0.49)
    assert budget.wait_s(20.0) == 0.0


def test_what_was_not_used_is_not_saved_up() -> None:
    budget = CatchUpBudget(100)
    assert budget.take(1000.0, 100) == 0.0
    assert budget.take(1000.0, 100) == 1.0


def test_what_others_take_is_owed_for_a_bounded_time() -> None:
    budget = CatchUpBudget(100)
    budget.charge(1000.0, 50)
    assert budget.take(1000.0, 300) == 0.5
    budget.charge(1000.0, 10**9)
    budget.charge(1000.0, 10**9)
    assert budget.take(1000.0, 1) == 3.5 + CHARGED_S_MAX / 2


def test_those_who_do_not_wait_leave_half_of_the_budget_to_those_who_do() -> None:
    budget = CatchUpBudget(100)
    now, taken = 0.0, 0
    while now < 1000.0:
        budget.charge(now, 10**9)
        now += max(0.1, budget.take(now, 20))
        taken += 20
    assert taken == pytest.approx(100 * 1000 / 2, rel=0.01)


def test_no_budget_is_no_bound() -> None:
    budget = CatchUpBudget(0)
    budget.charge(0.0, 10**12)
    assert [budget.take(0.0, 10**12) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert budget.wait_s(0.0) == 0.0
