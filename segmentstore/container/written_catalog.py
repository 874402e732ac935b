"""The whole metadata of a container at one moment, out of its catalog: for those who pass over all.

A checkpoint is taken for it. What is frozen then is written in batches; behind the last one, and
before the next checkpoint, the catalog has the metadata as of exactly that operation. Nothing of it
is copied in memory, and no segment becomes active.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from durablelog.catalog.catalog_errors import catalog_error
from durablelog.catalog.key_store import KeySnapshot, KeyStoreError
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.catalog.metadata_changes import MetadataChanges
from durablelog.operation_processor import OperationProcessor
from segmentstore.container.metadata_checkpoints import MetadataCheckpoints
from segmentstore.contracts.errors import TierUnavailableError

_CHECKPOINTS_MAX: Final = 3
"""That may be taken by others between ours and the snapshot of the store."""


async def written_catalog(
    container_id: int,
    checkpoints: MetadataCheckpoints,
    changes: MetadataChanges,
    catalog: MetadataCatalog,
    processor: Callable[[], OperationProcessor],
) -> KeySnapshot | None:
    """The catalog with everything that was committed by now, and perhaps more, as of its sequence
    number; the caller closes it. None: memory has everything, and checkpoints have it whole.

    Waits for a metadata snapshot that is being made. Raises TierUnavailableError while one fails,
    DataCorruptionError, and what `processor` raises once the container has stopped.
    """
    if not checkpoints.by_reference:
        return None
    where = f"container {container_id}"
    if not await checkpoints.settled():
        processor()
        detail = f"{where} writes no checkpoint: {checkpoints.health()}"
        raise TierUnavailableError("tier2", detail)
    await processor().checkpoint()
    for _ in range(_CHECKPOINTS_MAX):
        await checkpoints.settled()
        processor()
        if changes.all_written:
            try:
                return await catalog.store.snapshot()
            except KeyStoreError as error:
                processor()
                raise catalog_error(container_id, error) from error
    reason = checkpoints.health() or "a newer one is being written"
    raise TierUnavailableError("tier1", f"{where}, catalog: {reason}")
