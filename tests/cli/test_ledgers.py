"""The commands that read a store on BookKeeper, on a real cluster: ledgers, frames, orphans,
and what they refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import segmentstore as engine
from durablelog.bookkeeper import bookkeeper_clients
from durablelog.bookkeeper.bookkeeper_clients import open_clients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.gateway import gateway_ledger_store
from durablelog.bookkeeper.gateway.gateway_settings import GATEWAY_CLOSED
from durablelog.bookkeeper.ledger_calls import custom_metadata
from durablelog.bookkeeper.ledger_store import LedgerError, Replication
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_file import parse_store_file
from tests.cli.shell import segmentstore
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.store.harness import until
from tests.support.suites import slow


@pytest.fixture(scope="module")
def cluster(shared_bookkeeper: BookKeeperCluster) -> Iterator[BookKeeperCluster]:
    shared_bookkeeper.start()
    with kept_gateway():
        yield shared_bookkeeper


@pytest.fixture
def store(cluster: BookKeeperCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEGMENTSTORE_TIER1", cluster.url(f"/{tmp_path.name}"))
    location = tmp_path / "store"
    assert segmentstore("append", location, "a", stdin=b"one\ntwo\n").code == 0
    assert segmentstore("append", location, "b", stdin=b"three\n").code == 0
    return location


def no_gateway(*_: object) -> NoReturn:
    raise LedgerError(GATEWAY_CLOSED, "start", "there is no Java")


def test_ledgers_of_a_stopped_and_of_a_running_store(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = segmentstore("log", store, "--ledgers", "--json").json_lines()
    assert {
        "container",
        "epoch",
        "enabled",
        "truncation",
        "retained",
        "removing",
        "ledgers",
        "store_id",
        "owner",
        "closed",
    } == record.keys()
    assert (record["container"], record["epoch"], record["enabled"]) == (0, 2, True)
    assert record["closed"]
    ledgers = record["ledgers"]
    assert [ledger["sequence"] for ledger in ledgers] == sorted(
        ledger["sequence"] for ledger in ledgers
    )
    assert {ledger["replication"] for ledger in ledgers} == {"3/3/2"}
    assert ledgers[0]["state"] == "closed"
    assert ledgers[0]["entries"] > 0
    assert ledgers[0]["bytes"] > 0
    assert ledgers[-1]["state"] == "closed", (
        "its owner closed it, though the record has no end of it"
    )
    assert ledgers[-1]["entries"] > 0
    with monkeypatch.context() as without:
        without.setattr(gateway_ledger_store, "acquire_own", no_gateway)
        without.setattr(bookkeeper_clients, "OPEN_TIMEOUT_S", 0.0)
        looked = segmentstore("log", store, "--ledgers", "--json")
        assert looked.json_lines()[0]["ledgers"][-1]["state"] == "open"
        assert "which ledgers are closed is not known" in looked.err
    shown = segmentstore("log", store, "--ledgers")
    # Its lines are as wide as the terminal.
    title = b" ".join(shown.out.split())
    assert b"container 0: epoch 2, never truncated, enabled" in title
    assert b"closed again" in title
    (limited,) = segmentstore("log", store, "--ledgers", "--json", "--limit", 1).json_lines()
    assert limited["ledgers"] == ledgers[-1:]

    async def look() -> None:
        loop = asyncio.get_running_loop()
        async with engine.open(store) as opened:
            await opened.append("a", b"x")
            looked = await loop.run_in_executor(
                None, segmentstore, "log", store, "--ledgers", "--json"
            )
            (running,) = looked.json_lines()
            assert (running["epoch"], running["closed"]) == (3, False)
            assert running["ledgers"][-1]["state"] == "open"
            assert running["ledgers"][-1]["entries"] is None
            await opened.append("a", b"y")
            # A Java process may be silent for some seconds on a busy machine.
            await until(lambda: opened.stats()["health"] == [])

    asyncio.run(look())


def test_frames_and_operations_and_objects_of_a_stopped_store(store: Path) -> None:
    frames = segmentstore("log", store, "--json").json_lines()
    counted = [frame["sequence"] for frame in frames]
    assert counted == list(range(1, len(counted) + 1))
    assert {frame["state"] for frame in frames} == {"ok"}
    assert frames[1]["place"].endswith(" entry 1")
    some = segmentstore(
        "log", store, "--from", frames[2]["address"], "--limit", 1, "--json"
    ).json_lines()
    assert some == [frames[2]]
    kinds = [
        row["kind"] for row in segmentstore("log", store, "--operations", "--json").json_lines()
    ]
    assert kinds[0] == "checkpoint"
    assert kinds.count("create") == 2
    assert segmentstore("objects", store).code == 0
    scrubbed = segmentstore("scrub", store, "--json")
    assert scrubbed.code == 0
    assert scrubbed.json()["harmful"] is False


def test_a_ledger_that_is_open_is_said_to_be_so_and_not_fenced(store: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "store.toml").write_bytes((store / "store.toml").read_bytes())

    async def look() -> None:
        loop = asyncio.get_running_loop()
        async with engine.open(store) as opened:
            await opened.append("a", b"x")
            for command in ("log", "verify"):
                looked = await loop.run_in_executor(None, segmentstore, command, tmp_path / "other")
                assert looked.code == ExitCode.UNAVAILABLE
                assert "is open" in looked.err
                assert looked.err.count("\n") == 1
            await opened.append("a", b"y")

    asyncio.run(look())


@slow(1)
def test_a_store_is_verified(store: Path) -> None:
    assert segmentstore("flush", store).code == 0
    for options in ((), ("--deep",)):
        sound = segmentstore("verify", store, "--json", *options)
        assert (sound.code, sound.json()["harmful"]) == (ExitCode.DONE, False)
    for path in (store / "tier2").rglob("*"):
        if path.is_file() and "checkpoints" not in path.parts:
            path.unlink()
    assert segmentstore("verify", store).code == ExitCode.CORRUPTION


@slow(3)
def test_a_lost_store_is_restored_with_its_log_on_bookkeeper(
    cluster: BookKeeperCluster, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert segmentstore("flush", store).code == 0
    (store / "tier2").rename(tmp_path / "bucket")
    monkeypatch.delenv("SEGMENTSTORE_TIER1")
    bucket, url = (tmp_path / "bucket").as_uri(), cluster.url(f"/{tmp_path.name}-new")
    assert (
        segmentstore("restore", bucket, tmp_path / "new", "--tier1", "elsewhere").code
        == ExitCode.USAGE
    )
    taken = segmentstore(
        "restore", bucket, tmp_path / "new", "--tier1", cluster.url(f"/{tmp_path.name}")
    )
    assert taken.code == ExitCode.USAGE
    assert "holds store" in taken.err
    assert not (tmp_path / "new").exists()
    restored = segmentstore("restore", bucket, tmp_path / "new", "--tier1", url, "--json")
    assert (restored.code, restored.json()["harmful"]) == (ExitCode.DONE, False)
    assert segmentstore("verify", tmp_path / "new", "--deep").code == ExitCode.DONE
    assert segmentstore("append", tmp_path / "new", "a", stdin=b"more\n").code == 0
    assert segmentstore("cat", tmp_path / "new", "a").out == b"one\ntwo\nmore\n"
    assert segmentstore("verify", tmp_path / "new", "--deep").code == ExitCode.DONE
    (record,) = segmentstore("log", tmp_path / "new", "--ledgers", "--json").json_lines()
    assert record["epoch"] > restored.json()["epoch"]
    assert record["store_id"] == restored.json()["store_id"]


def test_ledgers_are_shown_alone(store: Path) -> None:
    assert segmentstore("log", store, "--ledgers", "--operations").code == ExitCode.USAGE


def test_a_store_in_a_folder_has_no_ledgers(tmp_path: Path) -> None:
    segmentstore("append", tmp_path / "s", "a", stdin=b"x\n")
    refused = segmentstore("log", tmp_path / "s", "--ledgers")
    assert refused.code == ExitCode.REFUSED
    assert "it has no ledgers" in refused.err


@slow(2)
def test_gc_shows_orphan_ledgers_and_deletes_them(store: Path) -> None:
    text = (store / "store.toml").read_text(encoding="utf-8")
    file = parse_store_file(text)

    async def plant() -> int:
        location = BookKeeperLocation.parse(str(file.settings["tier1"]))
        clients = await open_clients(location, {}, Runtime())
        writer = await clients.ledgers.create(Replication(), custom_metadata(file.store_id, 0, 1))
        await clients.close()
        return writer.ledger_id

    orphan = asyncio.run(plant())
    name = f"ledger {orphan} of epoch 1"
    for _ in range(2):
        dry = segmentstore("gc", store, "--dry-run", "--json").json()
        assert [item["name"] for item in dry["items"] if item["state"] == "orphan ledger"] == [name]
    done = segmentstore("gc", store, "--json").json()
    assert [item["name"] for item in done["items"] if item["state"] == "deleted ledger"] == [name]
    assert b"no garbage" in segmentstore("gc", store, "--dry-run").out
    assert segmentstore("cat", store, "a").out == b"one\ntwo\n"


def test_a_folder_of_another_store_is_refused_by_who_checks(store: Path) -> None:
    path = store / "store.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace(parse_store_file(text).store_id, "0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10"),
        encoding="utf-8",
    )
    for refused in (segmentstore("log", store, "--ledgers"), segmentstore("cat", store, "a")):
        assert refused.code == ExitCode.USAGE
        assert "holds store" in refused.err
