"""`segmentstore serve --processes` on a real cluster: hosts of one supervisor, with one gateway."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import segmentstore as program
from durablelog.bookkeeper.cluster.addresses import free_ports, port_is_free
from recovery.harness.clusters.controller_client import ControllerClient
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.controller.names import ScopedName
from tests.cli.shell import segmentstore, start
from tests.store.bookkeeper_world import name_in
from tests.store.harness import run
from tests.support.suites import slow

CONTAINERS = 2
LIMIT_S = 240


def children(process: int) -> dict[str, int]:
    """The processes that one has started: `java`, or a host by its id."""
    found = {}
    numbers = []
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            numbers += (thread / "children").read_text().split()
    for number in numbers:
        words = Path(f"/proc/{number}/cmdline").read_bytes().decode().split("\0")
        found[words[words.index("--host") + 1] if "--host" in words else "java"] = int(number)
    return found


def wait_for_ends(processes: list[int]) -> None:
    for process in processes:
        try:
            handle = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        try:
            assert select.select([handle], [], [], LIMIT_S)[0], process
        finally:
            os.close(handle)


class Supervised:
    """One `serve --processes 2` for a store of two containers."""

    def __init__(self, folder: Path, url: str) -> None:
        first, second, controller, other = self.ports = row_of_ports(folder, 4)
        self.addresses = f"127.0.0.1:{first},127.0.0.1:{second}"
        self.controllers = (f"127.0.0.1:{controller}", f"127.0.0.1:{other}")
        self.url = url
        self.folder = folder / "s"
        ports = ("--wire", f"127.0.0.1:{first}", "--controller", self.controllers[0])
        options = ("--create", "--host", "a", *ports, "--processes", 2)
        self.process = start("serve", self.folder, *options)
        self.read_lines(2)

    def read_lines(self, count: int) -> None:
        """Of hosts that have begun to serve."""
        assert self.process.stdout is not None
        for _ in range(count):
            line = self.process.stdout.readline()
            assert b"containers of its cluster" in line, self.process.communicate()

    def hosts(self) -> set[str]:
        """Those that serve a container each."""
        rows = segmentstore("cluster", "containers", self.url, "--json").json_lines()
        return {str(row["host"]) for row in rows if row["state"] == "running"}

    def wait_until_shared(self) -> None:
        end = time.monotonic() + LIMIT_S
        while (seen := self.hosts()) != {"a-1", "a-2"}:
            assert time.monotonic() < end, seen

    def create(self) -> None:
        """A segment in each container."""

        async def main() -> None:
            async with program.connect(self.addresses) as store:
                for number in range(CONTAINERS):
                    await store.create_segment(name_in(number, CONTAINERS))

        run(main())

    def check(self, data: bytes) -> None:
        """All of it is there, once."""
        for number in range(CONTAINERS):
            assert segmentstore("cat", self.folder / "a-1", name_in(number, CONTAINERS)).out == data

    def append(self, data: bytes) -> None:
        """To a segment of each container."""

        async def main() -> None:
            async with program.connect(self.addresses) as store:
                for number in range(CONTAINERS):
                    await store.append(name_in(number, CONTAINERS), data)

        run(main())

    def use_controllers(self, name: str) -> None:
        """Create a stream by one, and see it by the other."""

        async def main() -> None:
            for address in self.controllers:
                client = ControllerClient([address])
                try:
                    assert await client.make_stream(ScopedName("s", name), 2) == [0, 1]
                    port = (await client.address_of(ScopedName("s", name), 1))[1]
                    assert port in self.ports[:2]
                finally:
                    await client.close()

        run(main())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def row_of_ports(folder: Path, count: int) -> range:
    """Behind one another."""
    taken: list[int] = []
    while True:
        taken += free_ports(folder, 1, taken)
        row = range(taken[-1], taken[-1] + count)
        if all(map(port_is_free, row)):
            return row


@pytest.fixture
def supervised(
    tmp_path: Path, shared_bookkeeper: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Supervised]:
    shared_bookkeeper.start()
    url = f"bookkeeper://{shared_bookkeeper.zookeeper}/{tmp_path.name}?session_timeout_s=4"
    monkeypatch.setenv("SEGMENTSTORE_TIER1", url)
    monkeypatch.setenv("SEGMENTSTORE_CONTAINERS", str(CONTAINERS))
    supervised = Supervised(tmp_path, url)
    try:
        yield supervised
    finally:
        supervised.end()


@pytest.mark.timeout(600)
def test_a_killed_host_comes_back_and_a_signal_ends_all(supervised: Supervised) -> None:
    supervised.create()
    supervised.wait_until_shared()
    before = children(supervised.process.pid)
    assert sorted(before) == ["a-1", "a-2", "java"], "one gateway"
    assert children(before["a-1"]) == children(before["a-2"]) == {}
    # A terminal's Ctrl-C goes to a group: the supervisor alone is in it.
    groups = {os.getpgid(each) for each in (supervised.process.pid, *before.values())}
    assert len(groups) == 4
    supervised.append(b"1")
    supervised.use_controllers("before")

    os.kill(before["a-1"], signal.SIGKILL)
    supervised.append(b"2")
    supervised.read_lines(1)
    supervised.wait_until_shared()
    after = children(supervised.process.pid)
    assert after["a-1"] != before["a-1"]
    assert (after["a-2"], after["java"]) == (before["a-2"], before["java"])
    supervised.append(b"3")
    supervised.use_controllers("after")

    supervised.process.send_signal(signal.SIGTERM)
    _, err = supervised.process.communicate(timeout=LIMIT_S)
    assert supervised.process.returncode == ExitCode.DONE, err
    wait_for_ends([*after.values()])
    assert err.count(b"starting it again") == 1, err
    assert b"host a-1 ended with 137: starting it again" in err
    supervised.check(b"123")


@slow(25)
@pytest.mark.timeout(900)
def test_hosts_go_on_after_a_gateway_that_dies_or_hangs(supervised: Supervised) -> None:
    supervised.create()
    supervised.wait_until_shared()
    before = children(supervised.process.pid)
    os.kill(before["java"], signal.SIGKILL)
    supervised.append(b"1")
    after = children(supervised.process.pid)
    assert after["java"] != before["java"]
    os.kill(after["java"], signal.SIGSTOP)
    supervised.append(b"2")
    last = children(supervised.process.pid)
    assert last["java"] not in (before["java"], after["java"])
    assert (last["a-1"], last["a-2"]) == (before["a-1"], before["a-2"])
    supervised.process.send_signal(signal.SIGINT)
    _, err = supervised.process.communicate(timeout=LIMIT_S)
    assert supervised.process.returncode == ExitCode.DONE, err
    assert err.count(b"starting another") == 2, err
    supervised.check(b"12")


@slow(10)
def test_nothing_outlives_a_supervisor_that_is_killed(supervised: Supervised) -> None:
    running = children(supervised.process.pid)
    assert sorted(running) == ["a-1", "a-2", "java"]
    supervised.process.kill()
    wait_for_ends([*running.values()])
