"""Groups whose sources were missing when a task came to them: the store replaced these itself, or
they are lost.

A store consolidates, truncates and deletes beside a job, and what it replaced is deleted after the
deletion lag. Only the present catalog distinguishes that from loss. Rule: a source that is no
longer live there was replaced, and its group needs no work; one that is live and not there is
missing.

Coroutines over ObjectStorage; no pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_schema import LIVE
from tier2.object_names import MessageKey
from tier2.object_storage import ObjectStorage
from tier2.spark.reconcile.owners import Owners
from tier2.spark.reconcile.shard_rows import shard_rows

REPLACED: Final = "the store itself has replaced it since the snapshot that was planned from"
_COLUMNS: Final = ("name", "state")


async def overtaken_sources(
    owners: Owners, deleted: Mapping[MessageKey, str]
) -> dict[MessageKey, str]:
    """Of groups and the source that each found missing: those it was replaced for, and a sentence
    that says so.

    Asks the owners for snapshots, as `owners` is asked to. Of one that does not answer its groups
    are omitted, and so are those whose source the catalog still needs. Raises CatalogFormatError,
    StorageUnavailableError. Costs an export, and for each container and shard with a source a
    stretch of `objects`.
    """
    if not deleted:
        return {}
    manifests = (await owners.snapshots("again")).manifests
    found: dict[MessageKey, str] = {}
    for number in sorted({key.container_id for key in deleted} & manifests.keys()):
        of_it = {key: name for key, name in deleted.items() if key.container_id == number}
        live = await _live_names(owners.storage, manifests[number], set(of_it.values()))
        found |= {key: f"{name}: {REPLACED}" for key, name in of_it.items() if name not in live}
    return found


async def _live_names(storage: ObjectStorage, manifest: Manifest, names: set[str]) -> set[str]:
    live: set[str] = set()
    for shard in sorted({int(name[:2], 16) for name in names}):
        fetched = await shard_rows(storage, {manifest.container_id: manifest}, [shard], _COLUMNS)
        rows = await fetched.of(shard)
        listed = zip(rows["name"].to_pylist(), rows["state"].to_pylist(), strict=True)
        live |= {str(name) for name, state in listed if name in names and state == LIVE}
    return live
