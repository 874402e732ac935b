"""Every command once the right way and once the wrong way, on a real store."""

from __future__ import annotations

import asyncio
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import segmentstore as library
from segmentstore.cli.exit_codes import ExitCode
from tests.cli.shell import segmentstore, start

ID = uuid.UUID(int=5)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    location = tmp_path / "store"
    assert (
        segmentstore("append", location, "logs/a", stdin=b"one\ntwo\nthree").code == ExitCode.DONE
    )
    return location


def test_append_then_cat_gives_the_bytes(store: Path) -> None:
    assert segmentstore("cat", store, "logs/a").out == b"one\ntwo\nthree"
    assert segmentstore("cat", store, "logs/a", "--offset", 4, "--length", 4).out == b"two\n"
    assert segmentstore("cat", store, "logs/a", "--length", 0).out == b""


def test_append_counts_what_was_acknowledged(tmp_path: Path) -> None:
    said = segmentstore("append", tmp_path / "s", "a", "--json", stdin=b"x\n" * 2500)
    assert said.json() == {"segment": "a", "acknowledged": 2500, "bytes": 5000}
    assert (
        "2,500 lines acknowledged"
        in segmentstore("append", tmp_path / "s", "a", stdin=b"x\n" * 2500).err
    )
    assert segmentstore("info", tmp_path / "s", "a", "--json").json()["length"] == 10_000


def test_append_to_a_sealed_segment_is_refused_and_counted(store: Path) -> None:
    segmentstore("seal", store, "logs/a")
    said = segmentstore("append", store, "logs/a", "--json", stdin=b"more\n")
    assert said.code == ExitCode.REFUSED
    assert said.json()["acknowledged"] == 0
    assert said.err == "segmentstore: segment 'logs/a' is sealed\n"


def test_listing_and_properties(store: Path) -> None:
    segmentstore("create", store, "logs/b")
    segmentstore("create", store, "other")
    assert [row["name"] for row in segmentstore("ls", store, "--json").json_lines()] == [
        "logs/a",
        "logs/b",
        "other",
    ]
    assert [row["name"] for row in segmentstore("ls", store, "logs/", "--json").json_lines()] == [
        "logs/a",
        "logs/b",
    ]
    assert b"logs/b" in segmentstore("ls", store).out
    shown = segmentstore("info", store, "logs/a", "--json").json()
    assert (shown["length"], shown["start_offset"], shown["sealed"]) == (13, 0, False)
    assert b"13" in segmentstore("info", store, "logs/a").out
    assert segmentstore("info", store, "--json").json()["health"] == []
    assert b"health" in segmentstore("info", store).out


def test_seal_truncate_merge_delete(store: Path) -> None:
    assert segmentstore("truncate", store, "logs/a", 4).code == ExitCode.DONE
    assert segmentstore("cat", store, "logs/a").out == b"two\nthree"
    refused = segmentstore("cat", store, "logs/a", "--offset", 0)
    assert (refused.code, refused.err) == (
        ExitCode.REFUSED,
        "segmentstore: segment 'logs/a' is truncated: its first offset is 4\n",
    )
    segmentstore("append", store, "logs/b", stdin=b"four\n")
    merged = segmentstore("merge", store, "logs/a", "logs/b", "--json")
    assert merged.json() == {
        "target": "logs/a",
        "source": "logs/b",
        "offset": 13,
        "length": 18,
    }
    assert segmentstore("cat", store, "logs/a").out == b"two\nthreefour\n"
    assert segmentstore("seal", store, "logs/a", "--json").json() == {
        "segment": "logs/a",
        "length": 18,
    }
    assert segmentstore("rm", store, "logs/a").code == ExitCode.DONE
    assert segmentstore("ls", store, "--json").out == b""


def test_attributes(store: Path) -> None:
    assert segmentstore("attrs", store, "logs/a", "--json").json() == {}
    given = segmentstore("attrs", store, "logs/a", "--set", f"{ID}=7", "--type", "none", "--json")
    assert given.json() == {str(ID): 7}
    assert (
        segmentstore("attrs", store, "logs/a", "--set", f"{ID}=8", "--type", "none").code
        == ExitCode.REFUSED
    )
    grown = segmentstore(
        "attrs", store, "logs/a", "--set", f"{ID}=-2", "--type", "accumulate", "--json"
    )
    assert grown.json() == {str(ID): 5}
    swap = (
        "attrs",
        store,
        "logs/a",
        "--set",
        f"{ID}=1",
        "--type",
        "replace-if-equals",
        "--expected",
    )
    assert segmentstore(*swap, 4).code == ExitCode.REFUSED
    assert segmentstore(*swap, 5).code == ExitCode.DONE
    assert str(ID).encode() in segmentstore("attrs", store, "logs/a").out
    later = uuid.UUID(int=ID.int + 1)
    shown = ("attrs", store, "logs/a", "--json")
    both = segmentstore(*shown, "--set", f"{later}=3").json()
    assert list(both.items()) == [(str(ID), 1), (str(later), 3)]
    assert segmentstore(*shown, "--from", later).json() == {str(later): 3}
    assert segmentstore(*shown, "--limit", 1).json() == {str(ID): 1}
    assert segmentstore("attrs", store, "logs/a", "--from", "x").code == ExitCode.USAGE
    segmentstore(*shown, "--set", f"{later}=unset")
    removed = segmentstore("attrs", store, "logs/a", "--set", f"{ID}=unset", "--json")
    assert removed.json() == {}


@pytest.mark.parametrize(
    "wrong", [["--set", "7"], ["--set", "x=7"], ["--set", f"{ID}=y"], ["--type", "never"]]
)
def test_attributes_that_cannot_be_read_are_a_usage_error(store: Path, wrong: list[str]) -> None:
    arguments = wrong if "--set" in wrong else [*wrong, "--set", f"{ID}=1"]
    assert segmentstore("attrs", store, "logs/a", *arguments).code == ExitCode.USAGE


def test_flush_and_checkpoint_move_everything_to_tier_2(store: Path) -> None:
    assert segmentstore("flush", store).code == ExitCode.DONE
    assert segmentstore("checkpoint", store, "--json").json() == {"checkpoint": True}
    shown = segmentstore("info", store, "logs/a", "--json").json()
    assert shown["storage_length"] == shown["length"] == 13
    assert segmentstore("cat", store, "logs/a").out == b"one\ntwo\nthree"


def test_a_segment_that_is_not_there(store: Path) -> None:
    refused = segmentstore("cat", store, "absent")
    assert (refused.code, refused.out) == (ExitCode.REFUSED, b"")
    assert refused.err == "segmentstore: segment 'absent' does not exist\n"


@pytest.mark.parametrize(
    "command",
    [
        ["cat", "STORE", "a"],
        ["ls", "STORE"],
        ["info", "STORE"],
        ["seal", "STORE", "a"],
        ["truncate", "STORE", "a", "0"],
        ["merge", "STORE", "a", "b"],
        ["rm", "STORE", "a"],
        ["attrs", "STORE", "a"],
        ["flush", "STORE"],
        ["checkpoint", "STORE"],
        ["log", "STORE"],
        ["objects", "STORE"],
        ["verify", "STORE"],
    ],
    ids=lambda command: command[0],
)
def test_inspecting_makes_no_store(tmp_path: Path, command: list[str]) -> None:
    location = tmp_path / "absent"
    refused = segmentstore(*(str(location) if word == "STORE" else word for word in command))
    assert refused.code == ExitCode.REFUSED
    assert "is not a segment store: there is no such folder" in refused.err
    assert not location.exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_bytes(b"dear")
    assert segmentstore("create", tmp_path, "a").code == ExitCode.REFUSED
    assert segmentstore("ls", tmp_path).code == ExitCode.REFUSED
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_without_arguments_there_is_help() -> None:
    shown = segmentstore()
    assert b"ingest" in shown.out + shown.err.encode()
    assert segmentstore("nonsense").code == ExitCode.USAGE
    assert segmentstore("truncate", "store", "a", "x").code == ExitCode.USAGE


def segmentstore_child(*arguments: object) -> int:
    with start(*arguments) as child:
        child.communicate()
    return child.returncode


def test_a_store_in_use_is_left_alone(store: Path) -> None:
    async def meanwhile() -> list[int]:
        async with library.open(store):
            # The loop stands still meanwhile: its owner answers no command.
            with ThreadPoolExecutor() as pool:
                commands = ("log", "objects", "verify")
                return list(pool.map(lambda command: segmentstore_child(command, store), commands))

    assert asyncio.run(meanwhile()) == [ExitCode.IN_USE] * 3


def test_interrupted_follower_ends_well(store: Path) -> None:
    follower = start("cat", store, "logs/a", "--follow")
    with follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert follower.stdout.read(13) == b"one\ntwo\nthree"
        follower.send_signal(signal.SIGINT)
        assert follower.stderr.read() == b""
    assert follower.returncode == ExitCode.DONE


def test_a_reader_that_had_enough_is_no_error(tmp_path: Path) -> None:
    segmentstore("append", tmp_path / "s", "a", stdin=b"0123456789abcdef" * 64 * 1024 * 4)
    writer = start("cat", tmp_path / "s", "a")
    with writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        assert writer.stdout.read(16) == b"0123456789abcdef"
        writer.stdout.close()
        assert writer.stderr.read() == b""
    assert writer.returncode == ExitCode.DONE
