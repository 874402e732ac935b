"""Prepared listings: each kind gives what is in it, sorted or not; what is wrong with one is
named.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc
from pyarrow import parquet as pq

from tests.support.suites import slow
from tier2.object_names import object_name
from tier2.spark.reconcile.inventory import (
    Inventory,
    open_inventory,
    read_inventory_file,
    read_inventory_range,
    read_inventory_rest,
    rows_read,
)
from tier2.spark.reconcile.inventory_rows import (
    InventoryError,
    conform_listing,
    conform_sorted,
    key_rules,
)
from tier2.spark.reconcile.listing import SHARDS
from tier2.spark.reconcile.listing_table import LISTING

URL = "s3://bucket/some/prefix?region=eu-central-1"
PREFIX = "some/prefix/"
AT_MS = 1_700_000_000_000
RESTS = ("readme.txt", "checkpoints/x", "zz/y", "ab")

Row = tuple[str, int, int]


def names(count: int) -> list[str]:
    return [
        object_name(1, 5, "flush", hashlib.sha256(str(number).encode()).digest()[:16])
        for number in range(count)
    ]


def rows(count: int = 400) -> list[Row]:
    """By key, with some that are in no shard."""
    return sorted(
        (name, number + 1, AT_MS + number) for number, name in enumerate([*names(count), *RESTS])
    )


def moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def parquet_table(listed: Sequence[Row], prefix: str = PREFIX) -> pa.Table:
    return pa.table(
        {
            "key": [prefix + key for key, _, _ in listed],
            "size": pa.array([size for _, size, _ in listed], pa.int64()),
            "last_modified": pa.array([moment(at) for *_, at in listed], pa.timestamp("us", "UTC")),
            "etag": [f'"{size}"' for _, size, _ in listed],
            "storage_class": ["STANDARD"] * len(listed),
        }
    )


def content(tables: Iterable[pa.Table]) -> list[Row]:
    found: list[Row] = []
    for table in tables:
        assert table.schema.equals(LISTING)
        columns: list[Any] = [table[name].to_pylist() for name in ("key", "size", "modified_ms")]
        found += zip(*columns, strict=True)
    return found


def whole(inventory: Inventory) -> list[Row]:
    return sorted(
        content(table for file in inventory.files for table in read_inventory_file(inventory, file))
    )


def by_shards(inventory: Inventory, each: int = 1) -> list[Row]:
    """All rows, read in ranges of so many shards, and the rest."""
    result = []
    for first in range(0, len(SHARDS), each):
        part = content(read_inventory_range(inventory, range(first, first + each)))
        assert all(key[:2] in SHARDS[first : first + each] and key[2] == "/" for key, *_ in part)
        result += part
    return sorted(result + content(read_inventory_rest(inventory)))


def reads_little(inventory: Inventory) -> bool:
    """Whether all shards, one by one, read little more than every row once."""
    read = rows_read(inventory, [range(shard, shard + 1) for shard in range(len(SHARDS))])
    return read is not None and read <= 8 * sum(
        group.rows for file in inventory.files for group in file.groups
    )


def write_parquet(path: Path, table: pa.Table, group_rows: int = 16) -> None:
    pq.write_table(table, path, row_group_size=group_rows)


def test_a_sorted_parquet_file_is_read_by_shard_from_few_row_groups(tmp_path: Path) -> None:
    listed = rows(4000)
    write_parquet(tmp_path / "listing.parquet", parquet_table(listed))
    inventory = open_inventory(str(tmp_path / "listing.parquet"), URL)
    assert whole(inventory) == by_shards(inventory) == listed
    assert reads_little(inventory)
    assert inventory.created_ms is None


@slow(2)
def test_a_folder_of_unsorted_files_gives_the_same_and_is_no_cheap_read_by_shard(
    tmp_path: Path,
) -> None:
    listed = rows()
    mixed = random.Random(1).sample(listed, len(listed))
    for part in range(3):
        (tmp_path / f"part={part}").mkdir()
        write_parquet(tmp_path / f"part={part}" / "p.parquet", parquet_table(mixed[part::3]))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".hidden.parquet").touch()
    inventory = open_inventory(str(tmp_path), URL)
    assert len(inventory.files) == 3
    assert whole(inventory) == by_shards(inventory) == listed
    assert not reads_little(inventory)


def test_a_folder_with_a_file_for_each_shard_is_read_by_shard(tmp_path: Path) -> None:
    listed = [row for row in rows(200) if row[0] not in RESTS]
    for digits in sorted({key[:2] for key, *_ in listed}):
        part = [row for row in listed if row[0].startswith(digits)]
        write_parquet(tmp_path / f"{digits}.parquet", parquet_table(part[::-1]))
    inventory = open_inventory(f"file://{tmp_path}", URL)
    assert reads_little(inventory)
    assert whole(inventory) == by_shards(inventory) == listed
    assert content(read_inventory_rest(inventory)) == []


def test_files_without_statistics_are_read_whole_for_every_shard(tmp_path: Path) -> None:
    listed = rows(20)
    pq.write_table(parquet_table(listed), tmp_path / "x.parquet", write_statistics=False)
    inventory = open_inventory(str(tmp_path), URL)
    assert [group.keys for group in inventory.files[0].groups] == [None]
    assert by_shards(inventory) == listed


@pytest.mark.parametrize("packed", [False, True])
def test_a_csv_with_a_header_is_read(tmp_path: Path, packed: bool) -> None:
    listed = rows(50)
    lines = [
        "Size,Key,Last_Modified",
        *(f'{size},"{PREFIX}{key}",{moment(at).isoformat()}' for key, size, at in listed),
    ]
    data = "\n".join(lines).encode()
    path = tmp_path / ("x.csv.gz" if packed else "x.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    inventory = open_inventory(str(path), URL)
    assert not reads_little(inventory)
    assert whole(inventory) == by_shards(inventory) == listed


def test_an_orc_file_is_read(tmp_path: Path) -> None:
    listed = rows(50)
    orc.write_table(parquet_table(listed), str(tmp_path / "x.orc"))
    inventory = open_inventory(str(tmp_path), URL)
    assert whole(inventory) == by_shards(inventory) == listed


# --- S3 Inventory ---------------------------------------------------------------------------------

SCHEMA = (
    "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag, StorageClass"
)


def s3_csv(listed: Sequence[Row]) -> bytes:
    """As S3 writes it: no header, everything quoted, keys encoded, deletions and old versions among
    the rows.
    """
    lines = []
    for key, size, at in listed:
        encoded = (PREFIX + key).replace("/", "%2F") if size % 2 else PREFIX + key
        written = moment(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        lines.append(
            f'"bucket","{encoded}","v2","true","false","{size}","{written}","etag","STANDARD"'
        )
        lines.append(
            f'"bucket","{encoded}","v1","false","false","999","{written}","etag","STANDARD"'
        )
    lines.append(
        f'"bucket","{PREFIX}gone+a%2Bb%20c","v3","true","true","","2026-01-01T00:00:00.000Z","",""'
    )
    lines.append(
        f'"bucket","{PREFIX}there+a%2Bb%20c","v3","true","false","5",'
        '"2026-01-01T00:00:00.000Z","",""'
    )
    return gzip.compress("\n".join(lines).encode())


def manifest(
    listed: Mapping[str, bytes],
    form: str,
    schema: str = SCHEMA,
    changes: Mapping[str, Any] | None = None,
) -> str:
    return json.dumps(
        {
            "sourceBucket": "bucket",
            "destinationBucket": "arn:aws:s3:::inventories",
            "version": "2016-11-30",
            "creationTimestamp": "1700000000123",
            "fileFormat": form,
            "fileSchema": schema,
            "files": [
                {"key": key, "size": len(data), "MD5checksum": hashlib.md5(data).hexdigest()}
                for key, data in listed.items()
            ],
            **(changes or {}),
        }
    )


def lay_out(tmp_path: Path, files: Mapping[str, bytes], text: str) -> str:
    """A copy of the destination bucket, with the manifest where S3 puts it."""
    for key, data in files.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(data)
    folder = tmp_path / "inv/bucket/daily/2026-01-01T00-00Z"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(text)
    return str(folder / "manifest.json")


def test_s3_inventory_as_csv_is_found_by_its_manifest_and_says_the_latest_versions(
    tmp_path: Path,
) -> None:
    listed = rows(100)
    files = {f"inv/bucket/daily/data/{part}.csv.gz": s3_csv(listed[part::2]) for part in range(2)}
    inventory = open_inventory(lay_out(tmp_path, files, manifest(files, "CSV")), URL)
    assert inventory.created_ms == 1_700_000_000_123
    extra = [row for row in whole(inventory) if row[0] == "there a+b c"]
    assert [size for _, size, _ in extra] == [5, 5]
    assert [row for row in whole(inventory) if row not in extra] == listed
    assert by_shards(inventory) == whole(inventory)


def test_s3_inventory_as_parquet_and_as_orc_is_found_by_its_manifest(tmp_path: Path) -> None:
    listed = rows(100)
    table = pa.table(
        {
            "bucket": ["bucket"] * len(listed),
            "key": [PREFIX + key for key, *_ in listed],
            "is_latest": [True] * len(listed),
            "is_delete_marker": pa.nulls(len(listed), pa.bool_()),
            "size": [size for _, size, _ in listed],
            "last_modified_date": pa.array([at for *_, at in listed], pa.timestamp("ms")),
            "e_tag": ["x"] * len(listed),
        }
    )
    writers: Mapping[str, Callable[[Any, Any], object]] = {
        "Parquet": pq.write_table,
        "ORC": orc.write_table,
    }
    for form, write in writers.items():
        sink = io.BytesIO()
        write(table, sink)
        files = {f"inv/bucket/daily/data/x.{form.lower()}": sink.getvalue()}
        path = lay_out(
            tmp_path / form, files, manifest(files, form, "message s3.inventory { ... }")
        )
        inventory = open_inventory(path, URL)
        assert whole(inventory) == by_shards(inventory) == listed


def test_files_beside_the_manifest_are_found_too(tmp_path: Path) -> None:
    data = s3_csv(rows(3))
    (tmp_path / "manifest.json").write_text(manifest({"far/away/x.csv.gz": data}, "CSV"))
    (tmp_path / "x.csv.gz").write_bytes(data)
    assert len(whole(open_inventory(str(tmp_path / "manifest.json"), URL))) == 3 + len(RESTS) + 1


def test_an_empty_inventory_is_empty(tmp_path: Path) -> None:
    files = {"x.csv.gz": gzip.compress(b""), "y.csv": b""}
    inventory = open_inventory(lay_out(tmp_path, files, manifest(files, "CSV")), URL)
    assert whole(inventory) == by_shards(inventory) == []
    write_parquet(tmp_path / "z.parquet", parquet_table([]))
    inventory = open_inventory(str(tmp_path / "z.parquet"), URL)
    assert whole(inventory) == by_shards(inventory) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fileFormat": "XML"}, "format 'xml'"),
        ({"sourceBucket": "other"}, "of bucket 'other', and the store is in 'bucket'"),
        (
            {"files": [{"key": "no/such.csv.gz", "size": 5}]},
            "the file no/such.csv.gz of the manifest is not there",
        ),
        ({"files": [{"key": "x.csv.gz", "size": 5}]}, "bytes, and 5 by the manifest"),
        ({"files": 5}, "not one of S3 Inventory"),
        ({"creationTimestamp": "yesterday"}, "not one of S3 Inventory"),
        ({"fileSchema": "Bucket, Key, LastModifiedDate"}, "no column size"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_said(
    tmp_path: Path, changes: Mapping[str, Any], said: str
) -> None:
    files = {"x.csv.gz": s3_csv(rows(1))}
    path = lay_out(tmp_path, files, manifest(files, "CSV", changes=changes))
    with pytest.raises(InventoryError, match=r"manifest\.json: ") as caught:
        open_inventory(path, URL)
    assert said in str(caught.value)


# --- keys and columns -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        (URL, "some/prefix/"),
        (URL, "s3://bucket/some/prefix/"),
        (URL, "s3a://bucket/some/prefix/"),
        ("s3://bucket", ""),
        ("s3://bucket", "s3://bucket/"),
        ("file:///data/objects", ""),
        ("file:///data/objects/", "/data/objects/"),
        ("file:///data/objects", "file:///data/objects/"),
        ("file:///data/objects", "file:/data/objects/"),
        ("memory://x", ""),
    ],
)
def test_what_stands_before_the_names_is_taken_away(url: str, prefix: str) -> None:
    listed = rows(5)
    assert content([conform_listing(parquet_table(listed, prefix), key_rules(url))]) == listed


@pytest.mark.parametrize(
    ("url", "key"),
    [
        (URL, "ab/00000001/x"),
        (URL, "s3://other/some/prefix/x"),
        (URL, "some/prefixes/x"),
        (URL, "/some/prefix/x"),
        ("s3://bucket", "s3://other/x"),
        ("file:///data", "/other/x"),
        ("file:///data", "s3://data/x"),
    ],
)
def test_keys_of_somewhere_else_are_an_error_or_left_out(
    tmp_path: Path, url: str, key: str
) -> None:
    listed = rows(300)
    good = key_rules(url).prefixes[-1]
    table = pa.concat_tables([parquet_table(listed, good), parquet_table([(key, 1, 1)], "")])
    with pytest.raises(InventoryError, match="prefix_mismatch_mode=IGNORE") as caught:
        conform_listing(table, key_rules(url))
    assert repr(key) in str(caught.value)
    assert content([conform_listing(table, key_rules(url, mode="IGNORE"))]) == listed
    write_parquet(tmp_path / "x.parquet", table)
    inventory = open_inventory(str(tmp_path / "x.parquet"), url)
    with pytest.raises(InventoryError, match=r"x\.parquet: key"):
        by_shards(inventory)
    ignoring = open_inventory(str(tmp_path), url, prefix_mismatch_mode="IGNORE")
    assert by_shards(ignoring, each=32) == listed


def test_a_prefix_of_ones_own_replaces_that_of_the_url() -> None:
    listed = rows(5)
    assert (
        content([conform_listing(parquet_table(listed, ""), key_rules(URL, prefix=""))]) == listed
    )
    assert (
        content([conform_listing(parquet_table(listed, "q/"), key_rules(URL, prefix="q/"))])
        == listed
    )


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("last_modified", pa.array([moment(AT_MS)], pa.timestamp("ns", "UTC"))),
        ("lastModified", pa.array([moment(AT_MS).replace(tzinfo=None)], pa.timestamp("s"))),
        ("modified_ms", pa.array([AT_MS], pa.int64())),
        ("modified_ms", pa.array([str(AT_MS)])),
        ("LastModifiedDate", pa.array([f"{moment(AT_MS):%Y-%m-%dT%H:%M:%S}.000Z"])),
        ("last_modified", pa.array([f"{moment(AT_MS):%Y-%m-%d %H:%M:%S}"])),
    ],
)
def test_times_are_taken_in_every_way_they_are_written(column: str, values: pa.Array[Any]) -> None:
    table = pa.table(
        {
            "Path": pa.array(["x"], pa.large_string()),
            "Size": pa.array([3], pa.uint64()),
            column: values,
        }
    )
    assert conform_listing(table, key_rules("memory://x")).to_pylist() == [
        {"key": "x", "size": 3, "modified_ms": AT_MS, "etag": None}
    ]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": ["x"], "size": [1]}, "no column last_modified, only key, size"),
        ({"size": [1], "modified_ms": [1]}, "no column key"),
        ({"key": ["x"], "size": [1], "last_modified": [1]}, "call it modified_ms"),
        (
            {"key": ["x"], "size": ["many"], "modified_ms": [1]},
            "column size cannot be read as int64",
        ),
        (
            {"key": ["x"], "size": [1], "last_modified": ["yesterday"]},
            "column last_modified cannot be read",
        ),
        ({"key": ["x", "y"], "size": [1, None], "modified_ms": [1, 1]}, "no size of y"),
        ({"key": ["x", None], "size": [1, 1], "modified_ms": [1, 1]}, "a row without a key"),
    ],
)
def test_a_listing_that_cannot_be_understood_is_refused_by_name(
    columns: dict[str, Any], said: str
) -> None:
    with pytest.raises(InventoryError) as caught:
        conform_listing(pa.table(columns), key_rules("memory://x"))
    assert said in str(caught.value)


def test_a_key_that_is_no_utf8_is_refused_by_name() -> None:
    """Text of Spark and of Parquet holds any bytes."""
    keys = pa.array([b"ab/x", b"ab/\xff"]).view(pa.string())
    table = pa.table({"key": keys, "size": [1, 1], "modified_ms": [1, 1]})
    rules = key_rules("memory://x", prefix="")
    with pytest.raises(InventoryError, match="key cannot be read as string: Invalid UTF8"):
        conform_listing(table, rules)
    with pytest.raises(InventoryError, match="key cannot be read as string: Invalid UTF8"):
        conform_sorted(table, rules, ["ab/"])


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.parquet", b"PAR1 no", "cannot be read as a listing"),
        ("x.csv", b"\xff\xfe,x", "cannot be read as a listing"),
        ("x.csv", b"a,b\n1,2", "no column key, size, last_modified"),
        ("x.csv.gz", b"no gzip", "cannot be read as a listing"),
        ("x.orc", b"no", "cannot be read as a listing"),
        ("x.txt", b"", "is not a .parquet"),
        ("manifest.json", b"{", "no JSON"),
    ],
)
def test_a_file_that_is_none_of_these_is_refused_by_name(
    tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InventoryError) as caught:
        open_inventory(str(tmp_path / name), URL)
    assert said in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_a_csv_whose_lines_do_not_agree_is_refused_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("key,size,modified_ms\na,1,1\nb,1\n")
    inventory = open_inventory(str(tmp_path), "memory://x")
    with pytest.raises(InventoryError, match=r"x\.csv: "):
        whole(inventory)


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="no files of a listing"):
        open_inventory(str(tmp_path), URL)
    with pytest.raises(InventoryError, match="cannot be read"):
        open_inventory(str(tmp_path / "x.parquet"), URL)
    with pytest.raises(InventoryError, match="prefix_mismatch_mode='DELETE'"):
        open_inventory(str(tmp_path), URL, prefix_mismatch_mode="DELETE")  # type: ignore[arg-type]
