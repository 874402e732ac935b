"""Commands that are given a cluster in place of a folder: by ZooKeeper, and by addresses.

Its host is a process that serves all containers; ZooKeeper is in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from durablelog.bookkeeper import bookkeeper_clients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.memory_nodes import MemoryNodes, NodeTree
from durablelog.bookkeeper.store_node import encode_identity
from durablelog.durable_data_log_factory import StoreIdentity
from recovery.harness.services.server import free_port
from segmentstore import blocking
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.cluster_nodes import ClusterNodes, HostNode
from segmentstore.cluster.host_record import HostRecord
from tests.cli.shell import Result, segmentstore
from tests.store.harness import TINY

ROOT = "/stores/one"
A = UUID(int=1)
FORMS = ("zookeeper", "addresses")


@pytest.fixture(params=FORMS)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """How a store of two containers is named, whose folder is unknown here."""
    port, tree = free_port(), NodeTree()

    async def open_nodes(location: BookKeeperLocation, *_: object) -> MemoryNodes:
        assert location.path == ROOT
        return MemoryNodes(tree)

    monkeypatch.setattr(bookkeeper_clients, "open_nodes", open_nodes)

    async def register(store_id: str) -> None:
        await MemoryNodes(tree).create(ROOT, encode_identity(StoreIdentity(store_id, 2, "file:x")))
        nodes = ClusterNodes(MemoryNodes(tree), ROOT)
        await nodes.write_map(AssignmentMap(owners={0: "a", 1: "a"}), None)
        await nodes.register(HostNode("a", 0, "0" * 16), HostRecord("a", "127.0.0.1", port, "", 0))

    options = {**TINY, "containers": 2, "wire_port": port, "local_server": False}
    with blocking.open(tmp_path / "hidden", **options) as store:
        asyncio.run(register(store.stats()["store_id"]))
        address = f"127.0.0.1:{port}"
        yield {
            "zookeeper": f"zookeeper://zoo:2181{ROOT}",
            "addresses": f"{address},127.0.0.1:{free_port()}",
        }[request.param]


def done(*arguments: object, stdin: bytes = b"") -> Result:
    """A command that said nothing of another process."""
    result = segmentstore(*arguments, stdin=stdin)
    assert result.code == ExitCode.DONE, result.err
    assert "going through" not in result.err
    return result


def test_segments(place: str) -> None:
    assert b"created logs/a" in done("create", place, "logs/a").out
    done("create", place, f"logs/a#transaction.{A.hex}")
    said = done("append", place, "logs/a", stdin=b"one\ntwo\nthree\n")
    assert "3 lines acknowledged" in said.err
    done("append", place, f"logs/a#transaction.{A.hex}", stdin=b"four\n")
    assert done("cat", place, "logs/a").out == b"one\ntwo\nthree\n"
    assert done("cat", place, "logs/a", "--offset", 4, "--length", 3).out == b"two"
    assert done("tail", place, "logs/a", "-n", 1).out == b"three\n"
    assert len(done("ls", place, "logs", "--json").json_lines()) == 2
    assert done("info", place, "logs/a", "--json").json()["length"] == 14
    merged = done("merge", place, "logs/a", f"logs/a#transaction.{A.hex}", "--json")
    assert merged.json()["offset"] == 14
    done("truncate", place, "logs/a", 4)
    shown = done("attrs", place, "logs/a", "--set", f"{A}=5", "--json")
    assert shown.json() == {str(A): 5}
    assert done("attrs", place, "logs/a", "--json").json() == {str(A): 5}
    assert done("seal", place, "logs/a", "--json").json()["length"] == 19
    assert done("cat", place, "logs/a", "--follow").out == b"two\nthree\nfour\n"
    done("rm", place, "logs/a")
    assert done("ls", place, "--json").json_lines() == []
    missing = segmentstore("cat", place, "logs/a")
    assert (missing.code, "does not exist" in missing.err) == (ExitCode.REFUSED, True)


def test_files(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "x").write_bytes(b"1\n2\n")
    # One address will do as well.
    for each in (place, place.partition(",")[0]):
        done("ingest", each, folder)
    assert done("cat", place, "x").out == b"1\n2\n"


def test_the_store(place: str) -> None:
    done("append", place, "x", stdin=b"one\n")
    done("flush", place)
    done("checkpoint", place)
    assert len(done("info", place, "--json").json()["containers"]) == 2
    assert len(done("stats", place, "--json").json()["containers"]) == 2
    assert done("health", place, "--json").json()["ready"]
    assert b"segmentstore_" in done("stats", place, "--prometheus").out
    (line,) = done("top", place, "--count", 1, "--json").json_lines()
    assert [row["state"] for row in line["containers"]] == ["running"] * 2
    assert done("log", place, "--json").json_lines()
    assert done("log", place, "--operations", "--json").json_lines()
    (block,) = done("objects", place, "--json").json_lines()
    assert block["segment"] == "x"
    assert done("gc", place, "--dry-run", "--json").json()["problems"] == []
    done("gc", place)
    assert len(done("catalog", "export", place, "--json").json()["snapshots"]) == 2


@pytest.mark.parametrize("place", ["zookeeper://zoo:2181/x", "a:1,b:2", "a:1"])
@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (("verify", "STORE"), "name the folder of a host"),
        (("scrub", "STORE"), "name the folder of a host"),
        (("mailbox", "STORE"), "name the folder of a host"),
        (("doctor", "STORE"), "name the folder of a host"),
        (("catalog", "ls", "STORE"), "name the folder of a host"),
        (("log", "STORE", "--ledgers"), "name the folder of a host"),
        (("gc", "STORE", "--forget-store", str(A)), "name the folder of a host"),
        (("serve", "STORE", "--create"), "a store is opened in a folder: name one"),
        (("restore", "memory://x", "STORE"), "a store is restored into a folder: name one"),
        (("append", "STORE", "x", "--take-over"), "leave --take-over out"),
    ],
)
def test_what_needs_a_folder_names_it(
    arguments: tuple[str, ...],
    instead: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = segmentstore(*(place if each == "STORE" else each for each in arguments))
    assert refused.code == ExitCode.USAGE
    assert "it is a cluster" in refused.err
    assert instead in refused.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("verify",), ("serve",), ("cluster", "status"), ("ls",)])
def test_no_secret_of_a_location_is_printed(command: tuple[str, ...]) -> None:
    refused = segmentstore(*command, "zookeeper://user:hunter2@zoo/x")
    assert (refused.code, "hunter2" in refused.err) == (ExitCode.USAGE, False)


def test_the_commands_of_a_cluster_need_zookeeper() -> None:
    refused = segmentstore("cluster", "status", "a:1,b:2")
    assert (refused.code, "name zookeeper://" in refused.err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("place", "code", "words"),
    [
        ("bookkeeper://zoo:2181/x", ExitCode.USAGE, "zookeeper:// in front"),
        ("zookeeper://zoo:2181", ExitCode.USAGE, "the path is missing"),
        ("a:1,b", ExitCode.USAGE, "'b' is not host:port"),
        ("127.0.0.1:PORT,", ExitCode.UNAVAILABLE, "no server listens there"),
        (
            "zookeeper://127.0.0.1:PORT/x?session_timeout_s=1",
            ExitCode.UNAVAILABLE,
            "ZooKeeper does not answer",
        ),
    ],
)
def test_what_is_no_cluster(place: str, code: ExitCode, words: str) -> None:
    refused = segmentstore("ls", place.replace("PORT", str(free_port())))
    assert (refused.code, words in refused.err) == (code, True), refused.err


def test_a_folder_whose_name_is_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done("create", "./a:1", "x")
    assert (tmp_path / "a:1" / "store.toml").is_file()
