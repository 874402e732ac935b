"""SnapshotCheck: whether the metadata snapshots that a store has in Tier 2 have all their files."""

from __future__ import annotations

from collections.abc import Collection

from durablelog.operations import SnapshotCheckpointOperation
from recovery.snapshot_name import snapshot_name
from segmentstore.contracts.findings import Finding, note
from tier2.metadata_manifest import MetadataManifest
from tier2.metadata_snapshots import (
    MetadataSnapshotError,
    check_snapshot_file,
    read_snapshot_manifest,
)
from tier2.object_names import MetadataFileName, metadata_manifest_name, parse_metadata_name
from tier2.object_storage import ObjectStorage, StoredObject

_NAMED = 3
_AGAIN = "the next checkpoint puts a new one"
_REMOVE = "remove it, and the next opening of the store has it put anew: snapshots to come name it"


class SnapshotCheck:
    """Compares manifests with a listing. `tag` is the store's; empty: all manifests are its own.

    Nothing that it finds is a loss: each log could be replayed, or has a finding of its own.
    """

    def __init__(self, container_ids: Collection[int], tag: bytes) -> None:
        self._container_ids = frozenset(container_ids)
        self._tag = tag
        self._manifests: dict[str, int] = {}
        """Container by name."""
        self._sizes: dict[str, int] = {}
        """Of the listed files."""
        self._begins: dict[str, int] = {}
        """As `_manifests`: those that the containers' logs begin with."""
        self._wrong: dict[str, str] = {}
        """What is wrong with each file that was read; empty: nothing. Snapshots share files."""

    def begins(self, container_id: int, operation: SnapshotCheckpointOperation) -> None:
        """The container's log begins with this checkpoint, whose metadata were loaded."""
        self._begins[snapshot_name(container_id, operation)] = container_id

    def add(self, stored: StoredObject) -> None:
        """Take one object of the listing."""
        named = parse_metadata_name(stored.name)
        if named is None or named.container_id not in self._container_ids:
            return
        if isinstance(named, MetadataFileName):
            self._sizes[stored.name] = stored.size
        elif named.unique_id.startswith(self._tag):
            self._manifests[metadata_manifest_name(*named)] = named.container_id

    async def findings(self, storage: ObjectStorage, *, deep: bool = False) -> list[Finding]:
        """After the last `add`. Two requests a manifest; deep, one read of all their files.

        Raises StorageUnavailableError.
        """
        found = []
        for name, container_id in sorted({**self._manifests, **self._begins}.items()):
            damage, advice = await self._damage(storage, name, deep=deep)
            if not damage:
                continue
            if name in self._begins:
                words = "the log begins with it, and the copy on local disk is whole"
            else:
                words = "the log does not need it"
            detail = f"{damage}; {words}: {advice}"
            found.append(note("metadata-snapshot", f"container {container_id}, {name}", detail))
        return found

    async def _damage(self, storage: ObjectStorage, name: str, *, deep: bool) -> tuple[str, str]:
        try:
            manifest = await read_snapshot_manifest(storage, name)
        except MetadataSnapshotError as error:
            return str(error), _AGAIN
        lacking = []
        for file in manifest.files:
            stored = file.object_name(manifest.container_id)
            if stored is not None and self._sizes.get(stored) != file.content.size:
                is_there = stored in self._sizes
                lacking.append(f"{stored} {'has another size' if is_there else 'is missing'}")
        if deep and not lacking:
            return _joined(await self._wrong_files(storage, manifest)), _REMOVE
        return _joined(lacking), _AGAIN

    async def _wrong_files(self, storage: ObjectStorage, manifest: MetadataManifest) -> list[str]:
        names = []
        for file in manifest.files:
            stored = file.object_name(manifest.container_id)
            if stored is None:
                continue
            names.append(stored)
            if stored not in self._wrong:
                try:
                    await check_snapshot_file(storage, manifest, file)
                    self._wrong[stored] = ""
                except MetadataSnapshotError as error:
                    self._wrong[stored] = str(error)
        return [self._wrong[each] for each in names if self._wrong[each]]


def _joined(parts: list[str]) -> str:
    more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
    return ", ".join(parts[:_NAMED]) + more
