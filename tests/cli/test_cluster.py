"""`segmentstore cluster`: what there is, and what a person changes, on nodes in memory; and hosts
that are real processes on a real cluster.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from durablelog.bookkeeper import bookkeeper_clients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.cluster.addresses import choose_addresses
from durablelog.bookkeeper.memory_nodes import MemoryNodes, NodeTree
from recovery.harness.clusters.controller_client import ControllerClient
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.server import free_port
from segmentstore.cli import local_hosts
from segmentstore.cli.exit_codes import CommandError, ExitCode
from segmentstore.cli.local_hosts import LocalHosts
from segmentstore.cluster.administration import ClusterPicture
from segmentstore.cluster.assignment_map import Arrival, AssignmentMap
from segmentstore.cluster.cluster_nodes import ClusterNodes, HostNode
from segmentstore.cluster.host_record import (
    ContainerReport,
    HostLoad,
    HostRecord,
    ReportedState,
)
from segmentstore.contracts.runtime import Runtime
from segmentstore.controller.names import ScopedName
from tests.cli.shell import Result, segmentstore, start
from tests.store.bookkeeper_world import ROOT, URL, BookKeeperWorld, name_in
from tests.store.harness import run
from tests.support.suites import slow

CONTAINERS = 4


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BookKeeperWorld:
    """A store of four containers on services in memory, which the command line finds, too."""
    world = BookKeeperWorld()

    async def nodes(
        location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
    ) -> MemoryNodes:
        assert location.path == ROOT
        return MemoryNodes(world.tree)

    monkeypatch.setattr(bookkeeper_clients, "open_nodes", nodes)

    async def make() -> None:
        async with await world.open(tmp_path / "s", containers=CONTAINERS):
            pass

    run(make())
    return world


def host(name: str, *running: int, failed: int | None = None) -> HostRecord:
    reports = {each: ContainerReport(ReportedState.RUNNING, 1000) for each in running}
    if failed is not None:
        reports[failed] = ContainerReport(ReportedState.FAILED, 2000, "no room")
    load = HostLoad(1, 2, 3, 4)
    return HostRecord(name, "10.0.0.1", 9090, "0.1.0", 0, load=load, containers=reports)


def put(world: BookKeeperWorld, current: AssignmentMap, *hosts: HostRecord) -> None:
    async def main() -> None:
        nodes = ClusterNodes(MemoryNodes(world.tree), ROOT)
        await nodes.write_map(current, await nodes.read_map())
        for each in hosts:
            await nodes.register(HostNode(each.host_id, each.started_ms, "0" * 16), each)

    asyncio.run(main())


def stored(world: BookKeeperWorld) -> AssignmentMap:
    async def main() -> AssignmentMap:
        found = await ClusterNodes(MemoryNodes(world.tree), ROOT).read_map()
        assert found is not None
        return found.map

    return asyncio.run(main())


def test_a_store_without_hosts_serves_nothing(tmp_path: Path, world: BookKeeperWorld) -> None:
    for store in (tmp_path / "s", URL, f"zookeeper://zoo:2181{ROOT}"):
        shown = segmentstore("cluster", "status", store, "--json")
        assert shown.code == ExitCode.UNAVAILABLE
        assert shown.json() == {
            "hosts": 0,
            "containers": CONTAINERS,
            "serving": 0,
            "without_host": [*range(CONTAINERS)],
            "moving": [],
            "epoch": 0,
        }
        assert segmentstore("cluster", "hosts", store, "--json").out == b""
        assert segmentstore("cluster", "hosts", store).code == ExitCode.DONE


def test_a_path_without_a_store_is_named_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nodes(*_: object) -> MemoryNodes:
        return MemoryNodes(NodeTree())

    monkeypatch.setattr(bookkeeper_clients, "open_nodes", nodes)
    for url in ("zookeeper://zoo:2181/none", "bookkeeper://zoo:2181/none"):
        refused = segmentstore("cluster", "status", url)
        assert refused.code == ExitCode.REFUSED
        assert f"there is no store at {url}" in refused.err


def test_what_hosts_report_is_shown(tmp_path: Path, world: BookKeeperWorld) -> None:
    owners = {0: "a", 1: "a", 2: "b"}
    put(
        world,
        AssignmentMap(epoch=7, owners=owners, pins={1: "a"}, draining=frozenset({"b"})),
        host("a", 0, failed=1),
        host("b", 1, 2),
    )
    folder = tmp_path / "s"
    status = segmentstore("cluster", "status", folder, "--json")
    assert status.code == ExitCode.UNAVAILABLE
    assert status.json() == {
        "hosts": 2,
        "containers": CONTAINERS,
        "serving": 2,
        "without_host": [3],
        "moving": [],
        "epoch": 7,
    }
    rows = segmentstore("cluster", "containers", folder, "--json").json_lines()
    assert [(row["container"], row["host"], row["state"]) for row in rows] == [
        (0, "a", "running"),
        (1, "a", "failed"),
        (2, "b", "running"),
        (3, None, "waiting"),
    ]
    assert rows[1]["cause"] == "no room"
    assert rows[1]["also_on"] == ["b"]
    assert rows[1]["pinned_to"] == "a"
    (first, second) = segmentstore("cluster", "hosts", folder, "--json").json_lines()
    assert (first["host"], first["assigned"], first["running"], first["failed"]) == ("a", 2, 1, 1)
    assert (second["host"], second["draining"], second["address"]) == ("b", True, "10.0.0.1:9090")
    shown = segmentstore("cluster", "map", folder, "--json").json()
    assert shown["owners"] == {"a": [0, 1], "b": [2]}
    for command, seen in (("hosts", b"10.0.0.1:9090"), ("containers", b"no room"), ("map", b"b")):
        assert seen in segmentstore("cluster", command, folder).out


def test_all_served_is_success(tmp_path: Path, world: BookKeeperWorld) -> None:
    put(world, AssignmentMap(owners=dict.fromkeys(range(4), "a")), host("a", 0, 1, 2, 3))
    assert segmentstore("cluster", "status", tmp_path / "s").code == ExitCode.DONE


def test_edits_are_written_to_the_map(tmp_path: Path, world: BookKeeperWorld) -> None:
    folder = tmp_path / "s"

    def edit(*arguments: object) -> Result:
        return segmentstore("cluster", arguments[0], folder, *arguments[1:])

    put(world, AssignmentMap(arrivals={"a": Arrival(1, 1, is_present=False)}), host("b"))
    assert edit("pin", 1, "a").out == b"the assignment map has epoch 1\n"
    assert edit("pin", 1, "a").out == b"the assignment map has epoch 1\n", "nothing to change"
    edit("drain", "b")
    edit("forbid", 2, "c", "--absent")
    edit("forbid", 3, "c")
    assert stored(world) == AssignmentMap(
        epoch=4,
        pins={1: "a"},
        draining=frozenset({"b"}),
        forbidden=frozenset({(2, "c"), (3, "c")}),
        arrivals={"a": Arrival(1, 1, is_present=False)},
    )
    edit("unpin", 1)
    edit("undrain", "b")
    edit("allow", 2, "c")
    edit("allow", 3, "c")
    assert dataclasses.replace(stored(world), arrivals={}) == AssignmentMap(epoch=8)


def test_a_host_that_the_cluster_does_not_know_is_refused(
    tmp_path: Path, world: BookKeeperWorld
) -> None:
    folder = tmp_path / "s"
    put(world, AssignmentMap(epoch=1, owners={0: "gone"}), host("b"))
    for arguments in (("drain", folder, "c"), ("pin", folder, 0, "c"), ("forbid", folder, 0, "c")):
        refused = segmentstore("cluster", *arguments)
        assert refused.code == ExitCode.USAGE
        assert "the cluster knows no such host, but b, gone" in refused.err
    assert stored(world).epoch == 1
    for name in ("b", "gone"):
        assert segmentstore("cluster", "drain", folder, name).code == ExitCode.DONE


def test_what_is_no_host_or_container_is_refused(tmp_path: Path, world: BookKeeperWorld) -> None:
    folder = tmp_path / "s"
    for arguments in (("drain", folder, "a/b"), ("pin", folder, CONTAINERS, "a", "--absent")):
        refused = segmentstore("cluster", *arguments)
        assert refused.code == ExitCode.USAGE
        assert "it is" in refused.err
    assert world.tree.content(f"{ROOT}/cluster/map") is None
    assert segmentstore("cluster", "status", tmp_path / "none").code == ExitCode.REFUSED


def test_a_store_of_one_process_has_no_hosts(tmp_path: Path) -> None:
    assert segmentstore("create", tmp_path / "files", "x").code == ExitCode.DONE
    refused = segmentstore("cluster", "status", tmp_path / "files")
    assert refused.code == ExitCode.USAGE
    assert "bookkeeper://" in refused.err


def test_a_cluster_that_does_not_come_to_serve_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = ClusterPicture(
        AssignmentMap(owners={0: "b", 1: "b"}), {"b": host("b", 0, failed=1)}, CONTAINERS
    )
    monkeypatch.setattr(local_hosts, "_SERVES_S", 0.0)
    monkeypatch.setattr(LocalHosts, "picture", lambda _: seen)
    with pytest.raises(CommandError) as raised:
        LocalHosts(tmp_path)._wait_until_served(local_hosts.KeptHosts((1,), CONTAINERS), 0)
    assert str(raised.value).splitlines()[1:] == [
        "container 1 on b: failed: no room",
        "container 2 on no host: waiting",
        "container 3 on no host: waiting",
    ]


# --- real processes -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookKeeperCluster]:
    with BookKeeperCluster(tmp_path_factory.mktemp("cluster"), 3) as running:
        yield running


class RealHosts:
    """Processes of `segmentstore serve`, by id."""

    def __init__(self, folder: Path, zookeeper: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.url = f"bookkeeper://{zookeeper}/{folder.name}?session_timeout_s=4"
        self.ports: dict[str, int] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        monkeypatch.setenv("SEGMENTSTORE_TIER1", self.url)
        monkeypatch.setenv("SEGMENTSTORE_TIER2", (folder / "tier2").as_uri())
        monkeypatch.setenv("SEGMENTSTORE_CONTAINERS", str(CONTAINERS))

    def start(self, name: str) -> None:
        port = self.ports.setdefault(name, free_port())
        address = f"127.0.0.1:{port}"
        process = start("serve", self.folder / name, "--create", "--wire", address, "--host", name)
        self.processes[name] = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert b"containers of its cluster" in line, process.communicate()

    @property
    def zookeeper_url(self) -> str:
        return BookKeeperLocation.parse(self.url).zookeeper_url

    @property
    def addresses(self) -> str:
        """Of the hosts that run."""
        return ",".join(f"127.0.0.1:{self.ports[name]}" for name in self.processes) + ","

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send it, and wait for the end of the process."""
        process = self.processes.pop(name)
        process.send_signal(number)
        process.communicate(timeout=240)

    def owners(self) -> dict[int, str]:
        """Of the containers that are running."""
        rows = segmentstore("cluster", "containers", self.url, "--json").json_lines()
        return {row["container"]: row["host"] for row in rows if row["state"] == "running"}

    def wait(self, holds: Callable[[dict[int, str]], bool]) -> None:
        end = time.monotonic() + 240
        while not holds(owners := self.owners()):
            assert time.monotonic() < end, owners

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()


def spread(count: int) -> Callable[[dict[int, str]], bool]:
    """All containers run, on so many hosts."""
    return lambda owners: len(owners) == CONTAINERS and len(set(owners.values())) == count


def append_to_each(hosts: RealHosts, data: bytes) -> None:
    """To a segment of each container; the cluster is named by ZooKeeper, and by its hosts."""
    for number in range(CONTAINERS):
        place = hosts.zookeeper_url if number % 2 else hosts.addresses
        done = segmentstore("append", place, name_in(number, CONTAINERS), stdin=data)
        assert done.code == ExitCode.DONE, done.err


@slow(60)
@pytest.mark.timeout(900)
def test_real_hosts_share_move_and_take_over(
    tmp_path: Path, cluster: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = RealHosts(tmp_path, cluster.zookeeper, monkeypatch)
    followers: list[subprocess.Popen[bytes]] = []
    try:
        hosts.start("a")
        # Before any container is served: it waits for that.
        append_to_each(hosts, b"1")
        for number in range(CONTAINERS):
            name = name_in(number, CONTAINERS)
            followers.append(start("cat", hosts.zookeeper_url, name, "--follow"))
        hosts.start("b")
        hosts.wait(spread(2))
        append_to_each(hosts, b"2")
        hosts.signal("a", signal.SIGKILL)
        append_to_each(hosts, b"3")
        hosts.wait(spread(1))
        hosts.ports.pop("a")  # it comes back at another one
        hosts.start("a")
        hosts.wait(spread(2))
        append_to_each(hosts, b"4")
        left = segmentstore("cluster", "leave", hosts.folder / "b")
        assert left.code == ExitCode.DONE, left.err
        hosts.wait(spread(1))
        assert segmentstore("health", hosts.folder / "b").code == ExitCode.UNAVAILABLE
        assert segmentstore("health", hosts.folder / "a").code == ExitCode.DONE
        hosts.signal("b", signal.SIGTERM)
        hosts.start("b")
        hosts.wait(spread(2))
        segmentstore("cluster", "drain", hosts.zookeeper_url, "b")
        hosts.wait(spread(1))
        segmentstore("cluster", "undrain", hosts.zookeeper_url, "b")
        hosts.wait(spread(2))
        hosts.signal("b", signal.SIGTERM)
        hosts.wait(spread(1))
        # No host is where it was when the followers began.
        append_to_each(hosts, b"5")
        for number in range(CONTAINERS):
            name = name_in(number, CONTAINERS)
            assert segmentstore("seal", hosts.addresses, name).code == ExitCode.DONE
            assert segmentstore("cat", hosts.zookeeper_url, name).out == b"12345"
        for follower in followers:
            out, err = follower.communicate(timeout=240)
            assert (out, follower.returncode) == (b"12345", ExitCode.DONE), err
    finally:
        for follower in followers:
            follower.kill()
            follower.communicate()
        hosts.end()


def stream_by(uri: str) -> list[int]:
    """The ids of a stream's segments, by one Controller, which creates it if it is not there."""

    async def main() -> list[int]:
        client = ControllerClient([uri.removeprefix("tcp://")])
        try:
            return await client.make_stream(ScopedName("s", "stream"), 3)
        finally:
            await client.close()

    return asyncio.run(main())


@slow(60)
@pytest.mark.timeout(900)
def test_a_whole_cluster_is_started_stopped_and_started_again(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    try:
        begun = segmentstore("cluster", "start", folder, "--hosts", 2, "--containers", 4, "--json")
        assert begun.code == ExitCode.DONE, begun.err
        shown = begun.json()
        assert [row["host"] for row in shown["hosts"]] == ["host-1", "host-2"]
        # One that comes later gets its share by planned moves.
        assert sum(row["running"] for row in shown["hosts"]) == 4
        assert segmentstore("create", shown["cluster"], "x").code == ExitCode.DONE
        store = folder / "host-1" / "store"
        assert segmentstore("cluster", "status", store).code == ExitCode.DONE
        stopped = segmentstore("cluster", "stop", folder)
        assert stopped.out.startswith(f"{folder}: stopped host-1, host-2, ZooKeeper".encode())
        assert segmentstore("cluster", "stop", folder).out == f"{folder}: nothing runs\n".encode()
        assert shown["controllers"] == []
        again = segmentstore("cluster", "start", folder, "--hosts", 3, "--controller", "--json")
        assert again.json()["tier1"] == shown["tier1"]
        assert len(again.json()["hosts"]) == 3
        for uri in again.json()["controllers"]:
            assert stream_by(uri) == [0, 1, 2]
        segmentstore("cluster", "stop", folder)
        fewer = segmentstore("cluster", "start", folder, "--hosts", 1, "--json")
        assert [(row["host"], row["running"]) for row in fewer.json()["hosts"]] == [("host-1", 4)]
    finally:
        segmentstore("cluster", "stop", folder)


@pytest.mark.parametrize(("bookies", "query"), [(1, "?ensemble=1"), (2, "?ensemble=2"), (3, "")])
def test_ledgers_are_on_as_many_bookies_as_there_are(
    tmp_path: Path, bookies: int, query: str
) -> None:
    folder = tmp_path / "bookkeeper"
    folder.mkdir()
    choose_addresses(folder, bookies, None)
    assert LocalHosts(tmp_path).url.partition("/segmentstore")[2] == query


def test_a_cluster_on_this_machine_keeps_what_is_fixed(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    refused = segmentstore("cluster", "stop", folder)
    assert (refused.code, "there are no local hosts" in refused.err) == (ExitCode.USAGE, True)
    folder.mkdir()
    (folder / "hosts.json").write_text('{"version": 1, "ports": [10001], "containers": 4}')
    refused = segmentstore("cluster", "start", folder, "--containers", 5)
    assert (refused.code, "the store has 4" in refused.err) == (ExitCode.USAGE, True)
    (folder / "hosts.json").write_text("{")
    assert "is damaged" in segmentstore("cluster", "stop", folder).err
