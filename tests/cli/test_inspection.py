"""Inspecting a stopped store: what is shown is what is there, and nothing is changed by
checking.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from durablelog.operations import (
    AppendOperation,
    CreateOperation,
    ReleaseChunksOperation,
    SnapshotCheckpointOperation,
    StorageUpdateOperation,
    TruncateOperation,
)
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.contracts.chunks import ObjectRecord
from segmentstore.listed_entries import describe, kind_of
from tests.cli.shell import segmentstore


@pytest.fixture
def store(tmp_path: Path) -> Path:
    location = tmp_path / "store"
    segmentstore("append", location, "a", stdin=b"one\ntwo\n")
    segmentstore("append", location, "b", stdin=b"three\n")
    return location


def snapshot(store: Path) -> dict[str, bytes]:
    """Every file but the throw-away cache, and the locks, which name their last holder and its
    start.
    """
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file()
        and not path.is_relative_to(store / "cache")
        and path.name.lower() != "lock"
    }


def log_file(store: Path) -> Path:
    return min((store / "log" / "0").glob("*.log"))


def test_frames(store: Path) -> None:
    before = snapshot(store)
    frames = segmentstore("log", store, "--json").json_lines()
    counted = [frame["sequence"] for frame in frames if frame["state"] == "ok"]
    assert counted == list(range(1, len(counted) + 1))
    # What a later owner has copied on still lies where the one before it wrote it.
    assert {frame["state"] for frame in frames} <= {"ok", "stale"}
    assert b"sequence" in segmentstore("log", store).out
    some = segmentstore(
        "log", store, "--from", frames[1]["address"], "--limit", 1, "--json"
    ).json_lines()
    assert some == [frames[1]]
    assert snapshot(store) == before


def test_operations(store: Path) -> None:
    before = snapshot(store)
    operations = segmentstore("log", store, "--operations", "--json").json_lines()
    kinds = [operation["kind"] for operation in operations]
    assert kinds[0] == "checkpoint"
    assert kinds.count("create") == 2
    appended = [operation["what"] for operation in operations if operation["kind"] == "append"]
    assert any("8 bytes at 0" in what or "4 bytes at 0" in what for what in appended)
    numbers = [operation["sequence"] for operation in operations]
    assert numbers == sorted(set(numbers))
    last = operations[-1]
    assert (
        last
        in segmentstore(
            "log", store, "--operations", "--from", last["address"], "--json"
        ).json_lines()
    )
    assert snapshot(store) == before


def test_a_torn_tail_is_shown_and_is_no_corruption(store: Path) -> None:
    last = segmentstore("log", store, "--json").json_lines()[-1]
    path, _, position = last["place"].rpartition(" offset ")
    with Path(path).open("r+b") as file:
        file.seek(int(position) + 8)
        file.write(b"\xff")
    shown = segmentstore("log", store, "--json")
    assert shown.code == ExitCode.DONE
    assert [frame["state"] for frame in shown.json_lines()][-1] == "torn"


def test_a_corrupt_frame_is_named_and_ends_with_3(store: Path) -> None:
    frames = segmentstore("log", store, "--json").json_lines()
    path, _, position = frames[1]["place"].rpartition(" offset ")
    with Path(path).open("r+b") as file:
        file.seek(int(position) + 8)
        file.write(b"\xff")
    before = snapshot(store)
    shown = segmentstore("log", store, "--json")
    assert shown.code == ExitCode.CORRUPTION
    bad = shown.json_lines()[-1]
    assert (bad["state"], bad["sequence"], bad["place"]) == ("corrupt", 2, frames[1]["place"])
    for command in (["log", store, "--operations"], ["objects", store], ["cat", store, "a"]):
        refused = segmentstore(*command)
        assert refused.code == ExitCode.CORRUPTION
        assert f"{path} offset {position} frame 2" in refused.err
    assert snapshot(store) == before


def test_objects_say_whose_bytes_they_hold(store: Path) -> None:
    assert segmentstore("objects", store, "--json").json_lines() == []
    segmentstore("flush", store)
    blocks = segmentstore("objects", store, "--json").json_lines()
    assert sorted(
        (block["segment"], block["start_offset"], block["length"], block["state"])
        for block in blocks
    ) == [
        ("a", 0, 8, "live"),
        ("b", 0, 6, "live"),
    ]
    for block in blocks:
        assert (store / "tier2" / block["object"]).stat().st_size >= block["object_size"]
    assert [
        block["segment"] for block in segmentstore("objects", store, "a", "--json").json_lines()
    ] == ["a"]
    assert segmentstore("objects", store, "absent").code == ExitCode.REFUSED
    assert b"2 blocks in" in segmentstore("objects", store).out


def test_objects_that_wait_for_their_deletion(store: Path) -> None:
    segmentstore("flush", store)
    segmentstore("rm", store, "a")
    segmentstore("rm", store, "b")
    blocks = segmentstore("objects", store, "--json").json_lines()
    assert blocks
    assert {(block["state"], block["segment"]) for block in blocks} == {
        ("waiting for deletion", None)
    }
    assert b"waiting for deletion" in segmentstore("objects", store).out


def test_verify_finds_nothing_wrong_with_a_good_store(store: Path) -> None:
    segmentstore("flush", store)
    before = snapshot(store)
    for options in ([], ["--deep"]):
        shown = segmentstore("verify", store, *options, "--json")
        assert (shown.code, shown.json()["harmful"]) == (ExitCode.DONE, False)
    assert segmentstore("verify", store).code == ExitCode.DONE
    assert snapshot(store) == before


def test_verify_ends_with_3_when_an_object_is_missing(store: Path) -> None:
    segmentstore("flush", store)
    for block in segmentstore("objects", store, "--json").json_lines():
        (store / "tier2" / block["object"]).unlink(missing_ok=True)
    shown = segmentstore("verify", store, "--json")
    assert (shown.code, shown.json()["harmful"]) == (ExitCode.CORRUPTION, True)
    assert b"harmful" in segmentstore("verify", store).out


def test_an_address_that_is_none_is_a_usage_error(store: Path) -> None:
    assert segmentstore("log", store, "--from", "there").code == ExitCode.USAGE


def test_a_log_in_memory_has_nothing_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGMENTSTORE_TIER1", "memory")
    segmentstore("create", tmp_path / "s", "a")
    assert segmentstore("log", tmp_path / "s").code == ExitCode.REFUSED


def test_operations_in_words() -> None:
    append = AppendOperation(3, 10, b"abc", {uuid.UUID(int=1).bytes: 4})
    assert (kind_of(append), describe(append, 3)) == (
        "append",
        "segment 3, 3 bytes at 10, 1 attributes",
    )
    update = StorageUpdateOperation([ObjectRecord("o", 1, 2)])
    assert (kind_of(update), describe(update, 3)) == (
        "storage update",
        "objects 1, chunks 0, links 0",
    )
    assert describe(TruncateOperation(3, 9), 3) == "segment_id 3, offset 9"
    in_slices = TruncateOperation(3, 9, in_slices=True)
    assert describe(in_slices, 3) == "segment_id 3, offset 9, in_slices True"
    release = ReleaseChunksOperation([(3, 9), (5, 7)])
    assert (kind_of(release), describe(release, 3)) == ("release chunks", "releases 2")
    assert describe(CreateOperation("n"), 3) == "name n"
    checkpoint = SnapshotCheckpointOperation(7, bytes(range(16)), sequence_number=104)
    assert kind_of(checkpoint) == "snapshot checkpoint"
    manifest = "0000000000000007-0000000000000068-000102030405060708090a0b0c0d0e0f"
    assert describe(checkpoint, 3) == f"metadata snapshot metadata/00000003/{manifest}"
