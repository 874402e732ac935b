"""What an error of the catalog means to a caller of the store."""

from __future__ import annotations

from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.catalog.key_store import KeyStoreCorruptError, KeyStoreError
from segmentstore.contracts.errors import (
    DataCorruptionError,
    SegmentStoreError,
    TierUnavailableError,
)


def catalog_error(
    container_id: int, error: KeyStoreError | MetadataFormatError
) -> SegmentStoreError:
    """DataCorruptionError if what is there is damaged, else TierUnavailableError."""
    where = f"container {container_id}, catalog"
    if isinstance(error, MetadataFormatError | KeyStoreCorruptError):
        advice = "open the store again: its catalog is checked then, and fetched from tier2"
        return DataCorruptionError(where, f"{error}; {advice}")
    return TierUnavailableError("tier1", f"{where}: {error}")
