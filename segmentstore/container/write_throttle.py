"""WriteThrottle: how long writers of a container wait, by what its log, its storage writer and its
read index have to carry.
"""

from __future__ import annotations

from dataclasses import replace

from durablelog.durable_data_log import DurableDataLog
from durablelog.throttler import Load, Throttle, throttle
from readindex.read_index import ReadIndex
from segmentstore.config import StoreConfig
from segmentstore.container.log_archiver import LogArchiver
from storagewriter.storage_writer import StorageWriter


class WriteThrottle:
    """Of one container."""

    def __init__(
        self,
        log: DurableDataLog,
        read_index: ReadIndex,
        writer: StorageWriter,
        config: StoreConfig,
        archiver: LogArchiver | None,
    ) -> None:
        self._log = log
        self._index = read_index
        self._writer = writer
        self._config = config
        self._archiver = archiver

    def current(self) -> Throttle:
        """The delay as of now, and what may be written all the same.

        Where a flush relieves it, one is begun.
        """
        log, writer, config = self._log, self._writer, self._config
        unarchived = self._archiver.unarchived_bytes if self._archiver is not None else 0
        asked = throttle(
            Load(
                cache=self._index.pressure,
                unflushed=writer.unflushed_bytes / config.unflushed_bytes_max,
                log=1.0 if log.full else 0.0,
                archive=unarchived / config.unflushed_bytes_max,
            )
        )
        if not asked.delay_s:
            return asked
        if log.full and not log.short:
            return asked  # for the moment until the next file is there: no flush helps
        # Writers must never wait for bytes that nobody moves: a cache may refuse long before the
        # targets.
        writer.request_flush()
        if log.full:
            # What room is left in the log is not for callers.
            return replace(asked, relief_bytes=log.relief_bytes)
        if asked.source == "archive":
            # No flush helps, and no segment uses less of the log than another one.
            return replace(asked, room_bytes=config.unflushed_bytes_max - unarchived)
        unflushed = writer.unflushed_bytes
        # The cache may refuse.
        room_held = int(config.read_index.tail_bytes_max * (1.0 - self._index.pressure))
        room = min(config.unflushed_bytes_max - unflushed, room_held)
        # Half the mean: of segments that use about the same none goes before the others.
        fair = unflushed // (2 * max(1, writer.pending_segments))
        return replace(asked, room_bytes=room, fair_bytes=fair)
