"""Listings by shard: of a folder, of S3 and of any other place the same as `ObjectStorage.list`
gives.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from recovery.harness.services.s3_servers import Moto, S3Server, credentials
from recovery.harness.services.shared import shared_server
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tests.support.suites import slow
from tier2.locations import PROCESS_MEMORY, open_object_storage
from tier2.object_names import ENGINE_PREFIXES, object_name
from tier2.object_storage import StorageRefusedError, StorageUnavailableError, StoredObject
from tier2.s3.s3_location import parse_s3_url
from tier2.spark.reconcile import listing, s3_listing
from tier2.spark.reconcile.inventory import (
    open_inventory,
    read_inventory_file,
    read_inventory_range,
)
from tier2.spark.reconcile.inventory_rows import InventoryError
from tier2.spark.reconcile.listing import SHARDS, is_known_prefix, list_rest, list_shard, shards_of
from tier2.spark.reconcile.listing_table import LISTING, TABLE_ROWS

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

BUCKET = "listings"
PREFIXES = itertools.count()
OURS = [
    object_name(1, 5, "flush", hashlib.sha256(str(number).encode()).digest()[:16])
    for number in range(60)
]
FOREIGN = [
    "readme.txt",
    "ab",
    "zz/deep/er/x",
    "zz/deep.txt",
    "a/b",
    "ab0/x",
    "ab-/x",
    "Ab/x",
    "00/x",
    "ff/deep/x",
]
ENGINES = [f"{prefix}{name}" for prefix in ENGINE_PREFIXES for name in ("x", "deep/x")]


def put_all(url: str, names: Iterable[str]) -> None:
    async def work() -> None:
        storage = open_object_storage(url, Runtime())
        try:
            for number, name in enumerate(names):
                await storage.put(name, [bytes(number % 7 + 1)], number.to_bytes(16, "big"))
        finally:
            await storage.close()

    asyncio.run(work())


def listed_by_storage(url: str) -> list[StoredObject]:
    async def work() -> list[StoredObject]:
        storage = open_object_storage(url, Runtime())
        try:
            return [stored async for page in storage.list() for stored in page]
        finally:
            await storage.close()

    return asyncio.run(work())


def as_stored(root: Path, name: str) -> StoredObject:
    seen = (root / name).lstat()
    return StoredObject(name, seen.st_size, seen.st_mtime_ns // 1_000_000)


def content(tables: Iterable[pa.Table]) -> list[StoredObject]:
    found: list[StoredObject] = []
    for table in tables:
        assert table.schema.equals(LISTING)
        assert 0 < table.num_rows <= TABLE_ROWS
        columns: list[Any] = [table[name].to_pylist() for name in ("key", "size", "modified_ms")]
        found += map(StoredObject, *columns)
    return found


def check_listings(url: str, foreign: Iterable[StoredObject] = ()) -> None:
    """All shards and the rest are together what the storage lists, and what it hides, without what
    is the engine's own.
    """
    everything = sorted([*listed_by_storage(url), *foreign])
    wanted = [each for each in everything if not each.name.startswith(ENGINE_PREFIXES)]
    tops = {each.name[:2] for each in everything} | {"00", "7f", "ff"}
    shards = [
        content(list_shard(url, number)) for number, digits in enumerate(SHARDS) if digits in tops
    ]
    for digits, found in zip(sorted(tops & set(SHARDS)), shards, strict=True):
        assert found == [each for each in everything if each.name.startswith(f"{digits}/")]
    rest = content(list_rest(url))
    assert sorted(rest) == [
        each for each in wanted if not is_known_prefix(each.name[: each.name.find("/") + 1])
    ]
    assert sorted(itertools.chain(rest, *shards)) == wanted


def test_a_folder_is_listed_as_its_storage_lists_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "TABLE_ROWS", 2)
    url = f"file://{tmp_path}/objects"
    put_all(url, [*OURS, *(name for name in FOREIGN if name != "ab"), *ENGINES])
    # What no storage puts: names that are none, folders without files, a link in the place of a
    # shard.
    root = tmp_path / "objects"
    (root / "~staging").mkdir(exist_ok=True)
    (root / "~staging" / "x").write_text("x")
    (root / "~metadata").mkdir(exist_ok=True)
    (root / "~metadata" / "x").write_text("{}")
    (root / "no name").write_text("x")
    (root / "00" / "empty").mkdir()
    (root / "ff" / "no name").write_text("x")
    (root / "ee").symlink_to(root / "zz")
    check_listings(url, [as_stored(root, name) for name in ("no name", "ff/no name")])


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/none"
    check_listings(url)
    assert listed_by_storage(url) == []


def test_a_folder_that_cannot_be_read_is_no_empty_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageUnavailableError, match="EACCES"):
        content(list_shard(f"file://{tmp_path}", 0))
    with pytest.raises(StorageUnavailableError, match="EACCES"):
        content(list_rest(f"file://{tmp_path}"))


def test_files_that_go_while_they_are_listed_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_all(f"file://{tmp_path}", ["00/a/x", "00/b", "00/c/x"])
    found = listing._entries

    def and_deleted(root: str, folder: str) -> list[tuple[str, os.DirEntry[str]]]:
        entries = found(root, folder)
        if folder == "00/":
            (tmp_path / "00/b").unlink()
            (tmp_path / "00/c/x").unlink()
            (tmp_path / "00/c").rmdir()
        return entries

    monkeypatch.setattr(listing, "_entries", and_deleted)
    assert [each.name for each in content(list_shard(f"file://{tmp_path}", 0))] == ["00/a/x"]


def test_any_other_place_is_listed_through_its_storage() -> None:
    url = "memory://listing-test"
    try:
        put_all(url, [*OURS, *FOREIGN, *ENGINES])
        check_listings(url)
    finally:
        PROCESS_MEMORY.drop("listing-test")


def test_a_url_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ConfigError):
        list_shard("nothing", 0)
    with pytest.raises(ConfigError):
        list_rest("s3://b")


def test_shards_of_keys_are_two_digits_or_nothing() -> None:
    keys = pa.chunked_array([["ab/x", "ab", "AB/x"], ["zz/x", "00/", "0/x", "ab0/x", ""]])
    assert shards_of(keys).to_pylist() == ["ab", "", "", "", "00", "", "", ""]


# --- S3 -------------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    # Another program's settings of obstore itself must not lead astray.
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    server = shared_server(Moto)
    server.make_bucket(BUCKET)
    s3_listing.kept_store.cache_clear()
    s3_listing.kept_holder.cache_clear()
    yield server
    s3_listing.kept_store.cache_clear()
    s3_listing.kept_holder.cache_clear()


def put_raw(
    server: S3Server, keys: Sequence[str], bucket: str = BUCKET, data: bytes = b"123"
) -> None:
    """A key that ends in a slash is a console's folder, and empty."""
    client: S3Client = server.client()
    try:
        for key in keys:
            client.put_object(Bucket=bucket, Key=key, Body=b"" if key.endswith("/") else data)
    finally:
        client.close()


@slow(3)
@pytest.mark.parametrize("prefix", [True, False])
def test_a_bucket_is_listed_as_its_storage_lists_it(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, prefix: bool
) -> None:
    monkeypatch.setattr(s3_listing, "TABLE_ROWS", 2)
    bucket = f"{BUCKET}-{next(PREFIXES)}"
    server.make_bucket(bucket)
    url = server.location(bucket, "some/pre-fix" if prefix else "")
    put_all(url, [*OURS[:15], *FOREIGN, *ENGINES])
    put_all(server.location(bucket, "some/pre-fix-too"), OURS[:3])
    check_listings(url)


@slow(1)
def test_all_pages_of_a_listing_are_read_and_etags_are_there(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    server = Moto(tmp_path)
    server.start()
    try:
        server.make_bucket(BUCKET)
        keys = [f"ab/{number:05}" for number in range(20)]
        put_raw(server, [*keys, *(f"top{number}/x" for number in range(20))])
        url = server.location(BUCKET)
        (table,) = list_shard(url, 0xAB)
        assert table["key"].to_pylist() == keys
        assert set(table["etag"].to_pylist()) == {'"202cb962ac59075b964b07152d234b70"'}
        assert sorted(each.name for each in content(list_rest(url))) == sorted(
            f"top{number}/x" for number in range(20)
        )
    finally:
        server.stop()


@pytest.mark.parametrize("rows", [1, 65_536])
@pytest.mark.parametrize("prefix", [True, False])
def test_keys_that_are_no_names_are_listed_as_they_are(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, prefix: bool, rows: int
) -> None:
    monkeypatch.setattr(s3_listing, "TABLE_ROWS", rows)
    monkeypatch.setattr(s3_listing, "PAGE_KEYS", 2)
    bucket = f"{BUCKET}-{next(PREFIXES)}"
    server.make_bucket(bucket)
    shard = ["ab/", "ab/a", "ab/b//c", "ab/d", "ab/d/", "ab/e e+%20ü", "ab/~x"]
    rest = [
        "top//x",
        "top/y",
        "//",
        "/x",
        "./x",
        "two//",
        "~/x",
        "é/x",
        "[z] %41/x",
        "t\tx",
        "z.txt",
        "folder/",
    ]
    under = "odd/" if prefix else ""
    put_raw(server, [f"{under}{key}" for key in ("cd/", "cd/x", *shard, *rest)], bucket)
    if prefix:
        # What a console makes of the prefix itself is no object below it.
        put_raw(server, [under, "odd-too/x"], bucket, b"")
    url = server.location(bucket, "odd" if prefix else "")
    assert [each.name for each in content(list_shard(url, 0xAB))] == shard
    assert [each.name for each in content(list_shard(url, 0xCD))] == ["cd/", "cd/x"]
    assert sorted(each.name for each in content(list_rest(url))) == sorted(rest)


def test_a_store_that_refuses_or_is_away_is_no_empty_listing(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_listing, "RETRIES", 0)
    url = server.location("no-such-bucket")
    for work in (lambda at: list_shard(at, 0), list_rest):
        with pytest.raises(StorageRefusedError, match="NoSuchBucket"):
            content(work(url))
        with pytest.raises(StorageUnavailableError, match="ListObjectsV2: connection"):
            content(work(url.replace(str(server.port), "1")))
    s3_listing.kept_store.cache_clear()
    s3_listing.kept_holder.cache_clear()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(StorageRefusedError, match="no-credentials"):
        content(list_shard(url, 0))


@pytest.mark.parametrize(
    ("url", "virtual", "endpoint"),
    [
        ("s3://bucket?region=eu-central-1", True, "https://bucket.s3.eu-central-1.amazonaws.com"),
        ("s3://dotted.bucket?region=eu-central-1", False, "https://s3.eu-central-1.amazonaws.com"),
        ("s3://bucket?endpoint_url=https://s3.example:444", False, "https://s3.example:444"),
        (
            "s3://bucket?endpoint_url=https://s3.example&addressing=virtual",
            True,
            "https://bucket.s3.example",
        ),
        (
            "s3://a.b?endpoint_url=http://s3.example&addressing=virtual",
            True,
            "http://a.b.s3.example",
        ),
        (
            "s3://bucket?endpoint_url=http://127.0.0.1:1&addressing=virtual",
            False,
            "http://127.0.0.1:1",
        ),
    ],
)
def test_the_place_that_is_spoken_to_is_the_one_that_boto3_speaks_to(
    monkeypatch: pytest.MonkeyPatch, url: str, virtual: bool, endpoint: str
) -> None:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    store = s3_listing.kept_store.__wrapped__(parse_s3_url(url))
    config: dict[str, Any] = dict(store.config)
    assert (config["virtual_hosted_style_request"], config["endpoint"]) == (
        str(virtual).lower(),
        endpoint,
    )


def test_an_inventory_may_lie_in_a_bucket(server: S3Server) -> None:
    prefix = f"inventory-{next(PREFIXES)}"
    client: S3Client = server.client()
    try:
        lines = "key,size,modified_ms\nab/x,1,5\nab/y,2,6\n"
        client.put_object(Bucket=BUCKET, Key=f"{prefix}/part=0/x.csv", Body=lines.encode())
        client.put_object(Bucket=BUCKET, Key=f"{prefix}/_SUCCESS", Body=b"x")
        packed = pa.BufferOutputStream()
        pq.write_table(
            pa.table({"key": ["ab/x", "ab/y"], "size": [1, 2], "modified_ms": [5, 6]}), packed
        )
        client.put_object(
            Bucket=BUCKET, Key=f"{prefix}-2/x.parquet", Body=packed.getvalue().to_pybytes()
        )
    finally:
        client.close()
    query = server.location(BUCKET).partition("?")[2]
    for path in (prefix, f"{prefix}/part=0/x.csv", f"{prefix}-2/"):
        inventory = open_inventory(f"s3://{BUCKET}/{path}?{query}", "memory://x")
        tables = [
            table for file in inventory.files for table in read_inventory_file(inventory, file)
        ]
        assert content(tables) == [StoredObject("ab/x", 1, 5), StoredObject("ab/y", 2, 6)]
        assert content(read_inventory_range(inventory, range(0xAB, 0xAC))) == content(tables)
    with pytest.raises(InventoryError, match=r"no\.csv"):
        open_inventory(f"s3://{BUCKET}/no.csv?{query}", "memory://x")
    with pytest.raises(InventoryError, match="no files of a listing"):
        open_inventory(f"s3://{BUCKET}/no?{query}", "memory://x")
