"""Conditional appenders: several race on one segment, each saying where it believes the end to
be.
"""

from __future__ import annotations

import asyncio

from recovery.harness.records import HEADER_BYTES
from recovery.harness.workloads.bench import ClientBench
from segmentstore.contracts.errors import BadOffsetError, TierUnavailableError


async def append_conditionally(bench: ClientBench) -> None:
    """Appends where it believes the end to be, often several in a row; when refused, checks
    again.
    """
    name = bench.segment("conditional")
    end = (await bench.store.info(name)).length
    while bench.goes_on():
        if bench.rng(0.08):
            # An unconditional one between them moves the end for all clients.
            await bench.try_to(bench.store.append(name, (bench.length(),)))
        else:
            end = await _append_at(bench, name, end + (1 if bench.rng(0.03) else 0))
        if bench.rng(0.2):
            await bench.pause(0.02)


async def _append_at(bench: ClientBench, name: str, expected: int) -> int:
    """Append a few records, each at the end of the one before; gives where it then believes the end
    to be.
    """
    sent: list[tuple[asyncio.Future[int], int]] = []
    for _ in range(bench.random.choice((1, 1, 1, 2, 4))):
        lengths = bench.lengths() if bench.rng(0.15) else (bench.length(),)
        size = len(lengths) * HEADER_BYTES + sum(lengths)
        sent.append((bench.store.append(name, lengths, expected=expected), size))
        expected += size
    end = expected
    for future, size in sent:
        try:
            end = await future + size
        except BadOffsetError as error:
            end = error.actual
        except TierUnavailableError:
            await bench.back_off()
    # What an error says may be out of date by now, as what is asked may be.
    return end if bench.rng(0.5) else (await bench.store.info(name)).length
