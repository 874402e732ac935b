"""What can be said about a compaction, in the words of Iceberg's `rewrite_data_files`, and what
each word means here.

Rules of this file:

- an option of that procedure that makes sense here has its name, its default and its meaning there;
  differences are named in docs/compaction.md;
- sizes may be anything from 1 byte on: what is sensible is the command line's to insist on, and
  tests want tiny ones.

Pure: values in, values out.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Final, Literal, get_args

from segmentstore.contracts.byte_sizes import MIB
from segmentstore.contracts.errors import ConfigError
from tier2.block_object import EXTENT_BYTES_DEFAULT
from tier2.extent_codec import CODECS_BY_NAME
from tier2.mailbox.messages import REPLACEMENT_CHUNKS_MAX

TARGET_BYTES_MIN: Final = 64 * MIB
TARGET_BYTES_MAX: Final = 512 * MIB
"""What the command line takes as a target.

Smaller objects cost requests, larger ones a task's memory.
"""
OLDER_THAN_MS: Final = 3600 * 1000
GROUP_CHUNKS_MAX: Final = REPLACEMENT_CHUNKS_MAX
"""Chunks of one group: they may all become one block, and are then replaced at once."""
JOIN_BYTES_MAX: Final = MIB
"""Two neighbouring chunks that are longer together are well enough apart: joining them saves
nothing worth a rewrite.
"""

JobOrder = Literal["none", "bytes-asc", "bytes-desc", "files-asc", "files-desc"]
JOB_ORDERS: Final[tuple[str, ...]] = get_args(JobOrder)
KEEP: Final = "keep"
COMPRESSIONS: Final[tuple[str, ...]] = (KEEP, *CODECS_BY_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions:
    """How to choose what is rewritten, and how.

    ConfigError, which names the option, for what cannot be meant.
    """

    target_file_size_bytes: int = 256 * MIB
    """Bytes of segments in a new object, about; also how far apart in a segment two bytes may be to
    share one.
    """
    min_file_size_bytes: int | None = None
    """A stretch that lies together in an object and has fewer bytes is small.

    None: 75 % of the target.
    """
    max_file_size_bytes: int | None = None
    """A new object has no more, but for a chunk that begins before that.

    None: 180 % of the target.
    """
    min_input_files: int = 5
    """Small stretches that must be neighbours to be worth joining; at least 2."""
    delete_ratio_threshold: float = 0.3
    """An object is rewritten as a whole if so large a part of it is dead; above 0, at most 1."""
    max_file_group_size_bytes: int | None = None
    """Bytes of a group.

    A group becomes one object here, so only less than `max_file_size_bytes` means anything.
    """
    max_concurrent_file_group_rewrites: int = 64
    """Partitions of the query: no more groups than this are rewritten at a time, nor than Spark has
    cores.
    """
    rewrite_job_order: JobOrder = "none"
    max_file_groups: int = 100_000
    """Groups of one run, which its driver holds, at 2 kB each; what is worth rewriting beyond them
    a later run finds.
    """
    where_segment: str | None = None
    """Only segments whose name matches (`*`, `?`, `[...]`; case matters). None: all."""
    where_container: frozenset[int] | None = None
    """Only these containers. None: all."""
    older_than_ms: int = OLDER_THAN_MS
    """Only objects at least so old when the snapshot was taken."""
    block_bytes: int = 64 * MIB
    """A block of a new object has no more, but for a single chunk that has."""
    extent_bytes: int = EXTENT_BYTES_DEFAULT
    compression: str = KEEP
    """Of new blocks: `none`, `zstd`, or `keep`: compressed if a source of the group provably is."""

    def __post_init__(self) -> None:
        at_least = {
            "target-file-size-bytes": (self.target_file_size_bytes, 1),
            "min-file-size-bytes": (self.small_bytes, 0),
            "max-file-size-bytes": (self.group_bytes_max, 1),
            "min-input-files": (self.min_input_files, 2),
            "max-concurrent-file-group-rewrites": (self.max_concurrent_file_group_rewrites, 1),
            "max-file-groups": (self.max_file_groups, 1),
            "older-than": (self.older_than_ms, 0),
            "block-bytes": (self.block_bytes, 1),
            "extent-bytes": (self.extent_bytes, 1),
        }
        for name, (value, least) in at_least.items():
            if value < least:
                raise ConfigError(name, f"{value} is less than {least}")
        if not self.small_bytes <= self.target_file_size_bytes <= self.whole_bytes_max:
            raise ConfigError(
                "target-file-size-bytes",
                f"{self.target_file_size_bytes} is not between min-file-size-bytes "
                f"{self.small_bytes} and"
                f" max-file-size-bytes {self.whole_bytes_max}",
            )
        if not 0 < self.delete_ratio_threshold <= 1:
            raise ConfigError(
                "delete-ratio-threshold",
                f"{self.delete_ratio_threshold} is not above 0 and at most 1",
            )
        if self.rewrite_job_order not in JOB_ORDERS:
            raise ConfigError(
                "rewrite-job-order",
                f"{self.rewrite_job_order!r} is not one of {', '.join(JOB_ORDERS)}",
            )
        if self.compression not in COMPRESSIONS:
            raise ConfigError(
                "compression", f"{self.compression!r} is not one of {', '.join(COMPRESSIONS)}"
            )

    @property
    def small_bytes(self) -> int:
        """Fewer bytes than this in one place are small."""
        return (
            self.target_file_size_bytes * 3 // 4
            if self.min_file_size_bytes is None
            else self.min_file_size_bytes
        )

    @property
    def whole_bytes_max(self) -> int:
        """The most bytes of a new object, as `max_file_size_bytes` has it."""
        return (
            self.target_file_size_bytes * 9 // 5
            if self.max_file_size_bytes is None
            else self.max_file_size_bytes
        )

    @property
    def group_bytes_max(self) -> int:
        """The most bytes of a group."""
        return min(self.whole_bytes_max, self.max_file_group_size_bytes or self.whole_bytes_max)

    @property
    def join_bytes(self) -> int:
        """Neighbouring blocks of at most so many bytes together had better be one.

        None such comes out of a rewrite.
        """
        return min(JOIN_BYTES_MAX, self.block_bytes)

    def wants_segment(self, name: str) -> bool:
        """Whether a segment may be touched."""
        return self.where_segment is None or fnmatch.fnmatchcase(name, self.where_segment)

    def wants_container(self, container_id: int) -> bool:
        """Whether a container may be touched."""
        return self.where_container is None or container_id in self.where_container
