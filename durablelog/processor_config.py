"""Settings and numbers of the operation processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from segmentstore.contracts.byte_sizes import KIB, MIB
from segmentstore.contracts.settings import whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorConfig:
    """Bounds of what waits and is in flight, and when a checkpoint is due."""

    queue_bytes_max: int = whole(64 * MIB)
    """Appends that may wait to be written, `REQUEST_BYTES` a request and its data; beyond it they
    are refused with TierUnavailableError.
    """
    in_flight_bytes_max: int = whole(16 * MIB)
    """Frame payload on its way to Tier 1."""
    checkpoint_operations: int = whole(200_000)
    """A metadata checkpoint after so many operations: bounds what recovery replays."""
    checkpoint_bytes: int = whole(64 * MIB)
    """A metadata checkpoint after so many bytes of log."""
    inline_checkpoint_bytes_max: int = whole(64 * KIB, 0)
    """Metadata of so many bytes are in the checkpoint itself. Of more, it names a snapshot of the
    metadata catalog in Tier 2, and costs what changed since the one before.
    """
    active_segments_max: int = whole(25_000, 4)
    """Segments of a container whose metadata are in memory. The others are in the metadata catalog
    alone, and come back when they are used. A log in memory has no catalog, and no bound.
    """
    active_metadata_bytes_max: int = whole(128 * MIB)
    """What these metadata may take in memory, about. Beyond it, chunks and attributes of long
    segments leave memory after a checkpoint, and then segments. What is used meanwhile stays.
    """


class ProcessorStatistics(NamedTuple):
    """A snapshot of the processor's numbers."""

    queue_requests: int
    queue_bytes: int
    frames_in_flight: int
    bytes_in_flight: int
    requests_committed: int
    operations_committed: int
    frames_committed: int
    checkpoints: int
    throttled_by: str
    throttled_s: float
