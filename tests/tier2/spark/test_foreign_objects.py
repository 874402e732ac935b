"""Whatever lies beside the objects of a store is listed and reported as foreign, however it is
called; and no job deletes it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pyarrow as pa
import pytest
from fsspec.implementations.memory import (  # type: ignore[import-untyped]
    MemoryFile,
    MemoryFileSystem,
)

from recovery.harness.services.s3_servers import Moto, S3Proxy, S3Server, credentials
from recovery.harness.services.sftp_server import Sftp
from recovery.harness.services.shared import shared_server
from segmentstore import blocking
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import TINY
from tests.support.suites import share, slow
from tests.tier2.spark.reconcile_dry import LocalSpark, found
from tests.tier2.spark.reconcile_world import DAY_S, World
from tier2.fsspec_object_storage import FsspecObjectStorage
from tier2.object_names import ENGINE_PREFIXES, may_hold_ours, object_name
from tier2.object_storage import StorageUnavailableError
from tier2.spark.common.command_options import Exit
from tier2.spark.reconcile import s3_listing
from tier2.spark.reconcile.inventory_rows import conform_listing, key_rules
from tier2.spark.reconcile.job import reconcile
from tier2.spark.reconcile.listing import is_known_prefix, list_rest, list_shard
from tier2.unique_ids import store_tag

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

SPACES = itertools.count()
OURS = object_name(0, 1, "flush", bytes(16))
FOREIGN = [
    *(
        "copy of data.bin",
        "é.txt",
        "ok.txt",
        "~",
        "a+b/~c",
        "a:b",
        "ab0",
        "ab~",
        "~staging.txt",
        "zz/日本/🙂 .txt",
    ),
    *(
        "lost+found/a",
        "ab/x y",
        "ab/~x",
        "ab/~y/z",
        "ab/ü/~/z",
        "ab/z",
        f"{OURS} copy",
        f"{OURS}~",
        f"x/{OURS}",
    ),
]
OWN = [OURS, *(f"{prefix}{name}" for prefix in ENGINE_PREFIXES for name in ("x", "no name"))]


def listed(url: str) -> list[str]:
    """Names in the shards that there are, each of which is sorted, and in the rest."""
    names: list[str] = []
    for digits in sorted({"00", "ab", OURS[:2]}):
        names += _names(list_shard(url, int(digits, 16)))
    assert names == sorted(names)
    rest = _names(list_rest(url))
    assert not [name for name in rest if is_known_prefix(name[: name.find("/") + 1])]
    return sorted([*names, *rest])


def _names(tables: Iterable[pa.Table]) -> list[str]:
    names: list[Any] = [name for table in tables for name in table["key"].to_pylist()]
    return names


def write(root: Path, names: Iterable[str]) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"somebody's")


# --- a folder -------------------------------------------------------------------------------------


def test_a_folder_shows_all_that_lies_in_it(tmp_path: Path) -> None:
    write(tmp_path, [*FOREIGN, *OWN, "~staging/0123", "~metadata/x"])
    assert listed(tmp_path.as_uri()) == sorted([*FOREIGN, OURS])


def test_names_that_are_no_text_are_shown_with_their_bytes(tmp_path: Path) -> None:
    for name in (b"\xff\xe9", b"ab/\xe9.bin", b"ab/d\xe9/\xc3\xbc"):
        path = os.path.join(os.fsencode(tmp_path), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"x")
    assert listed(tmp_path.as_uri()) == ["\\xff\\xe9", "ab/\\xe9.bin", "ab/d\\xe9/ü"]


def test_links_to_folders_are_things_by_themselves_and_lead_nowhere(tmp_path: Path) -> None:
    write(tmp_path, ["ab/x", "other/y"])
    for name, target in {
        "around": ".",
        "ab/around": "..",
        "ab/nowhere": "none",
        "ab/itself": "itself",
        "ab/file": "x",
        "mailbox": "other",
        "~staging": "other",
    }.items():
        (tmp_path / name).symlink_to(target)
    links = ["ab/around", "ab/file", "ab/itself", "ab/nowhere", "around"]
    assert listed(tmp_path.as_uri()) == sorted(["ab/x", "other/y", *links])
    (table,) = list_shard(tmp_path.as_uri(), 0xAB)
    sizes = dict(zip(table["key"].to_pylist(), table["size"].to_pylist(), strict=True))
    assert (sizes["ab/file"], sizes["ab/around"]) == (10, 2)


def test_a_foreign_folder_that_is_closed_is_one_foreign_thing_and_one_of_ours_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, ["lost+found/a", "ab/x y/z", "ab/z", "cd/00000001/x"])
    closed = {"lost+found", "x y", "00000001"}
    scandir = os.scandir

    def refuse(path: str) -> Any:
        if os.path.basename(path.rstrip("/")) in closed:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    url = tmp_path.as_uri()
    assert _names(list_rest(url)) == ["lost+found/"]
    assert _names(list_shard(url, 0xAB)) == ["ab/x y/", "ab/z"]
    with pytest.raises(StorageUnavailableError, match="EACCES"):
        _names(list_shard(url, 0xCD))


def test_folders_may_lie_deep_in_one_another(tmp_path: Path) -> None:
    folders = [f"{tmp_path}/ab{'/d' * depth}" for depth in range(1200)]
    try:
        for folder in folders:
            os.mkdir(folder)
        assert listed(tmp_path.as_uri()) == []
    finally:
        for folder in reversed(folders):  # Other cleanups do not get so deep.
            os.rmdir(folder)


@pytest.mark.parametrize(
    ("folder", "may"),
    [
        *(
            ("", True),
            ("ab/", True),
            ("ab/00000001/", True),
            ("ab/00000001/0000000000000001/", True),
        ),
        *(
            ("a/", False),
            ("x y/", False),
            ("ab/x/", False),
            ("ab/00000001/0000000000000001/x/", False),
            ("/", False),
        ),
    ],
)
def test_which_folders_may_hold_objects(folder: str, may: bool) -> None:
    assert may_hold_ours(folder) is may


# --- what fsspec reaches --------------------------------------------------------------------------


def test_a_server_of_files_shows_all_that_lies_on_it() -> None:
    server = shared_server(Sftp)
    space = f"foreign-{next(SPACES)}"
    root = server.root / space
    write(root, [*FOREIGN, *OWN, "~staging/0123", "~metadata/x"])
    (root / "around").symlink_to(".")
    (root / "ab" / "file").symlink_to("x y")
    assert listed(server.location(space)) == sorted([*FOREIGN, OURS, "around", "ab/file"])
    assert listed(server.location(f"{space}-none")) == []


def test_a_store_of_keys_that_fsspec_reaches_shows_all_but_what_is_behind_an_empty_part() -> None:
    root = f"/foreign-{next(SPACES)}"
    files = MemoryFileSystem()
    keys = [*FOREIGN, *OWN, "ab/c//d", "ab/c//e"]

    async def work() -> list[str]:
        storage = FsspecObjectStorage(f"memory:/{root}", Runtime())
        try:
            pages = storage.list_everything(
                "", lambda folder: folder in ENGINE_PREFIXES, may_hold_ours
            )
            return [stored.name async for page in pages for stored in page]
        finally:
            await storage.close()

    try:
        for key in keys:
            files.store[f"{root}/{key}"] = MemoryFile(files, f"{root}/{key}", b"x")
        assert asyncio.run(work()) == sorted([*FOREIGN, OURS, "ab/c//"])
    finally:
        for path in [path for path in files.store if path.startswith(f"{root}/")]:
            del files.store[path]


# --- S3 -------------------------------------------------------------------------------------------


@pytest.fixture(params=share([S3Proxy, Moto], 2, 3))
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    s3_listing.kept_store.cache_clear()
    kind: type[S3Server] = request.param
    yield shared_server(kind)
    s3_listing.kept_store.cache_clear()


def upload(server: S3Server, folder: Path, empty: Iterable[str] = ()) -> str:
    """The URL of a copy of the folder; `empty` are keys without bytes beside it."""
    bucket = f"foreign-{next(SPACES)}"
    server.make_bucket(bucket)
    client: S3Client = server.client()
    try:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                client.put_object(
                    Bucket=bucket, Key=f"store/{path.relative_to(folder)}", Body=path.read_bytes()
                )
        for key in empty:
            client.put_object(Bucket=bucket, Key=f"store/{key}", Body=b"")
    finally:
        client.close()
    return server.location(bucket, "store")


@pytest.mark.parametrize("empty", [(), ("ab/00", "other")])
def test_a_bucket_shows_all_that_lies_in_it(
    server: S3Server, tmp_path: Path, empty: tuple[str, ...]
) -> None:
    write(tmp_path, [*FOREIGN, *OWN])
    # What has no bytes is listed another way.
    assert listed(upload(server, tmp_path, empty)) == sorted([*FOREIGN, OURS, *empty])


@pytest.mark.parametrize("encoded", [False, True])
def test_an_inventory_shows_all_but_the_folder_of_the_store_itself(encoded: bool) -> None:
    names = [*FOREIGN, OURS, "ab/c//d", "folder/"]
    keys = [f"store/{name}" for name in ("", *names)]
    rows = pa.table(
        {
            "key": [quote_plus(key) for key in keys] if encoded else keys,
            "size": [0] * len(keys),
            "modified_ms": [1] * len(keys),
        }
    )
    assert (
        _names([conform_listing(rows, key_rules("s3://bucket/store", url_encoded=encoded))])
        == names
    )


# --- through reconciliation -----------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "tier2")
    for name in FOREIGN:
        world.put(name, b"somebody's", 10 * DAY_S)
    world.snapshot()
    return world


def check(url: str, **options: Any) -> None:
    result = reconcile(LocalSpark().as_spark(), url, snapshots="newest", check="headers", **options)
    assert found(result.table) == {("foreign", name) for name in FOREIGN}
    assert set(result.table["severity"].to_pylist()) == {"note"}
    assert (result.table.num_rows, result.verdict, result.summary.orphans) == (
        len(FOREIGN),
        Exit.FINDINGS,
        0,
    )


def test_foreign_files_in_a_folder_are_reported(world: World) -> None:
    check(world.url)
    check(world.url, delete_orphans=True)


@slow(3)
def test_foreign_objects_in_a_bucket_are_reported(world: World, server: S3Server) -> None:
    check(upload(server, world.folder))


def test_owners_who_are_asked_to_delete_orphans_delete_nothing_foreign(tmp_path: Path) -> None:
    location, folder = tmp_path / "store", tmp_path / "store" / "tier2"
    options: dict[str, Any] = {
        **TINY,
        "mailbox_poll_interval_s": 0.05,
        "orphan_sweep_interval_s": 0.0,
    }
    blocking.open(location, **options).close()
    with blocking.open(location, **options) as store:
        store.create_segment("a")
        ours = object_name(0, 1, "flush", store_tag(str(store.stats()["store_id"])) + bytes(8))
        write(folder, [*FOREIGN, ours])
        moment = time.time() - 10 * DAY_S
        for name in (*FOREIGN, ours):
            os.utime(folder / name, (moment, moment))
        url = folder.as_uri()
        result = reconcile(LocalSpark().as_spark(), url, delete_orphans=True, execute=True)
        assert found(result.table) == {("orphan", ours), *(("foreign", name) for name in FOREIGN)}
        assert [(each.names, each.condemned, each.shown) for each in result.condemned] == [
            (1, 1, (ours,))
        ]
        deadline = time.monotonic() + 240
        while (folder / ours).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        store.collect_garbage()
        again = reconcile(LocalSpark().as_spark(), url, delete_orphans=True, execute=True)
        assert found(again.table) == {("foreign", name) for name in FOREIGN}
        assert again.condemned == ()
    assert not (folder / ours).exists()
    assert all((folder / name).read_bytes() == b"somebody's" for name in FOREIGN)
