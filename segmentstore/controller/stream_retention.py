"""Retention: records the tails of streams that have a policy, and truncates them by it.

What is truncated cannot be had again. So ages of tails are of time that is known to have passed:
while a Controller ran, and between two passes on one boot of one machine. A wall clock that jumps
makes nothing older. Where the time is not known, a stream keeps more than its policy says.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from segmentstore.contracts.errors import describe
from segmentstore.contracts.runtime import Runtime
from segmentstore.controller.controller_rows import (
    ControllerRows,
    FoundRow,
    LoadedStream,
    RowPut,
    cut_key,
    retention_key,
)
from segmentstore.controller.deadlines import FIRST_S, Deadlines
from segmentstore.controller.names import ScopedName
from segmentstore.controller.reader_groups import ReaderGroups
from segmentstore.controller.retention_rules import RecordedCut, truncation
from segmentstore.controller.stream_changes import head_cut
from segmentstore.controller.stream_cuts import between, bytes_between, is_valid, precedes
from segmentstore.controller.stream_history import StreamHistory
from segmentstore.controller.stream_model import StreamCut, cut_from_row, cut_to_row
from segmentstore.controller.streams import Streams

_log = logging.getLogger(__name__)

PERIOD_S: Final = 1800.0
_KEY: Final = "retention"


class RetentionTask:
    """One pass over all streams with a policy in each period."""

    def __init__(
        self,
        rows: ControllerRows,
        streams: Streams,
        groups: ReaderGroups,
        deadlines: Deadlines,
        runtime: Runtime,
        period_s: float,
    ) -> None:
        self._rows = rows
        self._streams = streams
        self._groups = groups
        self._deadlines = deadlines
        self._runtime = runtime
        self._period_s = period_s
        self._started_s = 0.0

    def start(self) -> None:
        self._started_s = asyncio.get_running_loop().time()
        self._deadlines.schedule(_KEY, min(FIRST_S, self._period_s), self.run)

    async def run(self) -> None:
        """One pass; the next one is a period later."""
        self._deadlines.schedule(_KEY, self._period_s, self.run)
        async for row in self._rows.scan("retention/"):
            name = ScopedName(*row.key.split("/")[1:])
            try:
                async with self._streams.locked(name) as stream:
                    await self._retain(name, stream)
            except Exception as error:  # noqa: BLE001 - of one stream: the others go on
                _log.warning("retention of the stream %s: %s", name, describe(error))

    async def _retain(self, name: ScopedName, stream: LoadedStream | None) -> None:
        policy = stream.record.configuration.retention if stream else None
        if stream is None or policy is None:
            await self._rows.remove_below(f"cut/{name}/")
            await self._rows.remove([retention_key(name)])
            return
        history = await self._rows.history(name)
        head = head_cut(stream.record, history)
        rows = [row async for row in self._rows.scan(f"cut/{name}/")]
        recorded = [
            RecordedCut(int(row.last), row.value["bytes_before"], cut_from_row(row.value["cut"]))
            for row in rows
        ]
        if rows:
            now_ms = recorded[-1].time_ms + self._passed_ms(rows[-1])
        else:
            now_ms = self._runtime.clock.time_ms()
        recorded.append(await self._record(stream, history, recorded, head, now_ms))
        if len(recorded) > 2 and self._are_close(*recorded[-3:-1]):
            await self._rows.remove([cut_key(name, recorded.pop(-2).time_ms)])
        # Without a valid cut a subscriber has read nothing. One may be of a former stream of the
        # name: earlier versions left such rows.
        reported = await self._groups.subscriber_cuts(name)
        consumed = [each if is_valid(history, each) else head for each in reported]
        cut = truncation(history, policy, recorded, recorded[-1].time_ms, consumed)
        # Behind a truncation by hand a cut may be before the head at some keys, after it at others.
        # The stream would refuse it. Once its subscribers have read on, a later pass has another.
        if cut is not None and cut != head and precedes(history, head, cut):
            await self._streams.truncate_held(stream, cut)
            head = cut
        await self._rows.remove(
            cut_key(name, each.time_ms)
            for each in recorded[:-1]
            if each.cut != head and precedes(history, each.cut, head)
        )

    def _are_close(self, earlier: RecordedCut, later: RecordedCut) -> bool:
        """As of Controllers that are ended after minutes."""
        return later.time_ms - earlier.time_ms < self._period_s * 1000 / 2

    async def _record(
        self,
        stream: LoadedStream,
        history: StreamHistory,
        recorded: list[RecordedCut],
        head: StreamCut,
        now_ms: int,
    ) -> RecordedCut:
        name = stream.name
        states = await self._streams.states(
            name, (each.segment_id for each in stream.record.active)
        )
        tail = {each: state.length if state else 0 for each, state in states.items()}
        last = recorded[-1] if recorded else RecordedCut(0, 0, head)
        ended = [each.segment_id for each in between(history, last.cut, tail)]
        lengths = await self._streams.states(name, (each for each in ended if each not in tail))
        grown = bytes_between(
            history, last.cut, tail, lambda each: state.length if (state := lengths[each]) else 0
        )
        found = RecordedCut(now_ms, last.bytes_before + grown, tail)
        boot = self._runtime.boot()
        value = {
            "bytes_before": found.bytes_before,
            "cut": cut_to_row(tail),
            "boot": boot.boot_id.hex(),
            "boot_ms": boot.elapsed_ms,
        }
        await self._rows.put(RowPut(cut_key(name, now_ms), value))
        return found

    def _passed_ms(self, last: FoundRow) -> int:
        """How much time is known to have passed since a tail was recorded: all of it, on the same
        boot, and since this Controller's start otherwise.
        """
        boot = self._runtime.boot()
        if last.value.get("boot") == boot.boot_id.hex():
            return max(1, boot.elapsed_ms - int(last.value["boot_ms"]))
        passed_s = asyncio.get_running_loop().time() - self._started_s
        return max(1, round(passed_s * 1000))
