"""Portions and pauses of fetched bytes, with exact numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from readindex.fair_delivery import PAUSE_S, WRITING_S, FairDelivery
from recovery.harness.simulation.virtual_loop import run_virtual


class Writer:
    """Appends a byte whenever it is read, while it is `active`."""

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
async def test_while_a_writer_appends_there_is_a_pause_behind_each_portion(
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
async def test_appends_of_before_the_first_portion_cost_no_pause(
    pacer: FairDelivery, writer: Writer
) -> None:
    loop = asyncio.get_running_loop()
    writer.appended = 1000
    for _ in range(2):
        begun = loop.time()
        for _ in range(100):
            await take(pacer, 100)
        assert loop.time() == begun
        await asyncio.sleep(2 * WRITING_S)
        writer.appended += 1000


@paced
async def test_a_reader_that_gave_up_holds_up_no_other(pacer: FairDelivery, writer: Writer) -> None:
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
