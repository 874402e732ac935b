"""Mixed calls: what no other client asks for.

Two conditions on one append, and calls that are cancelled halfway.

Each scene but the first is played on a segment made for it, so that whatever becomes of it disturbs
no other client. Rules of this file:

- a call that is cancelled was under way before: how far it got is random, and its caller never
  learns it;
- a call that ends as cancelled though no client cancelled it is an error: it was dragged along with
  another one;
- the client ends behind everything it took back, so that nothing of it happens under who checks
  the store next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

from recovery.harness.history import Update
from recovery.harness.records import HEADER_BYTES
from recovery.harness.workloads.attribute_clients import COUNTER
from recovery.harness.workloads.bench import ClientBench
from recovery.harness.workloads.stage import event_length, first_event
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
    TierUnavailableError,
)

MARK: Final = UUID(int=(1 << 64) + 5)
"""Replaced by the code that knows its value, together with an append at an offset."""

_REFUSED: Final = (
    BadAttributeUpdateError,
    BadOffsetError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
)
_WRITERS_FROM: Final = 500
"""Places of exactly-once writers from here on are this client's."""

_Asked = asyncio.Future[Any] | Callable[[], Awaitable[object]]
"""An append that was made, or a call to be made: one that is never made leaves nothing behind."""


async def mix_calls(bench: ClientBench) -> None:
    """Plays one scene after the other; see the functions of this file."""
    scenes, weights = list(_SCENES), list(_SCENES.values())
    while bench.goes_on():
        await bench.random.choices(scenes, weights)[0](bench)
        if bench.rng(0.3):
            await bench.pause(0.05)
    await bench.try_to(bench.store.checkpoint())


async def _meet_two_conditions(bench: ClientBench) -> None:
    """Appends that name an offset and bring an update: either is refused, or both, or none."""
    name = bench.segment("mixed")
    try:
        values = await bench.store.attributes(name)
        end = (await bench.store.info(name)).length
    except TierUnavailableError:
        await bench.back_off()
        return
    there = values.get(MARK)
    for _ in range(bench.random.randrange(1, 4)):
        value = bench.random.randrange(1000)
        lengths = bench.lengths() if bench.rng(0.2) else (bench.length(),)
        expected = end + bench.random.choice((0, 0, 0, 1, 1000))
        asked = bench.store.append(
            name, lengths, expected=expected, updates=_updates(bench, there, value)
        )
        if bench.rng(0.6):
            await bench.try_to(asked, *_REFUSED)
        else:
            await _at_once(
                bench,
                asked,
                bench.store.append(name, (bench.length(),), expected=end),
                cancelled=0.1,
            )
        if not asked.cancelled() and asked.exception() is None:
            there, end = value, asked.result() + len(lengths) * HEADER_BYTES + sum(lengths)


def _updates(bench: ClientBench, there: int | None, value: int) -> tuple[Update, ...]:
    """Updates that lead from what is believed to be there to `value`; some fail, and some cannot
    but fail.
    """
    kind = bench.random.random()
    if kind < 0.5:
        return (Update(COUNTER, "ACCUMULATE", 1), Update(MARK, "REPLACE_IF_EQUALS", value, there))
    if kind < 0.7:
        return (
            Update(COUNTER, "ACCUMULATE", 1),
            Update(MARK, "REPLACE_IF_EQUALS", value, (there or 0) + 1000),
        )
    if kind < 0.9:
        # The second update sees the first one, and never what it asks for.
        return (Update(MARK, "REPLACE", value), Update(MARK, "REPLACE_IF_EQUALS", value, value + 1))
    return (Update(MARK, "REPLACE", value),)


async def _seal_under_appends(bench: ClientBench) -> None:
    """A seal among appends of others, cancelled sometimes; then updates of what may be sealed by
    now.
    """
    name = await _make(bench, "sealed")
    if name is None:
        return
    appends = [
        bench.store.append(name, (bench.length(),), updates=(Update(COUNTER, "ACCUMULATE", 1),))
        for _ in range(bench.random.randrange(5))
    ]
    later = [
        partial(_append_later, bench, name, turns) for turns in range(bench.random.randrange(4))
    ]
    await _at_once(bench, partial(bench.store.seal, name), *later, cancelled=0.3)
    await _at_once(bench, *appends)
    await bench.try_to(
        bench.store.update_attributes(name, (Update(COUNTER, "ACCUMULATE", 1),)), *_REFUSED
    )
    await bench.try_to(bench.store.update_attributes(name, (Update(MARK, "NONE", 1),)), *_REFUSED)
    unlucky = bench.store.append(
        name, (bench.length(),), expected=0, updates=(Update(MARK, "NONE", 1),)
    )
    await bench.try_to(unlucky, *_REFUSED)
    await _remove(bench, name)


async def _pull_away_from_a_writer(bench: ClientBench) -> None:
    """Exactly-once events to a segment that is flushed, truncated, deleted and made again at the
    same time.
    """
    name = await _make(bench, "deleted")
    if name is None:
        return
    number = bench.stage.writer(_WRITERS_FROM + bench.index, bench.process_run)
    store = bench.store
    pulls: list[_Asked] = [
        partial(store.flush, name),
        partial(store.truncate, name, bench.random.randrange(200)),
        partial(store.delete, name),
        partial(store.create, name, (Update(MARK, "REPLACE", 9),)),
    ]
    chosen = pulls[bench.random.randrange(3) :]
    await _at_once(bench, partial(_write_events, bench, name, number), *chosen, cancelled=0.2)
    await bench.try_to(_write_events(bench, name, number), *_REFUSED)
    await _remove(bench, name)


async def _merge_into_what_goes(bench: ClientBench) -> None:
    """A merge whose target, or source, is sealed, flushed or deleted while it runs."""
    target = await _make(bench, "merged")
    if target is None:
        return
    source = bench.stage.source(target, bench.process_run, bench.index, bench.created)
    bench.created += 1
    if not await bench.try_to(
        bench.store.create(source, (Update(COUNTER, "ACCUMULATE", 5),)), *_REFUSED
    ):
        return
    appends = [bench.store.append(name, (bench.length(),)) for name in (source, target, source)]
    store = bench.store
    asked: list[_Asked] = [
        partial(store.merge, target, source, (Update(COUNTER, "ACCUMULATE", 2),)),
        partial(bench.random.choice((store.seal, store.delete)), target),
        partial(bench.random.choice((store.flush, store.seal, store.delete)), source),
        partial(_append_later, bench, target, bench.random.randrange(4)),
    ]
    bench.random.shuffle(asked)
    await _at_once(bench, *asked, cancelled=0.15)
    await _at_once(bench, *appends)
    await _remove(bench, source)
    await _remove(bench, target)


async def _take_back(bench: ClientBench) -> None:
    """A creation, and what follows upon it, each cancelled: then checks what is there, and asks
    again.
    """
    name = bench.stage.own("deleted", bench.process_run, bench.index, bench.created)
    bench.created += 1
    marked = (Update(MARK, "NONE", 3), Update(COUNTER, "ACCUMULATE", 1))
    await _at_once(bench, partial(bench.store.create, name, marked), cancelled=0.6)
    await bench.try_to(bench.store.create(name, marked), *_REFUSED)
    await bench.try_to(
        bench.store.append(name, (bench.length(), bench.length()), updates=marked[1:]), *_REFUSED
    )
    await _at_once(bench, partial(bench.store.update_attributes, name, marked[1:]), cancelled=0.3)
    await _at_once(bench, partial(bench.store.flush, name), cancelled=0.5)
    await _at_once(
        bench, partial(bench.store.truncate, name, bench.random.randrange(60)), cancelled=0.5
    )
    await bench.try_to(bench.store.attributes(name), *_REFUSED)
    await _at_once(bench, partial(bench.store.delete, name), cancelled=0.5)
    await bench.try_to(bench.store.info(name), *_REFUSED)
    await _remove(bench, name)


_SCENES: Final[Mapping[Callable[[ClientBench], Coroutine[Any, Any, None]], int]] = {
    _meet_two_conditions: 6,
    _seal_under_appends: 1,
    _pull_away_from_a_writer: 1,
    _merge_into_what_goes: 1,
    _take_back: 1,
}
"""What is played, and how often beside the others."""


async def _make(bench: ClientBench, role: str) -> str | None:
    return await bench.make_segment(
        role, Update(MARK, "REPLACE", 3), Update(COUNTER, "ACCUMULATE", 1)
    )


async def _remove(bench: ClientBench, name: str) -> None:
    """Mostly: what stays is left to the next generation."""
    if bench.rng(0.7):
        await bench.try_to(bench.store.delete(name), *_REFUSED)


async def _append_later(bench: ClientBench, name: str, turns: int) -> None:
    """Append with an update once the loop has gone round so often."""
    for _ in range(turns):
        await bench.pause(0.0)
    await bench.store.append(name, (bench.length(),), updates=(Update(COUNTER, "ACCUMULATE", 1),))


async def _write_events(bench: ClientBench, name: str, number: int) -> None:
    """One session: some that were sent already, and some new ones.

    Raises the first refusal once all have answered.
    """
    session = await bench.store.writer(name, number)
    event = session.last_event_number + 1 - bench.random.randrange(4)
    sent: list[asyncio.Future[int | None]] = []
    for _ in range(bench.random.randrange(1, 8)):
        event = first_event(event)
        sent.append(session.append(event, event_length(number, event)))
        event += 1
        if sent[-1].done():
            # A session ends with its first refusal.
            break
        if bench.rng(0.4):
            await bench.pause(0.0)
            if sent[-1].done() and sent[-1].exception() is not None:
                break
    for outcome in await asyncio.gather(*sent, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def _at_once(bench: ClientBench, *asked: _Asked, cancelled: float = 0.0) -> None:
    """Make calls at the same time, take each back with this probability, and wait for all.

    Raises the first error that is not one of the refusals asked for here.
    """
    taken_back: dict[asyncio.Task[BaseException | None], None] = {}
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(_outcome_of(call)) for call in asked]
        if cancelled:
            group.create_task(_cancel_some(bench, calls, cancelled, taken_back))
    for call in calls:
        outcome = call.result()
        if isinstance(outcome, asyncio.CancelledError):
            if call not in taken_back:
                raise RuntimeError("a call ended as cancelled, and no client had cancelled it")
        elif outcome is not None and not isinstance(outcome, (TierUnavailableError, *_REFUSED)):
            raise outcome


async def _cancel_some(
    bench: ClientBench,
    calls: Sequence[asyncio.Task[BaseException | None]],
    probability: float,
    cancelled: dict[asyncio.Task[BaseException | None], None],
) -> None:
    """Cancel each call with this probability once all are under way, and say which."""
    for _ in range(bench.random.choice((1, 1, 2, 3, 5))):
        await bench.pause(0.0 if bench.rng(0.7) else 0.01)
    for call in calls:
        if bench.rng(probability) and call.cancel():
            cancelled[call] = None


async def _outcome_of(asked: _Asked) -> BaseException | None:
    """The error that an answer is; the task that waits for it ends well, so that the others of its
    group go on.
    """
    try:
        await (asked if isinstance(asked, asyncio.Future) else asked())
    except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001
        # The waiting caller of the group checks it.
        return error
    return None
