"""Folders whose names are bytes and no text: each is itself, in URLs too, and can be shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import segmentstore
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tests.cli.shell import segmentstore as command
from tests.store.harness import TINY, read_all, run
from tests.support.suites import slow
from tier2.file_object_storage import FileObjectStorage
from tier2.locations import check_object_storage_url, open_object_storage

NAMES = (b"st\xff", b"st\xfe", "stö\ufffd".encode())


def folders_in(place: Path) -> list[str]:
    return [os.path.join(str(place), os.fsdecode(name)) for name in NAMES]


def data_of(location: str) -> bytes:
    return os.fsencode(location)[-3:] * 100


async def fill(location: str, **options: Any) -> None:
    async with segmentstore.open(location, **{**TINY, **options}) as store:
        await store.create_segment("a")
        await store.append("a", data_of(location))
        await store.flush()
        await store.checkpoint()


async def sweep_and_read(location: str, **options: Any) -> bytes:
    async with segmentstore.open(location, **{**TINY, **options}) as store:
        assert not (await store.collect_garbage()).problems
        # RocksDB is not given such a name: there is no cache, and all else works.
        is_utf8 = location.isprintable()
        expected = [] if is_utf8 else ["the cache does not work: reads of what it had go to Tier 2"]
        assert store.stats()["health"] == expected
        return await read_all(store, "a")


def objects_below(folder: str) -> list[str]:
    return [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]


def test_stores_in_folders_whose_names_are_not_utf8_keep_to_themselves(tmp_path: Path) -> None:
    locations = folders_in(tmp_path)
    for location in locations:
        run(fill(location))
    assert sorted(os.listdir(tmp_path)) == sorted(map(os.path.basename, locations))
    for location in (*locations, *locations):
        assert run(sweep_and_read(location)) == data_of(location)
        assert objects_below(os.path.join(location, "tier2"))


def test_a_url_says_with_percent_signs_which_bytes_it_means(tmp_path: Path) -> None:
    places = folders_in(tmp_path / "objects")
    for number, place in enumerate(places):
        location = str(tmp_path / f"store-{number}")
        url = Path(place).as_uri()
        assert url.isascii()
        run(fill(location, tier2=url))
        assert objects_below(place)
        assert run(sweep_and_read(location, tier2=url)) == data_of(location)
    assert len(os.listdir(tmp_path / "objects")) == len(NAMES)


def test_what_no_url_can_hold_is_refused_by_name() -> None:
    for url, reason in (
        ("file:///data/\udcff", "as %FF"),
        ("memory://x%FF", "not UTF-8"),
        ("sftp://host/x%FF", "not UTF-8"),
    ):
        with pytest.raises(ConfigError, match=reason) as caught:
            check_object_storage_url(url)
        str(caught.value).encode()


def test_a_storage_shows_its_folder_as_text(tmp_path: Path) -> None:
    place = folders_in(tmp_path)[0]
    storage = open_object_storage(Path(place).as_uri(), Runtime())
    assert isinstance(storage, FileObjectStorage)
    assert storage.root == place
    assert storage.url == f"file://{tmp_path}/st\\xff"


@slow(2)
def test_commands_name_such_a_folder_without_failing(tmp_path: Path) -> None:
    for location in folders_in(tmp_path):
        run(fill(location))
        shown = command("info", location)
        assert (shown.code, shown.err) == (0, "")
        assert command("info", location, "--json").json()["tier2"]["url"].startswith("file://")
        assert command("verify", location).code == 0
        assert command("cat", location, "a").out == data_of(location)
        assert command("gc", location, "--dry-run").code == 0
    gone = command("info", os.path.join(str(tmp_path), os.fsdecode(b"gone\xff")))
    assert gone.code != 0


def test_objects_that_an_earlier_version_misplaced_are_asked_for(tmp_path: Path) -> None:
    location = folders_in(tmp_path)[0]
    run(fill(location))
    mistaken = tmp_path / "st\ufffd"
    mistaken.mkdir()
    os.rename(os.path.join(location, "tier2"), mistaken / "tier2")
    with pytest.raises(ConfigError, match="copy that folder") as caught:
        run(sweep_and_read(location))
    str(caught.value).encode()
    os.rename(mistaken / "tier2", os.path.join(location, "tier2"))
    assert run(sweep_and_read(location)) == data_of(location)
