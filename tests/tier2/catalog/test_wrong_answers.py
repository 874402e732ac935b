"""Snapshots behind a server that gives a wrong bit: what is whole there is read as it is."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.tier2.catalog.metadata_maker import STORE_ID
from tests.tier2.catalog.snapshot_place import Place, run, some_metadata
from tests.tier2.flipping_storage import FlippingStorage
from tier2.block_reader import FETCHES_MAX
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.catalog.catalog_groups import open_groups
from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_reading import fetch_shards, read_table
from tier2.catalog.catalog_snapshots import manifest_named, newest_snapshots
from tier2.object_storage import ObjectStorage

Reading = Callable[[ObjectStorage, Manifest], Awaitable[Any]]


async def groups(storage: ObjectStorage, manifest: Manifest) -> Any:
    opened = await open_groups(storage, manifest, "chunks", ["length"])
    return await opened.read(0, len(opened))


async def shards(storage: ObjectStorage, manifest: Manifest) -> Any:
    fetched = await fetch_shards(storage, manifest, range(256), ["name"])
    return [await fetched.read(range(128)), await fetched.read(range(128, 256))]


READINGS: dict[str, Reading] = {
    "newest": lambda storage, _: newest_snapshots(storage, STORE_ID, {}),
    "named": lambda storage, manifest: manifest_named(storage, manifest.name),
    "whole": lambda storage, manifest: read_table(storage, manifest, "segments"),
    "segments": lambda storage, manifest: read_table(
        storage, manifest, "chunks", segment_ids=range(1, 90)
    ),
    "shard": lambda storage, manifest: read_table(storage, manifest, "objects", shard=range(200)),
    "shards": shards,
    "groups": groups,
}


@pytest.mark.parametrize("kind", READINGS)
def test_a_wrong_bit_in_an_answer_decides_nothing(kind: str) -> None:
    async def main() -> None:
        place = Place()
        storage = place.storage = FlippingStorage(place.runtime)
        manifest = await place.write(some_metadata())
        read = READINGS[kind]
        storage.give_wrong(0)
        whole = await read(storage, manifest)
        for first in range(storage.answers):
            storage.give_wrong(FETCHES_MAX - 1, random.Random(first), first)
            assert await read(storage, manifest) == whole
        if kind == "newest":
            return  # what cannot be read is noted there
        storage.give_wrong(1000, random.Random(7))
        with pytest.raises(CatalogFormatError):
            await read(storage, manifest)

    run(main())
