"""Settings and numbers of the storage writer."""

from __future__ import annotations

from dataclasses import dataclass

from segmentstore.contracts.errors import ConfigError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageWriterConfig:
    """When bytes go to Tier 2, in what pieces, and how patiently. Raises ConfigError for what contradicts itself."""

    flush_bytes: int = 8 * MIB
    """Un-flushed bytes at which a segment goes at once, into an object of its own."""
    flush_age_s: float = 30.0
    """Longest that a committed byte waits before its segment goes, whatever its size."""
    object_bytes: int = 64 * MIB
    """Most payload bytes of one object, and so of one block."""
    object_segments_max: int = 4096
    """Most segments that share an object; bounds the size of one storage update in the log."""
    extent_bytes: int = 64 * 1024
    """Bytes under one checksum."""
    unflushed_target_bytes: int = 64 * MIB
    """Bytes not yet on their way at which everything pending goes: bounds memory and log with any number of slow segments."""
    uploads_max: int = 4
    """Objects in flight."""
    upload_bytes_max: int = 128 * MIB
    """Payload bytes in flight; at least `object_bytes`."""
    deletion_lag_s: float = 4 * 3600.0
    """How long an object must have been unreferenced in the log before it is deleted."""
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
        ):
            if getattr(self, name) < 1:
                raise ConfigError(name, f"{getattr(self, name)} is not at least 1")
        if self.flush_bytes > self.object_bytes:
            raise ConfigError("flush_bytes", f"{self.flush_bytes} does not fit into object_bytes, {self.object_bytes}")
        if self.upload_bytes_max < self.object_bytes:
            raise ConfigError(
                "upload_bytes_max", f"{self.upload_bytes_max} is less than object_bytes, {self.object_bytes}"
            )
        if self.flush_age_s < 0 or self.deletion_lag_s < 0:
            raise ConfigError("flush_age_s" if self.flush_age_s < 0 else "deletion_lag_s", "a duration is not negative")
        if not 0 < self.retry_min_s <= self.retry_max_s:
            raise ConfigError("retry_min_s", f"{self.retry_min_s} is not above 0 and at most {self.retry_max_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageWriterStatistics:
    """A snapshot of the writer's numbers; counts are since it was made."""

    segments_pending: int
    """Segments with un-flushed bytes."""
    unflushed_bytes: int
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
    """Uploads that found a foreign object under a name of ours: always 0 unless somebody else writes there."""
    garbage_waiting: int
    """Objects nothing refers to that are not deleted yet."""
    garbage_deleted: int
    garbage_failures: int
