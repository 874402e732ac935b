"""Names and manifests: one spelling, sorted as taken, and nothing believed that does not check."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.checksum import crc32c
from tests.tier2.catalog.metadata_maker import OTHER_STORE_ID, STORE_ID
from tier2.catalog import catalog_manifest
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.catalog.catalog_manifest import Manifest, TableFile
from tier2.object_names import (
    CATALOG_PREFIX,
    CATALOG_TABLES,
    SnapshotName,
    check_object_name,
    manifest_name,
    parse_catalog_name,
    parse_manifest_name,
    snapshot_prefix,
    table_name,
)
from tier2.unique_ids import new_copy_id

U64 = st.integers(0, 2**64 - 1)
NAMES = st.builds(
    SnapshotName, st.integers(0, 2**32 - 1), U64, U64, st.binary(min_size=16, max_size=16)
)


def some_manifest(name: SnapshotName | None = None, **changes: Any) -> Manifest:
    name = (
        name if name is not None else SnapshotName(3, 4, 5, new_copy_id(STORE_ID, random.Random(1)))
    )
    tables = {
        table: TableFile(
            object=table_name(name, table),
            size=100 + place,
            rows=place,
            schema_version="1.0",
            crc32c=7,
            footer_size=9,
            footer_crc32c=8,
        )
        for place, table in enumerate(CATALOG_TABLES)
    }
    fields: dict[str, Any] = {
        "store_id": STORE_ID,
        "containers": 9,
        "container_id": name.container_id,
        "epoch": name.epoch,
        "sequence_number": name.sequence_number,
        "time_ms": 1_700_000_000_000,
        "tables": tables,
    }
    return Manifest(**{**fields, **changes})


@settings(deadline=None)
@given(NAMES)
def test_names_are_read_back(name: SnapshotName) -> None:
    assert parse_manifest_name(manifest_name(name)) == name
    for table in CATALOG_TABLES:
        assert parse_catalog_name(table_name(name, table)) == name
        assert parse_manifest_name(table_name(name, table)) is None
    for each in (manifest_name(name), *(table_name(name, table) for table in CATALOG_TABLES)):
        assert parse_catalog_name(check_object_name(each))
        assert each.startswith(snapshot_prefix(*name))
        assert each.startswith(CATALOG_PREFIX)


@settings(deadline=None)
@given(st.lists(NAMES, min_size=2, max_size=5))
def test_names_sort_as_what_they_name(names: list[SnapshotName]) -> None:
    assert [manifest_name(name) for name in sorted(names)] == sorted(
        manifest_name(name) for name in names
    )


@pytest.mark.parametrize(
    "name",
    [
        "catalog/",
        "catalog/00000003/manifest.json",
        "catalog/00000003/0000000000000004-0000000000000005-" + "0" * 31 + "/manifest.json",
        "catalog/00000003/0000000000000004-0000000000000005-" + "0" * 32 + "/other.parquet",
        "catalog/0000000A/0000000000000004-0000000000000005-" + "0" * 32 + "/manifest.json",
        "x/catalog/00000003/0000000000000004-0000000000000005-" + "0" * 32 + "/manifest.json",
        "catalog/00000003/0000000000000004-0000000000000005-" + "0" * 32 + "/manifest.json/",
        "checkpoints/00000003/0000000000000004-0000000000000005-" + "0" * 32,
    ],
)
def test_other_names_are_not_the_catalogs(name: str) -> None:
    assert not parse_catalog_name(name)
    assert parse_manifest_name(name) is None


@pytest.mark.parametrize(
    "parts",
    [
        (-1, 0, 0, bytes(16)),
        (2**32, 0, 0, bytes(16)),
        (0, 2**64, 0, bytes(16)),
        (0, 0, -1, bytes(16)),
    ],
)
def test_numbers_out_of_range_make_no_name(parts: tuple[int, int, int, bytes]) -> None:
    with pytest.raises(ValueError, match="is not 0 to"):
        snapshot_prefix(*parts)
    with pytest.raises(ValueError, match="16 bytes"):
        snapshot_prefix(0, 0, 0, b"short")


def test_a_name_says_whose_it_is() -> None:
    name = SnapshotName(0, 1, 2, new_copy_id(STORE_ID, random.Random(1)))
    assert name.is_of(STORE_ID)
    assert name.is_of(STORE_ID.upper())
    assert not name.is_of(OTHER_STORE_ID)
    assert new_copy_id(STORE_ID, random.Random(2)) != name.unique_id


# --- manifests ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(NAMES)
def test_a_manifest_is_read_back(name: SnapshotName) -> None:
    manifest = some_manifest(name)
    data = catalog_manifest.encode(manifest)
    assert catalog_manifest.parse(data, manifest.name) == manifest
    assert manifest.snapshot == name
    assert data == catalog_manifest.encode(some_manifest(name))


def test_only_a_snapshot_of_a_stopped_store_says_so_and_all_others_are_written_as_ever() -> None:
    assert b"stopped" not in catalog_manifest.encode(some_manifest())
    stopped = some_manifest(stopped=True)
    data = catalog_manifest.encode(stopped)
    assert json.loads(data)["stopped"] is True
    assert catalog_manifest.parse(data, stopped.name) == stopped


def test_a_manifest_goes_to_the_tasks_of_a_job() -> None:
    manifest = some_manifest()
    assert pickle.loads(pickle.dumps(manifest)) == manifest


def changed(**changes: Any) -> bytes:
    """A manifest with other members, and a checksum that is right."""
    document = json.loads(catalog_manifest.encode(some_manifest()))
    del document["crc32c"]
    for path, value in changes.items():
        *outer, last = path.split("__")
        place = document
        for key in outer:
            place = place[key]
        if value is None:
            del place[last]
        else:
            place[last] = value
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**document, "crc32c": crc32c(text)}).encode()


def test_members_that_are_not_known_are_skipped() -> None:
    manifest = some_manifest()
    assert (
        catalog_manifest.parse(changed(colour="red", tables__segments__codec=[1]), manifest.name)
        == manifest
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "no JSON object"),
        (changed(version=2), "version 2 is newer than 1"),
        (changed(version="1"), "version '1'"),
        (changed(version=True), "version True"),
        (changed(store_id="nobody"), "store_id 'nobody' is no UUID"),
        (changed(epoch=None), "epoch is None"),
        (changed(epoch=5), "of another snapshot"),
        (changed(container_id=True), "container_id is True"),
        (changed(time_ms=-1), "time_ms is -1"),
        (changed(tables=[]), r"tables is \[\]"),
        (changed(tables__chunks=None), "chunks is None"),
        (changed(tables__chunks__rows=1.5), "rows is 1.5"),
        (changed(tables__chunks__footer_size=102), "a footer of 102 bytes of 101"),
        (
            changed(tables__chunks__object="elsewhere"),
            "table chunks is elsewhere, of another snapshot",
        ),
        (catalog_manifest.encode(some_manifest()).replace(b"1700", b"1701"), "checksum"),
    ],
)
def test_what_is_no_manifest_is_refused_by_name(data: bytes, said: str) -> None:
    name = some_manifest().name
    with pytest.raises(CatalogFormatError, match=said) as raised:
        catalog_manifest.parse(data, name)
    assert str(raised.value).startswith(name)


def test_a_manifest_under_another_name_is_refused() -> None:
    manifest = some_manifest()
    other = manifest_name(manifest.snapshot._replace(unique_id=bytes(16)))
    with pytest.raises(CatalogFormatError, match="it is the manifest of"):
        catalog_manifest.parse(catalog_manifest.encode(manifest), other)
