"""ArchiveHold: what the log of a container keeps for its archive.

An owner without the setting `archive` has this alone. Once an attempt to archive a part was
recorded, the log keeps all that is not in the archive, as if that did not answer. So a command that
opens a store without the setting leaves no gap in its past (docs/decisions/0082). `LogArchiver` is
the hold of an owner that has the archive.
"""

from __future__ import annotations

from datetime import UTC, datetime

from durablelog.durable_data_log import DurableDataLog, LogAddress
from durablelog.log_positions import LogPositions
from segmentstore.contracts.archive_metadata import ArchiveMetadata
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Clock


class ArchiveHold:
    """Of one container; on its event loop. Holds nothing before there was an archive."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        log: DurableDataLog,
        positions: LogPositions,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._log = log
        self._positions = positions
        self._unarchived_bytes = 0
        self._since_ms = clock.time_ms()

    def start(self) -> None:
        """The container serves."""
        self._positions.on_part = self._part_began
        self._count()

    def _part_began(self) -> None:
        self._count()

    @property
    def holds(self) -> bool:
        """Whether the log keeps anything: parts of it are archived, have been, or were about to be.

        Also if all of them have expired: what is behind them is to be archived, too. O(1).
        """
        return self._archive.count > 0 or self._archive.attempt is not None

    @property
    def retain_from(self) -> int | None:
        """The number from which on the log retains parts in front of its truncation point; of None
        none is. O(1).
        """
        return self._archive.hot_deleted + 1 if self.holds else None

    @property
    def frees_on_full_disk(self) -> bool:
        """Whether a full disk may take what is retained: the archive was seen to have it."""
        return False

    @property
    def unarchived_bytes(self) -> int:
        """Bytes of sealed parts that the archive has not, as of the last one that was sealed."""
        return self._unarchived_bytes

    @property
    def offloaded_bytes(self) -> int:
        """Of parts that came into the archive, by this owner."""
        return 0

    @property
    def is_offloading(self) -> bool:
        """Whether so much waits that parts go at once, whatever their age."""
        return False

    def truncation_bound(self) -> LogAddress | None:
        """The log must not be truncated to this address or behind it; None: it may, anywhere.

        Every frame is in the archive, or at or behind the truncation point: readers of the log's
        past join both. Only a log without room is truncated inside of a part that is not archived,
        which stays as long as it is not. O(sealed parts that the archive has not).
        """
        if not self.holds:
            return None
        last, end, short = self._archive.last_number, LogAddress(0), self._log.short
        for part in self._log.sealed_parts(max(0, last - 1)):
            if part.length and part.number > last:
                return part.end if short else LogAddress(part.first + 1)
            end = part.end
        return None if short else LogAddress(end + 1)

    def health(self) -> str | None:
        """Why the log keeps what the archive has not, since when, and how much; None if it does
        not.
        """
        if not self.holds:
            return None
        since = datetime.fromtimestamp(self._since_ms / 1000, UTC).isoformat(timespec="seconds")
        kept = format_size(self._unarchived_bytes)
        return (
            f"`archive` is not set since the opening at {since}, so the log keeps all that its "
            f"archive has not, {kept} in sealed parts: set it, or "
            '"none" to have no archive any more'
        )

    @property
    def _archive(self) -> ArchiveMetadata:
        return self._metadata.archive

    def _count(self) -> None:
        if self.holds:
            parts = self._log.sealed_parts(self._archive.last_number)
            self._unarchived_bytes = sum(part.length for part in parts)
