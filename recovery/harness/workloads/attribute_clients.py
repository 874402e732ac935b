"""Attribute clients: counters that many add to, registers of one client each, and compare-and-set
loops.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from recovery.harness.history import Update
from recovery.harness.workloads.bench import ClientBench
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET
from segmentstore.contracts.errors import BadAttributeUpdateError, TierUnavailableError

_BASE: Final = 1 << 64
"""Above the numbers of exactly-once writers, whose ids are attributes too."""
COUNTER: Final = UUID(int=_BASE + 1)
"""Only ever added to, by all clients."""
CARRIED: Final = UUID(int=_BASE + 2)
"""Added to by appends alone."""
SHARED: Final = UUID(int=_BASE + 3)
"""Changed by compare-and-set alone."""
NEAR_THE_LIMIT: Final = UUID(int=_BASE + 4)
"""Added to in steps so large that most are refused."""


async def count(bench: ClientBench) -> None:
    """Adds to counters that others add to as well, by updates alone and by updates that ride on
    appends.
    """
    name = bench.segment("attributes")
    while bench.goes_on():
        step = bench.random.randrange(-3, 10)
        kind = bench.random.random()
        if kind < 0.4:
            await _update(bench, name, Update(COUNTER, "ACCUMULATE", step))
        elif kind < 0.8:
            carried = Update(CARRIED, "ACCUMULATE", 1)
            lengths = bench.lengths() if bench.rng(0.2) else (bench.length(),)
            await bench.try_to(bench.store.append(name, lengths, updates=(carried,)))
        elif kind < 0.9:
            await _update(bench, name, Update(NEAR_THE_LIMIT, "ACCUMULATE", 3 << 61))
        else:
            await _many_at_once(bench, name)
        if bench.rng(0.2):
            await bench.pause(0.02)


async def keep_registers(bench: ClientBench) -> None:
    """Sets attributes that no other client touches, in every way there is: each time it knows what
    must come of it.
    """
    name = bench.segments["attributes"][0]
    number = 0
    while bench.goes_on():
        own = _own(bench, bench.random.randrange(3))
        value = bench.process_run * 1000 + number
        number += 1
        kind = bench.random.random()
        if kind < 0.25:
            await _update(bench, name, Update(own, "REPLACE", value))
        elif kind < 0.5:
            await _update(
                bench,
                name,
                Update(own, "REPLACE_IF_GREATER", value - bench.random.choice((0, 0, 0, 500))),
            )
        elif kind < 0.6:
            await _update(bench, name, Update(own, "NONE", value))
        elif kind < 0.8:
            riding = Update(own, "REPLACE_IF_GREATER" if bench.rng(0.5) else "REPLACE", value)
            await bench.try_to(
                bench.store.append(name, (bench.length(),), updates=(riding,)),
                BadAttributeUpdateError,
            )
        else:
            # Later updates of one call see the earlier ones; if one is refused, none is made.
            other = _own(bench, 3)
            last = Update(
                own, "REPLACE_IF_EQUALS", value + 1, value if bench.rng(0.7) else value - 1
            )
            first = (
                Update(other, "REPLACE", ATTRIBUTE_UNSET)
                if number % 4 == 0
                else Update(other, "ACCUMULATE", 1)
            )
            await _update(bench, name, first, Update(own, "REPLACE", value), last)
        if bench.rng(0.2):
            await bench.pause(0.02)


async def compare_and_set(bench: ClientBench) -> None:
    """Adds one to a shared attribute by compare-and-set, checking again whenever another client was
    faster.
    """
    name = bench.segments["attributes"][0]
    current: int | None = (await bench.store.attributes(name)).get(SHARED)
    while bench.goes_on():
        wanted = (current or 0) + 1
        try:
            await bench.store.update_attributes(
                name, (Update(SHARED, "REPLACE_IF_EQUALS", wanted, current),)
            )
            current = wanted
        except BadAttributeUpdateError as error:
            current = (
                error.current
                if bench.rng(0.5)
                else (await bench.store.attributes(name)).get(SHARED)
            )
        except TierUnavailableError:
            await bench.back_off()
        if bench.rng(0.3):
            await bench.pause(0.02)


async def _many_at_once(bench: ClientBench, name: str) -> None:
    calls = [
        bench.store.update_attributes(name, (Update(COUNTER, "ACCUMULATE", step),))
        for step in range(bench.random.randrange(2, 6))
    ]
    await bench.together(*calls)


async def _update(bench: ClientBench, name: str, *updates: Update) -> bool:
    return await bench.try_to(bench.store.update_attributes(name, updates), BadAttributeUpdateError)


def _own(bench: ClientBench, number: int) -> UUID:
    return UUID(int=_BASE + 100 + 10 * bench.place + number)
