"""A real cluster on this machine: it starts, is found again by its folder, survives what is done to
it, and leaves nothing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from durablelog.bookkeeper.cluster.addresses import choose_addresses, load_addresses, port_is_free
from durablelog.bookkeeper.cluster.local_cluster import LocalCluster
from durablelog.bookkeeper.cluster.service_process import ServiceProcess
from durablelog.bookkeeper.ledger_store import LedgerState, Replication
from durablelog.bookkeeper.zookeeper_nodes import end_session
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.server import ServerFailedError
from segmentstore.contracts.errors import ConfigError
from tests.contracts.ledger_store_contract import Results, append_all, entry, read_all
from tests.durablelog.bookkeeper.gateway_world import opened
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.support.suites import slow

SLEEPER = (
    sys.executable,
    "-c",
    "import sys; print('up', flush=True); sys.stdin.read(); import signal; signal.pause()",
)


@pytest.fixture
def cluster(shared_bookkeeper: BookKeeperCluster) -> BookKeeperCluster:
    """Whole again at the beginning of each test; no test needs what another one has written."""
    shared_bookkeeper.start()
    return shared_bookkeeper


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess("sleeper", tmp_path / "sleeper")
    process.launch(SLEEPER)
    yield process
    process.end(signal.SIGKILL)


def states(cluster: BookKeeperCluster) -> list[str]:
    return [service.state for service in LocalCluster(cluster.folder).status().services]


def test_all_of_it_serves_once_it_is_started(cluster: BookKeeperCluster) -> None:
    assert cluster.registered() == sorted(cluster.bookie_id(index) for index in range(3))
    status = LocalCluster(cluster.folder).status()
    assert status.running
    assert status.tier1 == cluster.url() == f"bookkeeper://{cluster.zookeeper}/segmentstore"
    assert len({service.process_id for service in status.services}) == 4
    assert all(service.bytes_on_disk > 0 for service in status.services)


@contextmanager
def session(cluster: BookKeeperCluster) -> Iterator[Any]:
    client = KazooClient(cluster.zookeeper)
    try:
        client.start(60)
        yield client
    finally:
        end_session(client)


@slow(8)
def test_a_restart_keeps_ports_and_data(cluster: BookKeeperCluster) -> None:
    before = cluster.zookeeper, [cluster.bookie_id(index) for index in range(3)]
    with session(cluster) as client:
        client.create("/kept", b"by ZooKeeper")
    cluster.stop()
    assert states(cluster) == ["stopped"] * 4
    cluster.start()
    assert (cluster.zookeeper, [cluster.bookie_id(index) for index in range(3)]) == before
    with session(cluster) as client:
        assert client.get("/kept")[0] == b"by ZooKeeper"


def test_a_killed_bookie_serves_again_as_soon_as_it_is_started(cluster: BookKeeperCluster) -> None:
    cluster.kill_bookie(1)
    assert not cluster.bookie_runs(1)
    assert cluster.bookie_id(1) in cluster.registered(), (
        "its session lives on: what was left is what start_bookie removes"
    )
    cluster.start_bookie(1)
    assert states(cluster) == ["running"] * 4


def test_a_bookie_that_is_not_there_does_not_count_as_one(cluster: BookKeeperCluster) -> None:
    cluster.kill_bookie(2, forget=True)
    assert cluster.bookie_id(2) not in cluster.registered()
    assert states(cluster) == ["running", "running", "running", "stopped"]
    cluster.pause_bookie(0)
    assert states(cluster) == ["running", "paused", "running", "stopped"]
    cluster.resume_bookie(0)
    cluster.start()
    assert states(cluster) == ["running"] * 4


@slow(8)
def test_a_wiped_bookie_comes_back_empty(cluster: BookKeeperCluster) -> None:
    for replaced in (False, True):
        cluster.wipe_bookie(0, replaced=replaced)
        left = [path.name for path in cluster.bookie_folder(0).glob("*/current/*")]
        assert set(left) == (set() if replaced else {"VERSION"})
        cluster.start_bookie(0)
    assert states(cluster) == ["running"] * 4


@slow(8)
def test_a_bookie_that_refuses_to_start_says_why_and_the_others_stay(
    cluster: BookKeeperCluster,
) -> None:
    cluster.wipe_bookie(2)
    for cookie in cluster.bookie_folder(2).glob("*/current/VERSION"):
        cookie.unlink()
    with pytest.raises(
        ServerFailedError, match=r"bookie 2 ended while starting(?s:.*)directories without a cookie"
    ):
        cluster.start_bookie(2)
    assert states(cluster) == ["running", "running", "running", "stopped"]
    cluster.wipe_bookie(2, replaced=True)


def test_a_bookie_whose_port_was_taken_is_not_started_elsewhere(cluster: BookKeeperCluster) -> None:
    cluster.stop_bookie(1)
    host, _, port = cluster.bookie_id(1).partition(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(ServerFailedError, match=f"port {port} .* is in use"),
    ):
        cluster.start_bookie(1)
    assert states(cluster) == ["running", "running", "stopped", "running"]


@slow(8)
def test_a_bookie_without_room_is_read_only(cluster: BookKeeperCluster) -> None:
    cluster.stop_bookie(0)
    cluster.start_bookie_read_only(0)
    assert states(cluster) == ["running", "read-only", "running", "running"]
    cluster.stop_bookie(0)


@slow(8)
def test_a_killed_zookeeper_comes_back_and_finds_the_bookies(cluster: BookKeeperCluster) -> None:
    cluster.kill_zookeeper()
    assert states(cluster) == ["stopped", "starting", "starting", "starting"]
    with pytest.raises(ServerFailedError, match="ZooKeeper does not run"):
        cluster.start_bookie(0)
    cluster.start_zookeeper()
    assert states(cluster) == ["running"] * 4


@slow(3)
def test_what_was_acknowledged_outlives_the_death_of_all_of_it_at_once(
    cluster: BookKeeperCluster,
) -> None:
    custom = {"application": b"somebody"}

    async def scenario() -> None:
        with kept_gateway():
            async with opened(cluster) as store:
                writer = await store.create(Replication(), custom)
                await append_all(
                    writer, Results(writer), [[entry(number, 1000)] for number in range(300)]
                )
                await asyncio.to_thread(cluster.kill)
                assert states(cluster) == ["stopped"] * 4
            await asyncio.to_thread(cluster.start)
            async with opened(cluster) as store:
                assert (await store.describe(writer.ledger_id)).state is LedgerState.OPEN
                ledger = await store.recover(writer.ledger_id)
                assert (ledger.last_entry, ledger.length, ledger.custom) == (299, 300_000, custom)
                found = await read_all(store, writer.ledger_id, 0, 299)
                assert found == [entry(number, 1000) for number in range(300)]

    asyncio.run(asyncio.wait_for(scenario(), 240))


def test_a_cluster_dies_with_the_program_that_watches_it(tmp_path: Path) -> None:
    # Its ZooKeeper alone: what holds for one of its processes holds for all.
    program = (
        "import os, pathlib, signal\n"
        "from durablelog.bookkeeper.cluster.addresses import choose_addresses\n"
        "from durablelog.bookkeeper.cluster.local_cluster import LocalCluster\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "choose_addresses(folder, 1, None)\n"
        "cluster = LocalCluster(folder, watched=True)\n"
        "cluster.start_zookeeper()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    zookeeper = LocalCluster(tmp_path).zookeeper_process()
    assert zookeeper.wait(60), "it did not end"


def test_a_process_outlives_the_program_that_launched_it(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from durablelog.bookkeeper.cluster.service_process import ServiceProcess\n"
        f"ServiceProcess('sleeper', pathlib.Path({str(tmp_path)!r})).launch({SLEEPER!r})\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    process = ServiceProcess("sleeper", tmp_path)
    process_id = process.process_id
    assert process_id is not None
    assert os.getsid(process_id) != os.getsid(0), "the end of a terminal would reach it"
    process.end(signal.SIGKILL)
    assert process.process_id is None


def test_a_process_is_alive_until_its_last_thread_has_ended(tmp_path: Path) -> None:
    program = (
        "import ctypes, pathlib, signal, socket, sys, threading\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "pathlib.Path(sys.argv[1]).write_text(str(listener.getsockname()[1]))\n"
        "threading.Thread(target=signal.pause).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process, told = ServiceProcess("half", tmp_path / "half"), tmp_path / "port"
    process.launch((sys.executable, "-c", program, str(told)))
    recorded = (process.folder / "process").read_text().split(" ", 1)[0]
    state = Path("/proc", recorded, "stat")
    try:
        while state.read_text().rpartition(")")[2].split()[0] != "Z":
            assert not process.wait(0.01), process.output()
        assert process.process_id == int(recorded)
        assert not port_is_free(int(told.read_text()))
    finally:
        process.end(signal.SIGKILL)
    assert not process.send(signal.SIGKILL), "it is still there"
    assert port_is_free(int(told.read_text())), "what it held is free when it has ended"


def test_a_process_that_got_a_recorded_id_later_is_never_signalled(
    sleeper: ServiceProcess,
) -> None:
    record = sleeper.folder / "process"
    true_record, process_id = record.read_text(), sleeper.process_id
    told, boot = true_record.splitlines()
    name, _, numbers = told.rpartition(")")
    words = numbers.split()
    began_earlier = [*words[:19], str(int(words[19]) - 1), *words[20:]]
    for stale in (
        f"{name}) {' '.join(began_earlier)}\n{boot}\n",
        f"{told}\nanother-boot\n",
        "",
        "damaged\n",
    ):
        record.write_text(stale)
        assert sleeper.process_id is None
        assert not sleeper.send(signal.SIGKILL)
        sleeper.end(signal.SIGKILL)
        record.write_text(true_record)
        assert sleeper.process_id == process_id is not None


def test_a_copy_of_the_folder_of_a_process_has_no_process(
    sleeper: ServiceProcess, tmp_path: Path
) -> None:
    process_id = sleeper.process_id
    assert process_id is not None
    shutil.copytree(sleeper.folder, tmp_path / "copy")
    copied = ServiceProcess("copy", tmp_path / "copy")
    assert copied.process_id is None
    assert not copied.send(signal.SIGKILL)
    copied.end(signal.SIGKILL)
    sleeper.folder.rename(tmp_path / "moved")
    assert ServiceProcess("moved", tmp_path / "moved").process_id == process_id
    (tmp_path / "moved").rename(sleeper.folder)


def test_a_process_with_a_full_disk_can_write_nothing_more(tmp_path: Path) -> None:
    program = (
        "try:\n"
        "    open('go').read()\n"  # waits until a writer has closed it
        "    open('data', 'wb', 0).write(b'x')\n"
        "except OSError:\n"
        "    open('refused', 'w').close()\n"
    )
    process = ServiceProcess("writer", tmp_path)
    os.mkfifo(tmp_path / "go")
    process.launch([sys.executable, "-c", program])
    process.limit_file_size(0)
    (tmp_path / "go").write_text("now")
    assert process.wait(60)
    assert (tmp_path / "refused").exists()
    assert (tmp_path / "data").stat().st_size == 0


def test_what_cannot_be_launched_says_why_in_its_output(tmp_path: Path) -> None:
    process = ServiceProcess("nothing", tmp_path / "nothing")
    process.launch([str(tmp_path / "no-such-program")])
    assert process.wait(60)
    assert "no-such-program" in process.output()


def test_ports_are_chosen_once_and_more_bookies_get_more(tmp_path: Path) -> None:
    first = choose_addresses(tmp_path, 2, None)
    assert load_addresses(tmp_path) == first == choose_addresses(tmp_path, 2, first)
    more = choose_addresses(tmp_path, 4, first)
    assert (more.zookeeper, more.bookies[:2]) == (first.zookeeper, first.bookies)
    assert len({more.zookeeper, *more.bookies}) == 5
    with pytest.raises(ConfigError, match="cannot have fewer"):
        choose_addresses(tmp_path, 3, more)
    with pytest.raises(ConfigError, match="from 1 to 9"):
        choose_addresses(tmp_path, 10, more)


def test_a_folder_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    assert load_addresses(tmp_path / "absent") is None
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-mother").write_text("dear")
    with pytest.raises(ConfigError, match="neither empty nor the folder of a local cluster"):
        LocalCluster(tmp_path / "letters")
    (tmp_path / "cluster.json").write_text('{"version": 1}')
    with pytest.raises(ConfigError, match="damaged"):
        LocalCluster(tmp_path)
    (tmp_path / "cluster.json").write_text('{"version": 7}')
    with pytest.raises(ConfigError, match="version 7"):
        LocalCluster(tmp_path)


@slow(6)
def test_all_data_are_in_the_folder_whatever_its_name_and_the_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java takes settings for Latin-1, and arguments for what the locale says."""
    monkeypatch.setenv("LC_ALL", "C")
    folder = tmp_path / "b\u00fccher \u65e5\u672c"
    with BookKeeperCluster(folder, 1) as running:
        assert [path.name for path in tmp_path.iterdir()] == [folder.name]
        assert (running.bookie_folder(0) / "journal" / "current").is_dir()


@pytest.mark.parametrize("name", ["a,b", "a\\b", "a\nb", "${b}", "\U0001f600", "\udcff"])
def test_a_folder_that_settings_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="use another folder"):
        BookKeeperCluster(tmp_path / name).start()
    assert not list(tmp_path.iterdir())
