"""Running a workload for one process run of a store: retire old segments, make what is missing, let
the clients work.

Ends when every client has done its part or the store has stopped; then every append has its answer
too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from recovery.harness.history import History, Update
from recovery.harness.recorder import Listener, RecordedStore
from recovery.harness.workloads.bench import STOPPED, ClientBench, ClientFunction
from recovery.harness.workloads.catalogue import Client, Workload, needs_of
from recovery.harness.workloads.connected import run_connected
from recovery.harness.workloads.stage import Stage
from recovery.harness.workloads.wire_service import WireService
from segmentstore.contracts.errors import (
    SegmentExistsError,
    SegmentNotFoundError,
    TierUnavailableError,
)
from segmentstore.tables.table_types import SEGMENT_TYPE, TABLE_SEGMENT

if TYPE_CHECKING:
    from segmentstore.service import SegmentStore

_SETTING_UP = "stage"
_RETRY_S = 1.0
_RETRIES = 600
_MARKS: Final = {"table": (Update(SEGMENT_TYPE, "REPLACE", TABLE_SEGMENT),)}
"""Attributes of shared segments from their creation on, by role."""


async def run_workload(
    workload: Workload,
    store: SegmentStore,
    history: History,
    process_run: int,
    stage: Stage,
    random: random.Random,
    operations: int,
    *,
    pace: float = 1.0,
    listener: Listener | None = None,
) -> None:
    """Run the clients of one process run: about `operations` calls in all, noted in the history.

    `random` decides everything that is not decided by the store. `pace` shortens pauses where time
    is real. Appends of 4 KiB must be allowed. Raises an ExceptionGroup of what clients did not
    foresee; a store that stops is foreseen.
    """
    cast = workload.cast(random)
    segments = {
        role: [stage.shared(role, index, process_run) for index in range(number)]
        for role, number in needs_of(cast).items()
    }
    server = WireService(store, _generator(random)) if workload.served else None
    maker = RecordedStore(store, history, process_run, f"{process_run}.{_SETTING_UP}", listener)
    piece_bytes = store.config.read_index.piece_bytes
    benches = [
        ClientBench(
            store=RecordedStore(
                store,
                history,
                process_run,
                f"{process_run}.{client.name}.{index}",
                listener,
                piece_bytes,
            ),
            random=_generator(random),
            stage=stage,
            process_run=process_run,
            index=index,
            place=sum(earlier.name == client.name for earlier in cast[:index]),
            operations=part,
            segments=segments,
            append_bytes_max=store.config.append_bytes_max,
            pace=pace,
            server=server,
        )
        for index, (client, part) in enumerate(zip(cast, _parts(cast, operations), strict=True))
    ]
    names = {name: _MARKS.get(role, ()) for role, of_role in segments.items() for name in of_role}
    try:
        await _set_up(maker, stage, names, pace)
    except STOPPED:
        return
    async with asyncio.TaskGroup() as group:
        for client, bench in zip(cast, benches, strict=True):
            run = run_connected if workload.connected else _run_client
            group.create_task(run(client.run, bench), name=bench.store.client)
    if server is not None:
        await server.close()
    unforeseen = [
        error
        for recorded in (maker, *(bench.store for bench in benches))
        for error in recorded.unforeseen
    ]
    if unforeseen:
        raise BaseExceptionGroup("unforeseen answers", unforeseen)


def _generator(source: random.Random) -> random.Random:
    return random.Random(source.getrandbits(64))


def _parts(cast: Sequence[Client], operations: int) -> list[int]:
    """Each client's part of the calls, at least one."""
    shares = sum(client.share for client in cast)
    return [max(1, operations * client.share // shares) for client in cast]


async def _run_client(run: ClientFunction, bench: ClientBench) -> None:
    try:
        await run(bench)
    except STOPPED:
        pass  # what it was doing is in the history
    await bench.store.settle()


async def _set_up(
    maker: RecordedStore, stage: Stage, names: Mapping[str, Sequence[Update]], pace: float
) -> None:
    """Delete what older generations have left, and make what is missing, with these attributes."""
    there = dict.fromkeys(await maker.segment_names(f"{stage.label}/"))
    for name in there:
        if stage.is_retired(name, process_run=maker.process_run):
            try:
                await maker.delete(name)
            except (SegmentNotFoundError, TierUnavailableError):
                pass  # missing already, or left to the next process run
    for name, updates in names.items():
        if name not in there:
            await _make(maker, name, updates, pace)


async def _make(maker: RecordedStore, name: str, updates: Sequence[Update], pace: float) -> None:
    for attempt in range(_RETRIES):
        try:
            await maker.create(name, updates)
        except SegmentExistsError:
            return
        except TierUnavailableError:
            if attempt == _RETRIES - 1:
                raise
            await asyncio.sleep(_RETRY_S * pace)
        else:
            return
