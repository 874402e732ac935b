"""WriteThrottle: how long writers of a container wait, by what its log, its storage writer and its
read index have to carry.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from durablelog.drain_pace import UNPACED_SHARE, DrainMeter
from durablelog.durable_data_log import DurableDataLog
from durablelog.throttler import NO_DELAY, TARGET, DrainingBytes, Load, Throttle, throttle
from readindex.read_index import ReadIndex
from readindex.statistics import Pressure
from segmentstore.config import StoreConfig
from storagewriter.storage_writer import StorageWriter

if TYPE_CHECKING:
    from segmentstore.container.archive_hold import ArchiveHold

FAIR_PART: Final = 8
"""A segment uses little up to this part of the mean of un-flushed bytes.

More of it would go past the pace: what a flush has just emptied uses little too.
"""


class WriteThrottle:
    """Of one container."""

    def __init__(
        self,
        log: DurableDataLog,
        read_index: ReadIndex,
        writer: StorageWriter,
        config: StoreConfig,
        hold: ArchiveHold | None,
    ) -> None:
        self._log = log
        self._index = read_index
        self._writer = writer
        self._config = config
        self._hold = hold
        self._flushes = DrainMeter()
        self._offloads = DrainMeter()

    def observe(self) -> None:
        """Measure what Tier 2 and the archive take: to be called whenever they may have taken
        some. O(1).
        """
        now, writer = asyncio.get_running_loop().time(), self._writer
        self._flushes.observe(now, writer.settled_bytes, works=writer.is_flushing)
        hold = self._hold
        if hold is not None:
            self._offloads.observe(now, hold.offloaded_bytes, works=hold.is_offloading)

    def current(self, on_its_way: int) -> Throttle:
        """The delay or the pace as of now, and what may be written all the same, while so many
        bytes are on their way to the log.

        Where a flush relieves it, one is begun.
        """
        self.observe()
        log, pressure = self._log, self._index.pressure
        if self._is_light(pressure, on_its_way):
            return NO_DELAY
        load = Load(pressure.tail, float(log.full), self._backlogs(pressure, on_its_way))
        asked = throttle(load)
        if not asked.source:
            return asked
        if log.full and not log.short:
            return asked  # for the moment until the next file is there: no flush helps
        # Writers must never wait for bytes that no flush moves: a cache may refuse long before the
        # targets.
        self._writer.request_flush()
        if log.full:
            # What room is left in the log is not for callers.
            return replace(asked, relief_bytes=log.relief_bytes)
        return self._with_room(asked, pressure, on_its_way)

    def _is_light(self, pressure: Pressure, on_its_way: int) -> bool:
        """Whether nothing asks for a delay or a pace, whatever drains.

        It is so for most frames, and found with a third of the calls.
        """
        hold, unpaced = self._hold, UNPACED_SHARE * self._config.unflushed_bytes_max - on_its_way
        return (
            self._writer.unflushed_bytes < unpaced
            and pressure.unflushed + on_its_way < UNPACED_SHARE * pressure.bound
            and pressure.tail <= TARGET
            and not self._log.full
            and (hold is None or not hold.holds or hold.unarchived_bytes < unpaced)
        )

    def _backlogs(self, pressure: Pressure, on_its_way: int) -> list[DrainingBytes]:
        now, bound_max = asyncio.get_running_loop().time(), self._config.unflushed_bytes_max
        level, drain = self._writer.unflushed_bytes + on_its_way, self._flushes.drain(now)
        held = pressure.unflushed + on_its_way
        backlogs = [
            DrainingBytes("unflushed", level, bound_max, drain),
            DrainingBytes("cache", held, pressure.bound, drain),
        ]
        hold = self._hold
        if hold is not None and hold.holds:
            level = hold.unarchived_bytes + on_its_way
            backlogs.append(DrainingBytes("archive", level, bound_max, self._offloads.drain(now)))
        return backlogs

    def _with_room(self, asked: Throttle, pressure: Pressure, on_its_way: int) -> Throttle:
        bound_max, hold = self._config.unflushed_bytes_max, self._hold
        if asked.source == "archive" and hold is not None:
            # No flush helps, and no segment uses less of the log than another one.
            room = bound_max - hold.unarchived_bytes
            return replace(asked, room_bytes=room - on_its_way)
        unflushed = self._writer.unflushed_bytes
        # The cache may refuse.
        room_held = int(self._config.read_index.tail_bytes_max * (1.0 - pressure.share))
        room = min(bound_max - unflushed, room_held) - on_its_way
        fair = unflushed // (FAIR_PART * max(1, self._writer.pending_segments))
        return replace(asked, room_bytes=room, fair_bytes=fair)
