"""`gc`: what it shows is what there is, a dry run changes nothing, and only what is due goes."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from tests.cli.shell import segmentstore
from tests.cli.test_inspection import snapshot
from tests.store.harness import read_store_id
from tier2.object_names import object_name
from tier2.unique_ids import new_tagged_id, store_tag

RNG = random.Random(2)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    location = tmp_path / "store"
    segmentstore("append", location, "a", stdin=b"one\ntwo\n")
    segmentstore("append", location, "b", stdin=b"three\n")
    segmentstore("flush", location)
    return location


def plant(folder: Path, store: Path, epoch: int = 1, container_id: int = 0) -> str:
    """An object of the kind that a crash leaves."""
    tag = store_tag(read_store_id(store))
    name = object_name(container_id, epoch, "flush", new_tagged_id(tag, RNG))
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 1000)
    return name


def test_a_store_without_garbage(store: Path) -> None:
    before = snapshot(store)
    shown = segmentstore("gc", store, "--dry-run", "--json")
    assert shown.json() == {
        "store": str(store),
        "dry_run": True,
        "items": [],
        "problems": [],
        "notes": [],
    }
    assert b"no garbage" in segmentstore("gc", store, "--dry-run").out
    assert snapshot(store) == before
    assert segmentstore("gc", store, "--json").json()["items"] == []


def test_a_dry_run_shows_orphans_and_what_waits_and_changes_nothing(store: Path) -> None:
    segmentstore("rm", store, "a")
    segmentstore("rm", store, "b")
    orphan = plant(store / "tier2", store)
    plant(store / "tier2", store, container_id=5)
    before = snapshot(store)
    shown = segmentstore("gc", store, "--dry-run", "--json").json()
    assert {item["state"] for item in shown["items"]} == {"orphan", "waiting"}
    assert [item["name"] for item in shown["items"] if item["state"] == "orphan"] == [orphan]
    assert [item["size"] for item in shown["items"] if item["state"] == "orphan"] == [1000]
    assert all(item["until"] for item in shown["items"] if item["state"] == "waiting")
    said = segmentstore("gc", store, "--dry-run").out.decode()
    assert "1 orphan (1000 bytes)" in said
    assert "waiting" in said
    assert snapshot(store) == before


def test_the_lag_of_the_environment_counts(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segmentstore("rm", store, "a")
    segmentstore("rm", store, "b")
    monkeypatch.setenv("SEGMENTSTORE_DELETION_LAG_S", "0")
    shown = segmentstore("gc", store, "--dry-run", "--json").json()
    assert {item["state"] for item in shown["items"]} == {"due"}


def test_orphans_are_marked_for_deletion_and_go_once_the_lag_is_over(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = plant(store / "tier2", store)
    shown = segmentstore("gc", store)
    assert shown.code == ExitCode.DONE
    assert b"1 waiting (1000 bytes)" in shown.out
    assert (store / "tier2" / orphan).exists()
    # Not again: the log knows it now.
    waiting = segmentstore("gc", store, "--json").json()["items"]
    assert [(item["state"], item["name"]) for item in waiting] == [("waiting", orphan)]
    monkeypatch.setenv("SEGMENTSTORE_DELETION_LAG_S", "0")
    segmentstore("gc", store)
    assert not (store / "tier2" / orphan).exists()
    assert segmentstore("gc", store, "--json").json()["items"] == []
    assert segmentstore("cat", store, "a").out == b"one\ntwo\n"
    assert segmentstore("verify", store).code == ExitCode.DONE


def test_an_object_of_a_later_owner_stops_the_search(store: Path) -> None:
    plant(store / "tier2", store)
    later = plant(store / "tier2", store, epoch=99)
    before = snapshot(store)
    shown = segmentstore("gc", store, "--dry-run", "--json").json()
    assert snapshot(store) == before
    assert later in shown["problems"][0]
    assert "another owner is newer" in segmentstore("gc", store, "--json").json()["problems"][0]
    assert {name for name in before if "/flush-" in name} == {
        name for name in snapshot(store) if "/flush-" in name
    }


def test_a_store_that_is_missing_can_be_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    monkeypatch.setenv("SEGMENTSTORE_TIER2", place.as_uri())
    for name, shared in (("one", "0"), ("two", "1")):
        monkeypatch.setenv("SEGMENTSTORE_SHARED_TIER2", shared)
        segmentstore("append", tmp_path / name, "a", stdin=name.encode())
        segmentstore("flush", tmp_path / name)
    monkeypatch.delenv("SEGMENTSTORE_SHARED_TIER2")
    ids = {
        name: segmentstore("info", tmp_path / name, "--json").json()["store_id"]
        for name in ("one", "two")
    }
    orphan = plant(place, tmp_path / "one", epoch=0)
    shown = segmentstore("gc", tmp_path / "one", "--json").json()
    assert shown["items"] == []
    assert ids["two"] in shown["problems"][0]
    for wrong, sentence in (
        (ids["one"], "that is this store"),
        ("two", "not the id"),
        (str(uuid.UUID(int=9)), "no such"),
    ):
        refused = segmentstore("gc", tmp_path / "one", "--forget-store", wrong)
        assert refused.code == ExitCode.REFUSED
        assert sentence in refused.err
    assert (
        segmentstore("gc", tmp_path / "one", "--forget-store", ids["two"], "--dry-run").code
        == ExitCode.USAGE
    )
    shown = segmentstore("gc", tmp_path / "one", "--forget-store", ids["two"], "--json").json()
    # What the other one left is not ours to delete, whichever store is missing.
    assert [problem for problem in shown["problems"] if "of unknown owner" not in problem] == []
    assert [(item["state"], item["name"]) for item in shown["items"]] == [("waiting", orphan)]
    assert segmentstore("verify", tmp_path / "one").code == ExitCode.DONE
    assert segmentstore("cat", tmp_path / "one", "a").out == b"one"


def test_a_log_that_cannot_be_seen_is_not_taken_for_one_that_was_never_opened(store: Path) -> None:
    log = store / "log" / "0"
    log.rename(store / "log" / "moved")
    log.symlink_to("0")
    done = segmentstore("gc", store, "--dry-run")
    assert done.code == ExitCode.UNAVAILABLE
    assert "tier1 is not available" in done.err


def test_what_is_no_store(tmp_path: Path) -> None:
    assert segmentstore("gc", tmp_path).code == ExitCode.REFUSED
    assert segmentstore("gc", tmp_path, "--dry-run").code == ExitCode.REFUSED
