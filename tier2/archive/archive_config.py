"""Settings of the archive of a store's logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from segmentstore.contracts.byte_sizes import GIB, MIB
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.settings import seconds, setting, whole

NO_ARCHIVE: Final = "none"
BLOCK_BYTES_DEFAULT: Final = 72 * MIB
"""Pulsar's 64 MiB, and room for the headers of entries."""
ARCHIVED_FILE_BYTES: Final = 120 * MIB
"""A log file of which the archive takes $0.09 of requests for a TiB, at list prices of S3."""
FILE_BLOCK_BYTES: Final = 128 * MIB - 1
"""A block that takes such a file whole, and that S3 is given by one put (`multipart_bytes`)."""
BLOCK_BYTES_MIN: Final = 5 * MIB
BLOCK_BYTES_MAX: Final = 2 * GIB - MIB
"""Pulsar's reader counts a block's bytes in 31 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveConfig:
    """Sizes in bytes, times in seconds. Byte bounds are for each container."""

    archive: str = setting("")
    """Where sealed parts of the log go before the log deletes them: a URL, as of `tier2`, of
    another place.

    Empty: nowhere, and a log that was archived before keeps all that is not there. "none": nowhere,
    and the log is deleted behind its checkpoints.
    """
    offload_after_s: float = seconds(0.0)
    """A sealed part of the log is archived once it took its last frame so long ago."""
    offload_above_bytes: int = whole(1 * GIB, 0)
    """The oldest sealed parts are archived earlier if those that are not take more than this."""
    archive_deletion_lag_s: float = seconds(4 * 3600.0)
    """The log keeps its own copy of an archived part for so long."""
    archive_retention_s: float = seconds(0.0)
    """A part is deleted from the archive once its last operation is older than this; 0: never."""
    archive_retention_bytes: int = whole(0, 0)
    """The oldest parts are deleted from the archive while the others take so much; 0: never."""
    archive_block_bytes: int = whole(0, 0, BLOCK_BYTES_MAX)
    """Size of a block of an archived part, at least 5 MiB; each but the last is one part of its
    upload. 0: 72 MiB; on log files of at most 120 MiB 128 MiB, so that each is one block.
    """
    archive_read_bytes: int = whole(1 * MIB)
    """Bytes that one request for entries of an archived part asks for."""
    archive_bytes_per_s: int = whole(128 * MIB, 0)
    """The log is read for the archive at this rate at most, for the whole store; 0: no bound."""

    @property
    def place(self) -> str:
        """The URL; empty: there is no archive."""
        return "" if self.archive == NO_ARCHIVE else self.archive

    def block_bytes(self, tier1: str, file_bytes: int) -> int:
        """Size of a block of an archived part, on logs of this kind."""
        one_block = tier1 == "file" and file_bytes <= ARCHIVED_FILE_BYTES
        return self.archive_block_bytes or (FILE_BLOCK_BYTES if one_block else BLOCK_BYTES_DEFAULT)

    def check(self, tier1: str, unflushed_bytes_max: int) -> None:
        """Raise ConfigError for what cannot be together."""
        if 0 < self.archive_block_bytes < BLOCK_BYTES_MIN:
            raise ConfigError(
                "archive_block_bytes", f"{self.archive_block_bytes} is less than {BLOCK_BYTES_MIN}"
            )
        if not self.place:
            return
        if tier1 == "memory":
            raise ConfigError("archive", 'tier1 = "memory" has no parts that could be archived')
        least_s = self.offload_after_s + self.archive_deletion_lag_s
        if 0 < self.archive_retention_s <= least_s:
            raise ConfigError(
                "archive_retention_s",
                f"{self.archive_retention_s} is not more than offload_after_s and "
                f"archive_deletion_lag_s together, {least_s}: a part would have to be deleted from "
                "the archive before the log has deleted its own copy",
            )
        if 0 < self.archive_retention_bytes <= self.offload_above_bytes:
            raise ConfigError(
                "archive_retention_bytes",
                f"{self.archive_retention_bytes} is not more than offload_above_bytes, "
                f"{self.offload_above_bytes}: a part would be too old before it is archived",
            )
        if self.offload_above_bytes > unflushed_bytes_max // 2:
            raise ConfigError(
                "offload_above_bytes",
                f"{self.offload_above_bytes} is more than half of unflushed_bytes_max, "
                f"{unflushed_bytes_max}, at which writers are held until the log is archived",
            )
