"""Names of the objects of catalog snapshots:
`catalog/<container>/<epoch>-<sequence number>-<unique id>/<part>`.

Rules of this file:

- all names begin with one word, so that one short listing finds all snapshots, and sort as they
  were taken;
- the unique id begins with what its store's id hashes to: stores that share a place leave each
  other's alone;
- there is one spelling of each name: lower case, fixed widths.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import random
import re
from typing import Final, NamedTuple

from tier2.object_names import (
    CONTAINER_ID_MAX,
    EPOCH_MAX,
    STORE_TAG_BYTES,
    UNIQUE_ID_BYTES,
    check_unique_id,
    store_tag,
)

PREFIX: Final = "catalog/"
"""What every name begins with."""
MANIFEST: Final = "manifest.json"
"""The last part of the object that makes a snapshot one: it is put last and deleted first."""
TABLES: Final = ("segments", "chunks", "objects")

_NAME = re.compile(
    r"catalog/([0-9a-f]{8})/([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{32})/"
    r"(manifest\.json|segments\.parquet|chunks\.parquet|objects\.parquet)"
)


class SnapshotName(NamedTuple):
    """What a snapshot's name says. Two of one container sort by what they contain."""

    container_id: int
    epoch: int
    """Of the owner whose metadata these are."""
    sequence_number: int
    """Of the last operation in them."""
    unique_id: bytes

    @property
    def prefix(self) -> str:
        """What the names of all its objects begin with."""
        return snapshot_prefix(*self)

    def is_of(self, store_id: str) -> bool:
        """Whether a store of this id took it."""
        return self.store_mark == store_tag(store_id)

    @property
    def store_mark(self) -> bytes:
        """Tells stores apart, as far as 8 bytes of a hash do."""
        return self.unique_id[:STORE_TAG_BYTES]


def new_snapshot_id(store_id: str, source: random.Random) -> bytes:
    """A unique id that shows whose it is: 8 bytes made of the store's id, and 8 never drawn
    before.
    """
    drawn = source.getrandbits(8 * (UNIQUE_ID_BYTES - STORE_TAG_BYTES))
    return store_tag(store_id) + drawn.to_bytes(UNIQUE_ID_BYTES - STORE_TAG_BYTES, "big")


def container_prefix(container_id: int) -> str:
    """What the names of one container's snapshots begin with."""
    return f"{PREFIX}{container_id:08x}/"


def snapshot_prefix(container_id: int, epoch: int, sequence_number: int, unique_id: bytes) -> str:
    """What the names of one snapshot's objects begin with, slash included; ValueError for parts out
    of range.
    """
    if not 0 <= container_id <= CONTAINER_ID_MAX:
        raise ValueError(f"container id {container_id} is not 0 to {CONTAINER_ID_MAX}")
    if not 0 <= epoch <= EPOCH_MAX or not 0 <= sequence_number <= EPOCH_MAX:
        raise ValueError(
            f"epoch {epoch} or sequence number {sequence_number} is not 0 to {EPOCH_MAX}"
        )
    check_unique_id(unique_id)
    return f"{container_prefix(container_id)}{epoch:016x}-{sequence_number:016x}-{unique_id.hex()}/"


def manifest_name(snapshot: SnapshotName) -> str:
    """The name of a snapshot's manifest."""
    return snapshot.prefix + MANIFEST


def table_name(snapshot: SnapshotName, table: str) -> str:
    """The name of the object of one of its tables."""
    return f"{snapshot.prefix}{table}.parquet"


def parse_manifest_name(name: str) -> SnapshotName | None:
    """Which snapshot's manifest this is; None of any other object."""
    return parse_catalog_name(name) if name.endswith("/" + MANIFEST) else None


def parse_catalog_name(name: str) -> SnapshotName | None:
    """Which snapshot this object is of; None of what is no catalog's."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    container, epoch, sequence_number, unique, _ = match.groups()
    return SnapshotName(
        int(container, 16), int(epoch, 16), int(sequence_number, 16), bytes.fromhex(unique)
    )


def is_catalog_name(name: str) -> bool:
    """Whether an object of this name is part of a snapshot."""
    return parse_catalog_name(name) is not None
