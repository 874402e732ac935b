"""Prepared listings read by ranges of shards: every row once and nothing else, and a shuffle only
where that reads less.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.suites import share
from tier2.spark.reconcile.inventory import (
    Inventory,
    inventory_pieces,
    open_inventory,
    read_inventory_range,
    read_inventory_rest,
    rows_read,
)
from tier2.spark.reconcile.inventory_rows import (
    InventoryError,
    KeyRules,
    conform_listing,
    conform_sorted,
    key_rules,
)
from tier2.spark.reconcile.listing_job import PARTS_MIN, _parts_of
from tier2.spark.reconcile.listing_table import LISTING
from tier2.spark.reconcile.scan_work import shards_of_part

URL = "file:///store"
FOREIGN = ["ab-", "ab.x", "abc/x", "ab0", "readme", "zz/x", "a/x", "AB/x", "catalog/x"]


def keys(shuffled: bool = False) -> list[str]:
    ours = [f"{shard:02x}/{number}" for shard in range(256) for number in range(4)]
    every = sorted([*ours, *FOREIGN])
    if shuffled:
        Random(3).shuffle(every)
    return every


def inventory(folder: Path, names: list[str], rows: int) -> Inventory:
    table = pa.table({"key": names, "size": range(len(names)), "modified_ms": [1] * len(names)})
    pq.write_table(table, folder / "listing.parquet", row_group_size=rows)
    return open_inventory(str(folder / "listing.parquet"), URL)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("rows", share([7, 1, 100, 10_000], 4, 1))
@pytest.mark.parametrize("parts", [1, 8, 256])
def test_ranges_and_the_rest_are_the_whole_listing(
    tmp_path: Path, parts: int, rows: int, shuffled: bool
) -> None:
    taken = inventory(tmp_path, keys(shuffled), rows)
    found: list[str | None] = []
    for part in range(parts):
        shards = shards_of_part(part, parts)
        names = [
            name
            for table in read_inventory_range(taken, shards)
            for name in table["key"].to_pylist()
        ]
        assert {str(name)[:2] for name in names} == {f"{shard:02x}" for shard in shards}
        found += names
    found += [name for table in read_inventory_rest(taken) for name in table["key"].to_pylist()]
    # The engine's own are no business of a listing, and are left to the verdicts if they are there.
    assert sorted(map(str, found)) == sorted(keys())


def test_rows_that_ranges_read_are_counted_by_row_group(tmp_path: Path) -> None:
    taken = inventory(tmp_path, [f"{shard:02x}/x" for shard in range(256)], 64)
    assert rows_read(taken, [range(256)]) == 256
    assert rows_read(taken, [range(64), range(64, 256)]) == 256
    assert rows_read(taken, [range(32), range(32, 256)]) == 64 + 256


@pytest.mark.parametrize(("rows", "parts"), [(4, 64), (64, 16), (10_000, None)])
def test_the_coarser_the_row_groups_the_fewer_the_parts_and_a_shuffle_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, parts: int | None
) -> None:
    monkeypatch.setattr("tier2.spark.reconcile.listing_job.ROWS_READ_FREE", 0)
    taken = inventory(
        tmp_path, [f"{shard:02x}/{number}" for shard in range(256) for number in range(2)], rows
    )
    chosen = _parts_of(taken, 64)
    assert chosen == parts
    assert chosen is None or chosen >= PARTS_MIN


def test_what_is_in_no_order_is_shuffled_unless_it_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = inventory(tmp_path, keys(shuffled=True), 100)
    assert _parts_of(taken, 32) == 32
    monkeypatch.setattr("tier2.spark.reconcile.listing_job.ROWS_READ_FREE", 0)
    assert _parts_of(taken, 32) is None


def test_a_range_is_read_in_pieces_as_small_as_row_groups_let_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{shard:02x}/{number}" for shard in range(256) for number in range(4)]

    def widths(rows: int, piece_rows: int) -> set[int]:
        monkeypatch.setattr("tier2.spark.reconcile.inventory.PIECE_ROWS", piece_rows)
        taken = inventory(tmp_path, names, rows)
        pieces = inventory_pieces(taken, range(64, 128))
        assert [shard for piece in pieces for shard in piece] == list(range(64, 128))
        found = [
            table["key"].to_pylist()
            for piece in pieces
            for table in read_inventory_range(taken, piece)
        ]
        assert [name for some in found for name in some] == names[256:512]
        return {len(piece) for piece in pieces}

    assert widths(4, 1) == widths(4, 4) == {1}
    assert widths(4, 5) == {2}
    assert widths(8, 1) == {2}
    assert widths(12, 1) == {8}
    assert widths(1024, 1) == widths(4, 10_000) == {64}


# --- rows that need not be checked one by one -----------------------------------------------------

RULES = {
    "file": key_rules("file:///x/ab", mode="IGNORE"),
    "s3": key_rules("s3://bucket/ab/", mode="IGNORE"),
    "memory": key_rules("memory://x", mode="IGNORE"),
    "nested": KeyRules(("ab/cd/e", "ab/", "ab", ""), "IGNORE"),
    "alone": key_rules("file:///x", prefix="ab/cd/", mode="IGNORE"),
}
TOPS = ["ab/", "ac/", "cd/"]
HEADS = [
    "",
    "ab",
    "ab/",
    "ab/cd/",
    "ab/cd/e",
    "/x/ab/",
    "file:/x/ab/",
    "file:///x/ab/",
    "s3://bucket/ab/",
    "s3a://bucket/ab/",
    "ab/s3://",
]
KEYS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(HEADS),
        st.sampled_from([*TOPS, "ab", "ab0", "ab:/", "x"]),
        st.text("a/0", max_size=2),
    ),
)


def listed(keys: list[str]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array(keys, pa.string()),
            "size": pa.array(range(len(keys)), pa.int64()),
            "modified_ms": [1] * len(keys),
        }
    )


@given(st.lists(KEYS, max_size=12), st.sampled_from(sorted(RULES)), st.booleans())
def test_sorted_rows_are_distinguished_from_their_borders_as_one_by_one(
    keys: list[str], rules: str, tidy: bool
) -> None:
    table = listed(sorted(set(keys)) if tidy else keys)
    found = conform_sorted(table, RULES[rules], TOPS)
    every = conform_listing(table, RULES[rules])
    if found is None:
        assert rules == "nested" or keys != sorted(set(keys))
        return
    wanted = [str(key).startswith(tuple(TOPS)) for key in every["key"].to_pylist()]
    assert found.equals(every.filter(pa.array(wanted, pa.bool_())))


@pytest.mark.parametrize("rules", ["file", "s3", "alone"])
def test_rows_of_a_sorted_listing_are_distinguished_from_their_borders(rules: str) -> None:
    (prefix, *_) = [
        prefix
        for prefix in RULES[rules].prefixes
        if "://" not in prefix and not prefix.startswith("file")
    ]
    found = conform_sorted(
        listed([f"{prefix}ab/{number}" for number in range(9)] + [f"{prefix}b"]), RULES[rules], TOPS
    )
    assert found is not None
    assert found["key"].to_pylist() == [f"ab/{number}" for number in range(9)]
    assert found.schema.equals(LISTING)


def test_what_borders_do_not_show_is_checked_row_by_row() -> None:
    table = listed(["ab/1", "ab/2"])
    rules = RULES["file"]
    assert conform_sorted(table, rules, TOPS) is not None
    assert conform_sorted(listed([]), rules, TOPS) == LISTING.empty_table()
    for other in (
        table.append_column("is_latest", pa.array([True, False])),
        table.set_column(0, "key", pa.array(["ab/1", None])),
        table.set_column(0, "key", pa.array(["ab/1", "ab/1"])),
        table.set_column(0, "key", pc.cast(table["key"], pa.large_string())),
    ):
        assert conform_sorted(other, rules, TOPS) is None
    assert conform_sorted(table, rules._replace(url_encoded=True), TOPS) is None
    with pytest.raises(InventoryError, match="no size of ab/2"):
        conform_sorted(table.set_column(1, "size", pa.array([1, None], pa.int64())), rules, TOPS)
