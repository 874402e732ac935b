"""What jobs do with whole columns of names is what the authority over names says of each."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tier2.any_names import NAMES
from tier2.archive_places import ArchivedName
from tier2.object_names import (
    ENGINE_PREFIXES,
    ForeignName,
    ObjectName,
    classify_name,
    engine_folder,
)
from tier2.object_storage import StoredObject
from tier2.spark.reconcile.findings import FindingKind, StoreFacts, check_shard
from tier2.spark.reconcile.folders import check_names
from tier2.spark.reconcile.listing import is_known_prefix, shards_of
from tier2.spark.reconcile.listing_table import listing_table

NOW_MS = 1_700_000_000_000
NO_OBJECTS = pa.table(
    {
        "name": pa.array([], pa.string()),
        "size": pa.array([], pa.int64()),
        "state": pa.array([], pa.string()),
    }
)
SOME = st.lists(NAMES, unique=True, max_size=8)


def listed(names: list[str]) -> pa.Table:
    return listing_table([StoredObject(name, 1, 0) for name in names])


def place_of(names: list[str]) -> StoreFacts:
    """A store that has all the containers which the names speak of."""
    parts = [each for each in map(classify_name, names) if isinstance(each, ObjectName)]
    return StoreFacts({each.container_id: 2**64 - 1 for each in parts}, NOW_MS, 0)


@settings(deadline=None)
@given(SOME)
def test_names_are_shuffled_by_the_shard_that_they_say(names: list[str]) -> None:
    shards = shards_of(pa.chunked_array([pa.array(names, pa.string())])).to_pylist()
    for name, shard in zip(names, shards, strict=True):
        assert (engine_folder(name) is None) or not shard
        if isinstance(classify_name(name), ObjectName):
            assert shard == name[:2]


@settings(deadline=None)
@given(NAMES)
def test_what_is_listed_neither_by_shard_nor_by_folder_is_foreign(name: str) -> None:
    parts = classify_name(name)
    if not is_known_prefix(name[: name.find("/") + 1]) and not isinstance(parts, ArchivedName):
        assert parts == ForeignName(None)


@settings(deadline=None)
@given(SOME)
def test_of_a_shard_those_are_foreign_that_the_authority_calls_so(names: list[str]) -> None:
    found = check_shard(NO_OBJECTS, listed(names), NO_OBJECTS, place_of(names)).to_pylist()
    classes = {name: classify_name(name) for name in names}
    assert {row["object"] for row in found if row["kind"] == FindingKind.FOREIGN} == {
        name for name, parts in classes.items() if parts == ForeignName(None)
    }
    assert {row["object"] for row in found if row["kind"] != FindingKind.FOREIGN} == {
        name for name, parts in classes.items() if isinstance(parts, ObjectName)
    }


@settings(deadline=None)
@given(SOME)
def test_of_a_folder_those_are_foreign_that_the_authority_calls_so(names: list[str]) -> None:
    place = place_of(names)
    for folder in ENGINE_PREFIXES:
        inside = [name for name in names if engine_folder(name) == folder]
        checked = check_names(folder, [listed(inside)], place)
        foreign = {
            each.object
            for each in checked.findings
            if each.evidence == "not a name that the engine makes in this folder"
        }
        assert foreign == {name for name in inside if classify_name(name) == ForeignName(folder)}
