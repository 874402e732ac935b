"""Commands on a store that another process has open: they go through it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

import segmentstore as library
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.contracts.local_socket import STORE_SOCKET_NAME
from tests.cli.shell import Result, segmentstore
from tests.cli.test_gc import plant
from tests.cli.test_inspection import snapshot
from tests.store.harness import TINY

A = UUID(int=1)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[library.blocking.SegmentStore]:
    """A store that is open, in the folder `s`."""
    with library.blocking.open(tmp_path / "s", **TINY) as store:
        yield store


def through(*arguments: object, stdin: bytes = b"") -> Result:
    """A command that went through the owner."""
    done = segmentstore(*arguments, stdin=stdin)
    assert done.code == ExitCode.DONE, done.err
    assert done.err.count("is open in another process: going through it\n") == 1
    return done


def test_segments(tmp_path: Path, running: library.blocking.SegmentStore) -> None:
    store = tmp_path / "s"
    assert b"created logs/a" in through("create", store, "logs/a").out
    through("create", store, "logs/b")
    said = through("append", store, "logs/a", stdin=b"one\ntwo\nthree\n")
    assert "3 lines acknowledged" in said.err
    through("append", store, "logs/b", stdin=b"four\n")
    assert running.get_info("logs/a").length == 14
    assert through("cat", store, "logs/a").out == b"one\ntwo\nthree\n"
    assert through("cat", store, "logs/a", "--offset", 4, "--length", 3).out == b"two"
    listed = through("ls", store, "logs", "--json").json_lines()
    assert [each["name"] for each in listed] == ["logs/a", "logs/b"]
    assert through("info", store, "logs/a", "--json").json()["length"] == 14
    assert through("merge", store, "logs/a", "logs/b", "--json").json()["offset"] == 14
    through("truncate", store, "logs/a", 4)
    assert through("seal", store, "logs/a", "--json").json()["length"] == 19
    assert through("cat", store, "logs/a", "--follow").out == b"two\nthree\nfour\n"
    through("rm", store, "logs/a")
    assert list(running.list_segments()) == []


def test_attributes(tmp_path: Path, running: library.blocking.SegmentStore) -> None:
    running.create_segment("x")
    shown = through("attrs", tmp_path / "s", "x", "--set", f"{A}=5", "--json").json()
    assert shown == {str(A): 5}
    assert running.get_attributes("x") == {A: 5}


def test_the_store_as_a_whole(tmp_path: Path, running: library.blocking.SegmentStore) -> None:
    store = tmp_path / "s"
    running.create_segment("x")
    running.append("x", bytes(50))
    through("flush", store)
    assert running.get_info("x").storage_length == 50
    through("flush", store, "x")
    through("checkpoint", store)
    assert through("gc", store, "--json").json()["problems"] == []
    through("mailbox", store, "--process")
    for command in ("info", "stats"):
        numbers = through(command, store, "--json").json()
        assert numbers["store_id"] == running.stats()["store_id"]
    assert b"store_id" in through("stats", store).out
    assert through("health", store, "--json").json()["ready"]
    assert b"storage_writer" in through("health", store).out


def test_a_refusal_of_the_store_is_one_of_the_command(
    tmp_path: Path, running: library.blocking.SegmentStore
) -> None:
    running.create_segment("x")
    for arguments in (("create", "x"), ("seal", "gone"), ("truncate", "x", 5)):
        refused = segmentstore(arguments[0], tmp_path / "s", *arguments[1:])
        assert refused.code == ExitCode.REFUSED
        assert "segment '" in refused.err


def test_what_needs_the_store_for_itself_is_refused(
    tmp_path: Path, running: library.blocking.SegmentStore
) -> None:
    assert running.stats()["health"] == []
    for command in ("verify", "scrub", "serve"):
        refused = segmentstore(command, tmp_path / "s")
        assert refused.code == ExitCode.IN_USE
        assert "is in use" in refused.err
        assert ("stop that process first" in refused.err) == (command != "serve")


def test_what_the_process_could_be_asked_is_refused_where_it_does_not_listen(
    tmp_path: Path,
) -> None:
    with library.blocking.open(tmp_path / "s", local_server=False, **TINY):
        for command in (["log"], ["objects"], ["gc", "--dry-run"]):
            refused = segmentstore(command[0], tmp_path / "s", *command[1:])
            assert refused.code == ExitCode.IN_USE
            assert "local_server" in refused.err


def test_the_log(tmp_path: Path, running: library.blocking.SegmentStore) -> None:
    store = tmp_path / "s"
    running.create_segment("x")
    for _ in range(5):
        running.append("x", bytes(50))
    frames = through("log", store, "--json").json_lines()
    assert {frame["state"] for frame in frames} == {"ok"}
    numbers = [frame["sequence"] for frame in frames]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert b"sequence" in through("log", store).out
    place = ("--from", frames[1]["address"], "--limit", 2, "--json")
    assert through("log", store, *place).json_lines() == frames[1:3]
    operations = through("log", store, "--operations", "--json").json_lines()
    assert [each["what"] for each in operations if each["kind"] == "create"] == ["name x"]
    running.close()
    # Stopped, it is shown alike: an ordinary close adds nothing to it but a checkpoint.
    stopped = segmentstore("log", store, "--operations", "--json").json_lines()
    assert stopped[: len(operations)] == operations
    assert segmentstore("log", store, "--json").json_lines()[: len(frames)] == frames


def test_objects_and_garbage(tmp_path: Path, running: library.blocking.SegmentStore) -> None:
    store = tmp_path / "s"
    for name in ("a", "b"):
        running.create_segment(name)
        running.append(name, bytes(50))
    running.flush()
    blocks = through("objects", store, "--json").json_lines()
    assert {(each["segment"], each["length"]) for each in blocks} == {("a", 50), ("b", 50)}
    assert through("objects", store, "b", "--json").json_lines() == [
        each for each in blocks if each["segment"] == "b"
    ]
    assert b"blocks in" in through("objects", store).out
    assert segmentstore("objects", store, "absent").code == ExitCode.REFUSED
    orphan = plant(store / "tier2", store, epoch=0)
    found = through("gc", store, "--dry-run", "--json").json()
    assert [(each["state"], each["name"]) for each in found["items"]] == [("orphan", orphan)]
    assert (store / "tier2" / orphan).exists()
    running.close()
    assert segmentstore("objects", store, "--json").json_lines() == blocks


def test_a_socket_that_a_crash_left_hinders_no_command(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with library.blocking.open(store, **TINY) as opened:
        opened.create_segment("x")
        socket_path = store / STORE_SOCKET_NAME
        kept = socket_path.rename(tmp_path / "kept")
    kept.rename(socket_path)
    listed = segmentstore("ls", store, "--json")
    assert (listed.code, listed.err) == (ExitCode.DONE, "")
    assert [each["name"] for each in listed.json_lines()] == ["x"]


class TestTail:
    @pytest.mark.parametrize(
        ("data", "lines", "wanted"),
        [
            (b"", 3, b""),
            (b"one\ntwo\nthree\n", 2, b"two\nthree\n"),
            (b"one\ntwo\nthree", 2, b"two\nthree"),
            (b"one\ntwo\nthree\n", 10, b"one\ntwo\nthree\n"),
            (b"one\ntwo\nthree\n", 0, b""),
            (b"\n\n\n", 2, b"\n\n"),
            (b"x" * 200_000 + b"\nlast\n", 1, b"last\n"),
            (b"a\n" + b"x" * 200_000, 1, b"x" * 200_000),
        ],
    )
    def test_the_last_lines(self, tmp_path: Path, data: bytes, lines: int, wanted: bytes) -> None:
        with library.blocking.open(tmp_path / "s") as store:
            store.create_segment("x")
            store.append("x", data)
            store.seal("x")
            assert through("tail", tmp_path / "s", "x", "-n", lines).out == wanted
            assert through("tail", tmp_path / "s", "x", "-n", lines, "-f").out == wanted
        assert segmentstore("tail", tmp_path / "s", "x", "-n", lines).out == wanted

    def test_begins_where_the_segment_does(self, tmp_path: Path) -> None:
        with library.blocking.open(tmp_path / "s", **TINY) as store:
            store.create_segment("x")
            store.append("x", b"one\ntwo\nthree\n")
            store.truncate("x", 5)
            assert through("tail", tmp_path / "s", "x").out == b"wo\nthree\n"


class TestTop:
    def test_lines_for_programs(
        self, tmp_path: Path, running: library.blocking.SegmentStore
    ) -> None:
        running.create_segment("x")
        said = through("top", tmp_path / "s", "--json", "--count", 2, "--interval", 0.1)
        first, second = said.json_lines()
        assert first["health"] == second["health"] == []
        (container,) = second["containers"]
        assert (container["container"], container["segments"]) == (0, 1)

    def test_a_table_for_people(self, tmp_path: Path) -> None:
        with library.blocking.open(tmp_path / "s", **TINY) as store:
            store.create_segment("x")
            shown = through("top", tmp_path / "s", "--count", 1)
            assert b"readers waiting" in shown.out

    def test_does_not_open_a_store_that_no_process_serves(self, tmp_path: Path) -> None:
        with library.blocking.open(tmp_path / "s", **TINY):
            pass
        before = snapshot(tmp_path / "s")
        refused = segmentstore("top", tmp_path / "s", "--count", 1)
        assert refused.code == ExitCode.UNAVAILABLE
        assert "`segmentstore serve` does" in refused.err
        assert snapshot(tmp_path / "s") == before
        assert segmentstore("top", tmp_path / "none").code == ExitCode.REFUSED
