"""A view of a log (in memory) begins with a whole record, whatever bookies were notified of it."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from durablelog.bookkeeper.bookkeeper_log import BookKeeperLog
from durablelog.bookkeeper.bookkeeper_log_view import BookKeeperLogView
from durablelog.bookkeeper.ledger_addresses import split_address
from durablelog.bookkeeper.memory_nodes import MemoryNodes
from durablelog.data_frame import ENTRY_FIRST, ENTRY_HEADER, ENTRY_LAST, ENTRY_WHOLE
from durablelog.durable_data_log import LogAddress
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.runtime import Runtime
from tests.durablelog.bookkeeper.bookkeeper_world import PATH, STORE_ID, BookKeeperWorld, options
from tests.durablelog.bookkeeper.memory_ledgers import MemoryLedgerStore
from tests.support.loop_clock import LoopClock


class Behind(MemoryLedgerStore):
    """What was confirmed to bookies is behind: the writer has sent nothing since."""

    told = -1
    """Of the ledger that is written, the last entry that they know to be acknowledged."""

    async def confirmed(self, ledger_id: int) -> int:
        return min(await super().confirmed(ledger_id), self.told)


def piece(name: bytes, flags: int) -> bytes:
    """A frame with one piece of a record."""
    content = name * 300
    return ENTRY_HEADER.pack(len(content), flags) + content


PIECES = [
    piece(b"o", ENTRY_WHOLE),
    piece(b"1", ENTRY_FIRST),
    piece(b"2", 0),
    piece(b"3", 0),
    piece(b"4", ENTRY_LAST),
    piece(b"n", ENTRY_WHOLE),
]
HEAD = 1
"""The frame that the log was truncated at."""


async def truncated(
    world: BookKeeperWorld, ledger_bytes: int
) -> tuple[BookKeeperLog, list[LogAddress]]:
    log = await world.opened(ledger_bytes=ledger_bytes)
    addresses = [await log.append([each]) for each in PIECES]
    await log.truncate(addresses[HEAD])
    return log, addresses


async def view_of(world: BookKeeperWorld, told: int) -> BookKeeperLogView:
    ledgers = Behind(world.cluster)
    ledgers.told = told
    view = BookKeeperLogView(
        3,
        Runtime(clock=LoopClock(), random=random.Random(7)),
        ledgers,
        MemoryNodes(world.tree),
        PATH,
        store_id=STORE_ID,
        options=options(),
    )
    await view.open()
    return view


async def shown(view: BookKeeperLogView, start: LogAddress | None = None) -> Sequence[bytes]:
    return [bytes(frame.payload) async for frames in view.read(start) for frame in frames]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    run_virtual(scenario)


@pytest.mark.parametrize("told", range(-1, len(PIECES)))
def test_a_record_whose_first_frames_alone_are_known_is_shown_to_its_end(told: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log, addresses = await truncated(world, 1 << 20)
        assert {split_address(address)[1] for address in addresses} == set(range(len(PIECES)))
        view = await view_of(world, told)
        last = max(told, PIECES.index(piece(b"4", ENTRY_LAST)))
        assert await shown(view) == PIECES[HEAD : last + 1]
        assert await shown(view, addresses[HEAD + 1]) == PIECES[HEAD + 1 : last + 1]
        await view.close()
        await log.close()

    run(scenario())


@pytest.mark.parametrize("told", [-1, 0])
def test_also_where_it_goes_on_in_another_ledger(told: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log, addresses = await truncated(world, 1000)
        ledgers = {split_address(address)[0] for address in addresses[HEAD:]}
        assert len(ledgers) > 1
        view = await view_of(world, told)
        seen = await shown(view)
        assert seen == PIECES[HEAD : HEAD + len(seen)]
        assert len(seen) >= 4
        await view.close()
        await log.close()

    run(scenario())


def test_a_log_that_was_never_truncated_is_shown_as_far_as_bookies_know() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await log.append([PIECES[HEAD]])
        await log.append([PIECES[HEAD + 1]])
        view = await view_of(world, 0)
        assert await shown(view) == PIECES[HEAD : HEAD + 1]
        await view.close()
        await log.close()

    run(scenario())
