"""The numbers every object storage keeps, and their snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from tier2.object_storage import ObjectStorageStatistics


@dataclass(slots=True)
class StorageCounters:
    """Counted on the event loop only, when a call begins; bytes and errors when it ends."""

    puts: int = 0
    gets: int = 0
    heads: int = 0
    lists: int = 0
    deletes: int = 0
    bytes_put: int = 0
    bytes_got: int = 0
    errors: int = 0
    """Calls that ended in StorageUnavailableError: the store's fault, not an answer."""

    def snapshot(self) -> ObjectStorageStatistics:
        """The numbers as of now."""
        return ObjectStorageStatistics(
            puts=self.puts,
            gets=self.gets,
            heads=self.heads,
            lists=self.lists,
            deletes=self.deletes,
            bytes_put=self.bytes_put,
            bytes_got=self.bytes_got,
            errors=self.errors,
        )
