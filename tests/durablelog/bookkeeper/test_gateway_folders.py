"""Folders of gateways: nothing of a gateway lies anywhere else, and leftovers of one are deleted by
the next.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from durablelog.bookkeeper.gateway import gateway_folders
from durablelog.bookkeeper.gateway.gateway_folders import make_folder
from durablelog.bookkeeper.gateway.shared_gateway import OwnGateway
from durablelog.bookkeeper.ledger_store import Replication
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.contracts.errors import ConfigError
from tests.contracts.ledger_store_contract import Results, append_all
from tests.durablelog.bookkeeper.gateway_world import ENDING_S, Watched, opened
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.support.suites import slow

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # That of the tests has too long a name for a socket in it.
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as place:
        monkeypatch.setattr("tempfile.tempdir", place)
        yield Path(place)


@slow(5)
def test_what_java_unpacks_lies_in_the_gateways_folder_and_goes_with_it(
    tmp_path_factory: pytest.TempPathFactory, temporary: Path
) -> None:
    async def scenario(cluster: BookKeeperCluster, gateway: OwnGateway) -> None:
        async with opened(cluster) as store:
            writer = await store.create(Replication(), {})
            await append_all(writer, Results(writer), [[b"its sum is made by native code"]])
            (unpacked,) = Path(gateway.data_socket).parent.glob("tmp/native*/libcirce*")
            assert unpacked.is_relative_to(temporary)

    with BookKeeperCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        with kept_gateway() as gateway:
            asyncio.run(asyncio.wait_for(scenario(cluster, gateway), 240))
        assert list(temporary.glob("segmentstore-gateway-*")) == []


def test_a_gateway_killed_with_its_parent_is_cleared_up_by_the_next_folder(temporary: Path) -> None:
    program = (
        "import signal\n"
        "from durablelog.bookkeeper.gateway.gateway_process import GatewayProcess\n"
        "gateway = GatewayProcess('token')\n"
        "print(gateway.pid, gateway.data_socket, flush=True)\n"
        "signal.pause()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert parent.stdout is not None
    try:
        with parent.stdout:
            pid, path = parent.stdout.readline().split()
        folder = Path(path).parent
        make_folder()
        assert folder.exists(), "its parent is alive"
        gateway = Watched(int(pid))
        # In this order neither of the two has time to clear up.
        os.kill(int(pid), signal.SIGSTOP)
        parent.kill()
        os.kill(int(pid), signal.SIGKILL)
        assert gateway.ends()
    finally:
        parent.kill()
        parent.wait(ENDING_S)
    assert folder.exists()
    mine = make_folder()
    assert not folder.exists()
    assert mine.exists()


def test_folders_of_others_are_let_be(temporary: Path) -> None:
    ours = make_folder()
    boot, space, process, start, drawn = ours.name.removeprefix("segmentstore-gateway-").split("-")
    let_be = [
        temporary / f"segmentstore-gateway-{boot}-{int(space, 16) ^ 1:x}-{process}-0-{drawn}",
        temporary / f"segmentstore-gateway-{boot}{space}-{process}-0-{drawn}",
        temporary / f"segmentstore-gateway-{drawn}",
        temporary / "segmentstore-gateway-of-somebody",
    ]
    gone = [
        temporary / f"segmentstore-gateway-{boot}-{space}-{process}-{int(start, 16) + 1:x}-{drawn}",
        temporary / f"segmentstore-gateway-{boot}-{space}-{1 << 30:x}-{start}-{drawn}",
    ]
    for folder in (*let_be, *gone):
        folder.mkdir()
    other = make_folder()
    assert sorted(temporary.iterdir()) == sorted([ours, other, *let_be])


LATER_S = 1 << 40
"""Later than anything that a test makes."""


def mounted(place: Path, kind: str) -> str:
    """A line of the system's on the file system that a place is on."""
    device = place.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    return f"36 35 {number} / {place} rw,noatime master:1 - {kind} /dev/root rw\n"


@pytest.mark.parametrize(
    ("kinds", "booted_s", "swept"),
    [
        (["ext4"], LATER_S, True),
        (["tmpfs", "tmpfs"], LATER_S, True),
        (["ext4"], 1_000_000_000, False),
        (["ext4"], None, False),
        (["nfs4"], LATER_S, False),
        (["ext4", "9p"], LATER_S, False),
        ([], LATER_S, False),
    ],
)
def test_what_an_earlier_boot_left_is_swept_where_it_can_be_of_no_other_host(
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    kinds: list[str],
    booted_s: int | None,
    swept: bool,
) -> None:
    proc = temporary / "proc"
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to("/proc/self/ns/pid")
    (proc / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    text = "".join(mounted(temporary, kind) for kind in kinds)
    (proc / "self/mountinfo").write_text(text, encoding="utf-8")
    (proc / "sys/kernel/random").mkdir(parents=True)
    if booted_s is not None:
        (proc / "stat").write_text(f"cpu 1 2\nbtime {booted_s}\n", encoding="utf-8")
    boot = proc / "sys/kernel/random/boot_id"
    monkeypatch.setattr(gateway_folders, "_PROC", proc)
    boot.write_text("before the power was cut\n", encoding="utf-8")
    left = make_folder()
    # A process of the same number and start is another one.
    boot.write_text("after it\n", encoding="utf-8")
    mine = make_folder()
    assert mine.exists()
    assert left.exists() is not swept


def test_folders_of_another_host_are_let_be_though_all_its_numbers_are_ours(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def host(folder: str, boot: str, process: int) -> Path:
        """What it reports its one process.

        Its namespace of numbers is the first one, the same one on all hosts.
        """
        proc = temporary / folder
        (proc / str(process)).mkdir(parents=True)
        (proc / str(process) / "stat").write_text(
            "1 (python) " + "0 " * 19 + "77 ", encoding="utf-8"
        )
        (proc / "self/ns").mkdir(parents=True)
        (proc / "self/ns/pid").symlink_to("/proc/self/ns/pid")
        (proc / "self/mountinfo").write_text(mounted(temporary, "nfs4"), encoding="utf-8")
        (proc / "sys/kernel/random").mkdir(parents=True)
        (proc / "sys/kernel/random/boot_id").write_text(f"{boot}\n", encoding="utf-8")
        return proc

    monkeypatch.setattr(gateway_folders, "_PROC", host("1", "one", os.getpid()))
    theirs = make_folder()
    monkeypatch.setattr("os.getpid", lambda: 77)
    monkeypatch.setattr(gateway_folders, "_PROC", host("2", "two", 77))
    make_folder()
    assert theirs.exists()
    # As the next process of the first host, where the one that made it has ended.
    monkeypatch.setattr(gateway_folders, "_PROC", host("3", "one", 77))
    make_folder()
    assert not theirs.exists()


def test_a_name_that_would_be_too_long_for_a_socket_in_it_is_a_shorter_one(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = temporary / ("x" * (65 - len(str(temporary))))
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    folder = make_folder()
    assert folder.name.count("-") == 2
    assert len(str(folder / "data")) <= 107


def test_a_temporary_folder_whose_name_leaves_no_room_for_a_socket_is_named(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = 107 - len("/segmentstore-gateway-") - 8 - len("/data")

    def use(bytes_of_name: int) -> None:
        place = temporary / ("x" * (bytes_of_name - len(str(temporary)) - 1))
        place.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(place))

    use(longest)
    with socket.socket(socket.AF_UNIX) as fits:
        fits.bind(str(make_folder() / "data"))
    use(longest + 1)
    with pytest.raises(ConfigError, match=f"at most {longest} bytes. Set TMPDIR"):
        make_folder()


def test_where_the_system_reports_nothing_of_processes_nothing_is_swept(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_folders, "_PROC", temporary / "proc")
    first, second = make_folder(), make_folder()
    assert first.exists()
    assert second.name.count("-") == 2
