"""Merges as events of a writer (`merge_event`): each is done once, however often it is repeated.

A client stages a source and merges it as the writer's next event. Whatever it is in doubt about it
stages anew and merges again, by the same number, also one that it has the answer of. `merged_once`
checks what comes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast
from uuid import UUID

from recovery.harness.history import Update
from recovery.harness.recorder import RecordedStore
from recovery.harness.workloads.bench import ClientBench
from segmentstore.client.merge_once import merge_event
from segmentstore.contracts.attributes import AttributeUpdate
from segmentstore.contracts.errors import (
    BadOffsetError,
    SegmentExistsError,
    SegmentNotFoundError,
)
from segmentstore.contracts.segments import Merged
from segmentstore.store_api import StoreApi

_WRITERS_FROM = 800
"""Places of writers from here on are this client's."""


async def merge_once(bench: ClientBench) -> None:
    """One event after the other; at the beginning mostly the last one again."""
    target = bench.segment("staged")
    place = _WRITERS_FROM + bench.place
    writer = bench.stage.writer(place, bench.process_run)
    last = (await bench.store.attributes(target)).get(UUID(int=writer), 0)
    event = max(1, last + bench.random.choice((0, 0, 1)))
    merged = 0
    while bench.goes_on():
        source = bench.stage.source(target, 0, place, event)
        is_repeated = event == merged and bench.rng(0.3)
        if is_repeated or await _stage(bench, source):
            view = cast("StoreApi", _RecordedMerge(bench.store, writer, event))
            merging = merge_event(view, target, source, UUID(int=writer), event)
            if await bench.try_to(merging, SegmentNotFoundError):
                merged = event
                event += bench.random.choice((0, 1, 1, 1))
        await bench.pause(0.05)


async def _stage(bench: ClientBench, source: str) -> bool:
    """Make a source with one batch in it, in the place of one that may be there."""
    store = bench.store
    await bench.try_to(store.delete(source), SegmentNotFoundError)
    if not await bench.try_to(store.create(source), SegmentExistsError):
        return False
    appended = store.append(source, (bench.length(), bench.length()), expected=0)
    return await bench.try_to(appended, BadOffsetError, SegmentNotFoundError)


class _RecordedMerge:
    """What `merge_event` asks of a store, with the merge and the attributes recorded."""

    def __init__(self, recorded: RecordedStore, writer: int, event: int) -> None:
        self._recorded = recorded
        self._writer = writer
        self._event = event
        self.append = recorded.store.append

    async def merge(
        self, target: str, source: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> Merged:
        updates = [
            Update(each.id, each.type.name, each.value, each.expected) for each in attributes
        ]
        offset = await self._recorded.merge(
            target, source, updates, writer=self._writer, event=self._event
        )
        return Merged(offset, offset)

    async def get_attributes(self, name: str, ids: Sequence[UUID]) -> dict[UUID, int]:
        values = await self._recorded.attributes(name)
        return {each: values[each] for each in ids if each in values}
