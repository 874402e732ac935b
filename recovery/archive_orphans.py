"""Objects of an archive that are of no part of it.

A request of an owner that was cut off may end behind the next owner's deletion of what it left
(docs/archive.md). Rules of this file:

- an object counts only if its own user metadata name the store: Pulsar, or another store, may use
  the same place;
- what is younger than a day is left out: its owner may be about to log it;
- nothing is deleted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container
from typing import Final

from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.findings import Finding, note
from tier2.archive.archive_errors import ARCHIVE_TIER
from tier2.archive.archive_names import CONTAINER_KEY, STORE_KEY, parse_archived_name
from tier2.object_storage import ObjectStorage, StorageUnavailableError

ORPHAN_AGE_MS: Final = 24 * 3600 * 1000


async def archive_orphans(
    archive: ObjectStorage, store_id: str, known: Container[bytes], now_ms: int
) -> AsyncGenerator[Finding, None]:
    """A note of each; `known` has the uids of all parts and attempts of the store.

    Raises TierUnavailableError. Costs the listing of the place, and a HEAD for each object that
    is not known.
    """
    try:
        async for page in archive.list():
            for each in page:
                name = parse_archived_name(each.name)
                if name is None or name.uid in known or each.modified_ms > now_ms - ORPHAN_AGE_MS:
                    continue
                described = await archive.head(each.name)
                if described is not None and described.metadata.get(STORE_KEY) == store_id:
                    container = described.metadata.get(CONTAINER_KEY, "unknown")
                    detail = (
                        f"{format_size(each.size)} of container {container} that no part names: "
                        "an owner that was cut off left it, and it may be deleted"
                    )
                    yield note("archive-orphan", each.name, detail)
    except StorageUnavailableError as error:
        raise TierUnavailableError(ARCHIVE_TIER, str(error)) from error
