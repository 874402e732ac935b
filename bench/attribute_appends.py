"""What an append costs in CPU time when it carries two attribute updates and an expected offset.

The way of exactly-once writers and of the wire server: the writer's number and the count of events
change with the bytes. All sides take turns in one process, on one store and one segment each, so
that a busy machine does not decide. CPU of the whole process, the log's writer thread included.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench import child, rounds
from bench.child import Measured
from bench.engine import SEGMENT, open_store
from bench.loads import Append, pipelined
from bench.report import CaseResult, Row, Samples
from bench.workspace import subfolder

QUESTION = "one producer pipelining 100 B, with two attribute updates and an expected offset"
WINDOW = 1024
APPEND_BYTES = 100
TIMES_DEARER = 1.3
SIDES = {
    "plain": "without attributes",
    "attributes": "two updates made for each append",
    "blocks": "the wire server's way: BlockWriter",
    "events": "an exactly-once writer: SegmentWriter",
}
TURN_APPENDS = 4096


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 10 s quick, 40 s else."""
    measured = []
    for index in range(rounds.count_of(quick=quick)):
        with subfolder(directory, f"engine-{index}") as folder:
            arguments = {"directory": str(folder), "count": 100_000 if quick else 400_000}
            measured.append(child.call(__name__, "engine_round", arguments))
    plain = Samples.of(measured, "plain")
    rows = []
    for side, name in SIDES.items():
        samples = Samples.of(measured, side)
        ratio = samples.median / plain.median
        rows.append(
            Row(
                name=name,
                unit="µs of CPU",
                engine=samples,
                ratio=ratio,
                bar="" if side == "plain" else f"≤ {TIMES_DEARER} of the first row",
                met=None if side == "plain" else ratio <= TIMES_DEARER,
            )
        )
    return CaseResult(
        case="attribute_appends", question=QUESTION, rows=rows, notes=("ratio: to the first row",)
    )


def engine_round(directory: str, count: int) -> Measured:
    """Microseconds of CPU for an append of each side in its median turn; `count` appends each."""
    return asyncio.run(_measure(Path(directory) / "store", count))


async def _measure(location: Path, count: int) -> Measured:
    spent: dict[str, list[float]] = {side: [] for side in SIDES}
    async with open_store(location) as store:
        for side in SIDES:
            await store.create_segment(f"{SEGMENT}-{side}")
        ways = _ways(store)
        for turn in range(1 + count // TURN_APPENDS):
            for side, way in ways.items():
                begun = time.process_time()
                await pipelined(way, TURN_APPENDS, WINDOW)
                if turn:
                    # The first turn is for caches, and the files of the log.
                    spent[side].append(time.process_time() - begun)
    return {side: statistics.median(each) / TURN_APPENDS * 1e6 for side, each in spent.items()}


def _ways(store: Any) -> dict[str, Append]:
    names = {side: f"{SEGMENT}-{side}" for side in SIDES}
    data = bytes(APPEND_BYTES)
    writer_id, count_id = uuid.uuid4(), uuid.uuid4()
    return {
        "plain": lambda _: store.append(names["plain"], data),
        "attributes": _with_attributes(store, names["attributes"], writer_id, count_id),
        "blocks": _blocks(store.block_writer(names["blocks"], writer_id, count_id)),
        "events": _events(store.writer(names["events"], writer_id)),
    }


def _with_attributes(
    store: Any, name: str, writer_id: uuid.UUID, count_id: uuid.UUID
) -> Callable[[int], Awaitable[object]]:
    # The engine is imported when a store is opened.
    attributes = importlib.import_module("segmentstore.contracts.attributes")
    update = attributes.AttributeUpdate
    replace, accumulate = attributes.UpdateType.REPLACE, attributes.UpdateType.ACCUMULATE
    data = bytes(APPEND_BYTES)
    offsets = itertools.count(0, APPEND_BYTES)

    def append(number: int) -> Awaitable[object]:
        updates = (update(writer_id, replace, number), update(count_id, accumulate, 1))
        return store.append(name, data, next(offsets), updates)  # type: ignore[no-any-return]

    return append


def _blocks(writer: Any) -> Callable[[int], Awaitable[object]]:
    data = bytes(APPEND_BYTES)
    offsets = itertools.count(0, APPEND_BYTES)
    numbers = itertools.count()
    last = -(2**63)

    def append(_: int) -> Awaitable[object]:
        nonlocal last
        previous, last = last, next(numbers)
        return writer.append(data, last, previous, 1, next(offsets))  # type: ignore[no-any-return]

    return append


def _events(writer: Any) -> Callable[[int], Awaitable[object]]:
    data = bytes(APPEND_BYTES)
    return lambda _: writer.append(data)


if __name__ == "__main__":
    from bench.suite import main

    main("attribute_appends")
