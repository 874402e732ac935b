"""Settings and numbers of the storage writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from segmentstore.contracts.byte_sizes import GIB, KIB, MIB
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.settings import check_at_most, seconds, setting, whole
from tier2.extent_codec import CODECS_BY_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageWriterConfig:
    """When bytes go to Tier 2, in what pieces, and how patiently.

    Raises ConfigError for what contradicts itself.
    """

    flush_bytes: int = whole(64 * MIB)
    """Un-flushed bytes at which a segment goes at once, into an object of its own."""
    flush_age_s: float = seconds(30.0)
    """Longest that a committed byte waits before its segment goes, whatever its size."""
    object_bytes: int = whole(64 * MIB, 1, 4 * GIB)
    """Most payload bytes of one object, and so of one block."""
    object_segments_max: int = 16384
    """Most segments that share an object; bounds the size of one storage update in the log."""
    extent_bytes: int = whole(64 * KIB, 16, 16 * MIB)
    """Bytes under one checksum."""
    compression: str = setting("none")
    """What becomes of an extent: a key of `tier2.extent_codec.CODECS_BY_NAME`."""
    unflushed_target_bytes: int = whole(64 * MIB)
    """Bytes not yet on their way at which everything pending goes: bounds memory and log with any
    number of slow segments.
    """
    uploads_max: int = whole(4, 1, 256)
    """Objects in flight."""
    upload_bytes_max: int = whole(256 * MIB)
    """Payload bytes in flight; at least `object_bytes`."""
    consolidation: bool = setting(default=True)
    """Whether small and mostly dead objects are made into large ones."""
    consolidation_bytes: int = whole(256 * MIB, 1, 4 * GIB)
    """Living bytes that a consolidated object has at least; one that has half of it is left as it
    is.
    """
    consolidation_download_bytes_per_s: int = whole(0, 0)
    """Bytes a second that consolidation may download on the average, where Tier 2 cannot copy; 0:
    no bound.
    """
    deletion_lag_s: float = seconds(4 * 3600.0)
    """How long an object must have been unreferenced in the log before it is deleted."""
    orphan_sweep_interval_s: float = seconds(60.0)
    """One listing request in so much time searches for orphans: 256 and a few make a sweep; 0:
    no search.
    """
    mailbox_poll_interval_s: float = seconds(30.0)
    """One listing request in so much time searches for messages of jobs; 0: no search."""
    retry_min_s: float = 0.1
    """First back-off after Tier 2 did not answer; doubles with each failure."""
    retry_max_s: float = 30.0
    """Longest back-off."""

    def __post_init__(self) -> None:
        for name in (
            "flush_bytes",
            "object_bytes",
            "object_segments_max",
            "extent_bytes",
            "unflushed_target_bytes",
            "uploads_max",
            "consolidation_bytes",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(name, f"{getattr(self, name)} is not at least 1")
        if self.consolidation_download_bytes_per_s < 0:
            raise ConfigError(
                "consolidation_download_bytes_per_s", "a number of bytes is not negative"
            )
        if self.compression not in CODECS_BY_NAME:
            raise ConfigError(
                "compression", f"{self.compression!r} is not one of {', '.join(CODECS_BY_NAME)}"
            )
        check_at_most(self, "flush_bytes", "object_bytes")
        check_at_most(self, "object_bytes", "upload_bytes_max")
        if self.flush_age_s < 0 or self.deletion_lag_s < 0:
            raise ConfigError(
                "flush_age_s" if self.flush_age_s < 0 else "deletion_lag_s",
                "a duration is not negative",
            )
        if self.orphan_sweep_interval_s < 0:
            raise ConfigError("orphan_sweep_interval_s", "a duration is not negative")
        if self.mailbox_poll_interval_s < 0:
            raise ConfigError("mailbox_poll_interval_s", "a duration is not negative")
        if not 0 < self.retry_min_s <= self.retry_max_s:
            raise ConfigError(
                "retry_min_s", f"{self.retry_min_s} is not above 0 and at most {self.retry_max_s}"
            )


class StorageWriterStatistics(NamedTuple):
    """A snapshot of the writer's numbers; counts are since it was made."""

    segments_pending: int
    """Segments with un-flushed bytes."""
    unflushed_bytes: int
    unflushed_age_s: float
    """Of the oldest of them, since it was committed, or replayed after an opening; 0.0 if there are
    none.
    """
    uploads_in_flight: int
    upload_bytes_in_flight: int
    objects_written: int
    blocks_written: int
    bytes_written: int
    """Payload, without block headers."""
    links: int
    """Merges whose source was made part of its target in Tier 2."""
    upload_failures: int
    name_collisions: int
    """Uploads that found a foreign object under a name of ours: always 0 unless another
    program writes there.
    """
    consolidations: int
    """Objects made of others."""
    consolidated_objects: int
    """The others."""
    bytes_copied: int
    """Of these objects, by the store itself."""
    bytes_rewritten: int
    """Of these objects, downloaded and uploaded."""
    replacements_refused: int
    """Stretches of segments that were no longer what had been read when the log came to them."""
    consolidation_failures: int
    """Groups given up because an object of theirs is lost or corrupt."""
    garbage_waiting: int
    """Objects nothing refers to that are not deleted yet."""
    garbage_deleted: int
    garbage_failures: int
    sweeps: int
    """Searches for orphans that went through all shards."""
    sweep_failures: int
    orphans_found: int
    """Objects that no operation of the log named, made garbage."""
    orphan_bytes: int
    uploads_aborted: int
    """Uploads in parts that had no owner left."""
    messages_waiting: int
    """Messages of jobs without an answer, as of the last check."""
    messages_answered: int
    proposals_committed: int
    """Objects of jobs that segments are read from now, at least in part."""
    proposals_refused: int
    mailbox_failures: int
    """Polls of the mailbox that a tier did not answer."""
    wall_clock_jumps: int
    """Times that the wall clock was seen to have moved by more than a minute beside the time that
    passed.
    """
