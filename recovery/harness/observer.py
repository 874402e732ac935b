"""Observer: reads the whole of a store through its public API while no client is at work.

Rules of this file:

- segments are taken in the order of their names, and read in pieces whose sizes differ from segment
  to segment, so that the edges of reads fall on every place;
- Tier 2 may be away: that is waited for; every other error is the finding, and is raised;
- what a store says against itself (a segment shorter than its length) is written down as it is:
  checkers check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from recovery.harness.history import History, Observation, SeenEntry, SeenSegment
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.segments import SegmentInfo
from segmentstore.tables.table_service import TableService
from segmentstore.tables.table_types import is_table

if TYPE_CHECKING:
    from segmentstore.service import SegmentStore

T = TypeVar("T")

TIMEOUT_S: Final = 30 * 60.0
"""How long Tier 2 may be away."""
_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 10.0
_PAGE_ENTRIES: Final = 3
_PIECES: Final = (8191, 127, 65521, 1021, 32749)
"""Lengths of reads; a segment begins with the one its id points at."""


async def observe(
    store: SegmentStore,
    history: History,
    process_run: int,
    *,
    again: bool = False,
    findings: Sequence[str] = (),
    timeout_s: float = TIMEOUT_S,
) -> Observation:
    """Read everything and add it to the history.

    Raises what reading raises, TierUnavailableError after `timeout_s`.
    """
    begun = history.next_stamp()
    deadline = asyncio.get_running_loop().time() + timeout_s
    seen = {}
    tables = TableService(store)
    for info in [info async for info in store.list_segments()]:
        attributes = await store.get_attributes(info.name)
        has_keys = is_table(attributes)
        seen[info.name] = SeenSegment(
            name=info.name,
            segment_id=info.segment_id,
            container_id=info.container_id,
            start_offset=info.start_offset,
            length=info.length,
            storage_length=info.storage_length,
            sealed=info.sealed,
            attributes=attributes,
            content=await _content(store, info, deadline),
            entries=await _entries(tables, info.name, deadline) if has_keys else None,
        )
    await tables.close()
    observation = Observation(
        begun, history.next_stamp(), process_run, seen, again, tuple(findings)
    )
    history.observations.append(observation)
    return observation


async def _content(store: SegmentStore, info: SegmentInfo, deadline: float) -> bytes:
    pieces: list[bytes] = []
    offset = info.start_offset
    number = info.segment_id
    while offset < info.length:
        length = min(_PIECES[number % len(_PIECES)], info.length - offset)
        data = await _patiently(partial(store.read, info.name, offset, length), deadline)
        if not data:
            break
        pieces.append(data)
        offset += len(data)
        number += 1
    return b"".join(pieces)


async def _entries(tables: TableService, name: str, deadline: float) -> tuple[SeenEntry, ...]:
    entries: list[SeenEntry] = []
    token = b""
    while True:
        ask = partial(tables.entries, name, _PAGE_ENTRIES, token=token)
        page = await _patiently(ask, deadline)
        if not page.entries:
            return tuple(sorted(entries))
        entries += [SeenEntry(*entry) for entry in page.entries]
        token = page.token


async def _patiently(ask: Callable[[], Awaitable[T]], deadline: float) -> T:
    pause = _PAUSE_S
    while True:
        try:
            return await ask()
        except TierUnavailableError:
            if asyncio.get_running_loop().time() >= deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, _PAUSE_MAX_S)
