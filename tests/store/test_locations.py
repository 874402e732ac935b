"""What may be named as a store's folder, and as its Tier 2: no URL becomes a folder, at any
door.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import segmentstore
from recovery.restore import restore_store
from segmentstore import ConfigError, InvalidArgumentError, blocking
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.config import StoreConfig
from segmentstore.contracts.folders import checked_folder
from segmentstore.contracts.runtime import Runtime
from tests.cli.shell import segmentstore as command
from tests.store.harness import run

URLS = [
    "s3://bucket/x",
    "S3://bucket/x",
    "file:///data/x",
    "bookkeeper://zk:2181/x",
    "memory://x",
    "sftp://host/x",
]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_no_location_and_makes_no_folder(url: str) -> None:
    for location in (url, Path(url)):
        with pytest.raises(InvalidArgumentError, match=r"tier1=|tier2=|write '/data/x'"):
            _ = segmentstore.open(location)
        with pytest.raises(InvalidArgumentError):
            blocking.open(location)
    assert os.listdir() == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["append", "s3://bucket/x", "a"],
        ["ingest", "s3://bucket/x", "/etc/hostname"],
        ["serve", "--create", "s3://bucket/x"],
        ["bookkeeper", "status", "s3://bucket/x"],
        *(
            [name, "s3://bucket/x"]
            for name in (
                "ls",
                "log",
                "objects",
                "verify",
                "gc",
                "mailbox",
                "flush",
                "checkpoint",
                "doctor",
                "scrub",
            )
        ),
        ["info", "s3://bucket/x", "a"],
        ["cat", "s3://bucket/x", "a"],
        ["create", "s3://bucket/x", "a"],
        ["catalog", "ls", "s3://bucket/x"],
        ["catalog", "export", "s3://bucket/x"],
        ["restore", "memory://old", "s3://bucket/x"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_no_command_takes_a_url_for_a_folder(arguments: list[str]) -> None:
    result = command(*arguments)
    assert result.code == ExitCode.USAGE
    assert "this is a URL" in result.err
    assert "tier2=" in result.err
    assert os.listdir() == []


def test_a_restore_makes_no_folder_of_a_url() -> None:
    with pytest.raises(InvalidArgumentError, match="this is a URL"):
        run(restore_store("memory://none", "s3://bucket/x", Runtime()))
    assert os.listdir() == []


def test_the_jobs_folders_are_no_urls() -> None:
    from pyspark.sql.types import BinaryType, StructField, StructType

    from tier2.spark.commands import main
    from tier2.spark.sink.writer import write_settings

    schema = StructType([StructField("payload", BinaryType())])
    with pytest.raises(InvalidArgumentError, match=r"store=.*this is a URL"):
        write_settings({"store": "s3://bucket/x", "segment": "a"}, schema, overwrite=False)
    assert main(["reconcile", "memory://x", "--report", "s3://bucket/x"]) == ExitCode.USAGE
    assert os.listdir() == []


def test_secrets_of_a_refused_url_are_not_reported() -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        checked_folder("s3://key:hunter2@host/x?secret=hunter2")
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in str(refused.value.value)


@pytest.mark.parametrize("name", ["./s3:/x", "a:b", "x/s3:/y", "-", "http:"])
def test_a_folder_may_have_a_colon_in_its_name(name: str) -> None:
    async def session() -> None:
        async with segmentstore.open(name):
            pass

    asyncio.run(session())
    assert Path(name, "store.toml").is_file()


@pytest.mark.parametrize("location", ["", "a\0b", b"x", 3, None])
def test_what_is_no_path_is_refused(location: object) -> None:
    with pytest.raises(InvalidArgumentError, match="it is a path"):
        _ = segmentstore.open(location)  # type: ignore[arg-type]


@pytest.mark.parametrize("tier2", [Path("objects"), Path("odd %41?#")])
def test_tier2_may_be_a_path(tmp_path: Path, tier2: Path) -> None:
    async def session() -> StoreConfig:
        async with segmentstore.open(Path("store"), tier2=tier2) as store:
            await store.create_segment("a")
            await store.append("a", b"bytes")
            await store.flush()
            return store.config

    assert run(session()).tier2 == (tmp_path / tier2).as_uri()
    assert any(tier2.rglob("*.blk")) or any(path.is_file() for path in tier2.rglob("*"))
    os.chdir("/")
    # Made absolute when it was given: another working directory changes nothing.
    with blocking.open(tmp_path / "store", tier2=tmp_path / tier2) as store:
        assert store.read("a", 0, 10) == b"bytes"


def test_a_tier2_that_is_no_url_says_what_to_write() -> None:
    for tier2, instead in (("/data/x y", "file:///data/x%20y"), ("objects", r"pathlib\.Path")):
        with pytest.raises(ConfigError, match=instead):
            run(_opened("store", tier2))
    with pytest.raises(InvalidArgumentError, match="this is a URL"):
        run(_opened("store", Path("s3://bucket/x")))
    assert os.listdir() == []


async def _opened(location: str, tier2: str | Path) -> None:
    async with segmentstore.open(location, tier2=tier2):
        pass
