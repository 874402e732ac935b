"""Kill child: one process run of a real store in a process of its own, that works until it is
killed.

    python -m recovery.harness.kills.child ORDERS

What happens is reported on stdout, one event a line (`history_codec`), by plain writes to the pipe:
what was written stays readable after a SIGKILL. Rules of this file:

- the beginning of a call is reported before the store is asked, its end before its client goes on;
- nothing is tidied up that a killed process would leave: only orders to close make it close;
- when its parent has ended (the end of stdin) it goes as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import faulthandler
import os
import random
import sys
import traceback
from collections.abc import Iterator

import segmentstore
from durablelog.file import group_commit
from recovery.harness.history import Call, CallKind, History
from recovery.harness.history_codec import Event, call_begun, call_ended, observed
from recovery.harness.kills.log_points import open_to_die
from recovery.harness.kills.orders import Orders, shared_clock_ns
from recovery.harness.observer import observe
from recovery.harness.runs.allowed_ends import FORESEEN
from recovery.harness.workloads.catalogue import BY_NAME
from recovery.harness.workloads.running import run_workload
from recovery.harness.workloads.stage import Stage
from segmentstore.contracts.runtime import Runtime
from segmentstore.service import SegmentStore

CLOSING_S = 20.0
"""A store closes within this time, stopped or not."""
TIMEOUT_S = 5.0
"""How long Tier 2 may be away while the store is observed."""
_TICK_S = 0.002
_BY_KERNEL = 0.7
"""How many children have their groups synced by the kernel from the beginning.

A short run would end before, and a tracer makes writes so slow that the thread has them.
"""


def main(text: str) -> None:
    """Carry out orders."""
    faulthandler.enable()
    orders = Orders.from_json(text)
    if random.Random(f"{orders.seed}/syncs").random() < _BY_KERNEL:
        group_commit.LOAD_GROUPS, group_commit.SLOW_WRITE_MS = 1, 1000
    _report(Event("born", shared_clock_ns(), orders.process_run, {"pid": os.getpid()}))
    try:
        asyncio.run(_live(orders))
    except Exception as error:  # noqa: BLE001 - the parent checks what it means
        names = [type(each).__name__ for each in _leaves(error)]
        fields = {"errors": names, "text": "".join(traceback.format_exception(error))}
        _report(Event("failed", shared_clock_ns(), orders.process_run, fields))


async def _live(orders: Orders) -> None:
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), os._exit, 1)
    _say(orders, "opening", process=f"child {orders.process_run}")
    if orders.dies_at:
        store = await open_to_die(orders.location, orders.settings, orders.dies_at)
    else:
        store = await segmentstore.open(orders.location, **orders.settings)
    _say(orders, "opened")
    try:
        await _work(store, orders)
        if orders.ending == "killed":
            await asyncio.Event().wait()
    except Exception:
        # What a stopped store says when it is closed must not hide what came first.
        with contextlib.suppress(*FORESEEN):
            await _close(store)
        raise
    await _close(store)
    _say(orders, "over", ending="closed")


async def _close(store: SegmentStore) -> None:
    async with asyncio.timeout(CLOSING_S):
        await store.close()


async def _work(store: SegmentStore, orders: Orders) -> None:
    await _observe(store, orders)
    if orders.ending == "checked":
        await store.flush()
        await store.checkpoint()
        await _observe(store, orders)
    history = _history_from(orders.first_call)
    for phase in range(orders.phases if orders.operations else 0):
        if phase:
            await _observe(store, orders)
        await run_workload(
            BY_NAME[orders.workload],
            store,
            history,
            orders.process_run,
            Stage(f"load{phase}") if phase else Stage(),
            random.Random(f"{orders.seed}/{phase}" if phase else orders.seed),
            orders.operations // orders.phases,
            pace=orders.pace,
            listener=_report_call,
        )
    _say(orders, "done")


async def _observe(store: SegmentStore, orders: Orders) -> None:
    _say(orders, "observing")
    observation = await observe(store, History(), orders.process_run, timeout_s=TIMEOUT_S)
    # No call is under way: what comes until the next one changes nothing that was seen.
    containers = store.stats()["containers"]
    observation = dataclasses.replace(
        observation,
        sequence_numbers={each: stats["sequence_number"] for each, stats in containers.items()},
        time_ms=Runtime().clock.time_ms(),
    )
    await asyncio.sleep(_TICK_S)  # no later call has the same time
    _say(orders, "seen")
    if orders.proves:
        await store.checkpoint()
    _report(observed(observation, orders.process_run, shared_clock_ns()))


def _history_from(first_call: int) -> History:
    """A history whose next call has this number; those before it were reported by others."""
    unknown = Call(0, 0, "", CallKind.INFO, "", 0)
    return History(calls=[unknown] * first_call)


def _report_call(what: str, call: Call) -> None:
    at = shared_clock_ns()
    _report(call_begun(call, at) if what == "begun" else call_ended(call, at))


def _say(orders: Orders, what: str, **fields: object) -> None:
    _report(Event(what, shared_clock_ns(), orders.process_run, fields))


def _report(event: Event) -> None:
    line = event.line()
    while line:
        line = line[os.write(1, line) :]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from _leaves(each)


if __name__ == "__main__":
    main(sys.argv[1])
