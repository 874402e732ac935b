"""A log that holds nothing, though the container was there before: it was lost, and is refused."""

from __future__ import annotations

from durablelog.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from storagewriter.metadata_backup import MetadataBackup
from tier2.object_storage import StorageUnavailableError


async def refuse_lost_log(container_id: int, log: DurableDataLog, backup: MetadataBackup) -> None:
    """The log holds nothing: raise DataCorruptionError if it ever held something.

    An owner of it would in time delete what a restore wants. A log may hold nothing because the
    making of the store was cut off: of that one Tier 2 has neither a copy of its metadata nor a
    metadata snapshot. Raises TierUnavailableError if that cannot be known, and NotPrimaryError if a
    new owner has begun the log meanwhile.
    """
    try:
        copy = await backup.find_copy()
    except StorageUnavailableError as error:
        raise TierUnavailableError("tier2", str(error)) from error
    if copy is not None:
        # Or a new owner has begun it since we checked.
        await log.check_primary()
        detail = f"the log is lost, and tier2 has {copy}: nothing was deleted, see docs/restore.md"
        raise DataCorruptionError(f"log of container {container_id}", detail)
