"""Settings of the operation processor."""

from __future__ import annotations

from dataclasses import dataclass

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
