"""Which object a checkpoint by reference names. Pure."""

from __future__ import annotations

from durablelog.operations import SnapshotCheckpointOperation
from tier2.object_names import metadata_manifest_name


def snapshot_name(container_id: int, operation: SnapshotCheckpointOperation) -> str:
    """The manifest in Tier 2 of the snapshot that a checkpoint names."""
    return metadata_manifest_name(
        container_id, operation.epoch, operation.sequence_number, operation.unique_id
    )
