"""The servers of the tests: they come up, say why if not, keep what they keep, and end with the
process that started them.
"""

from __future__ import annotations

import itertools
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from recovery.harness.services import installing
from recovery.harness.services.installing import ServiceMissingError, install, services_folder
from recovery.harness.services.s3_servers import Moto, S3Proxy, S3Server, VersityGateway
from recovery.harness.services.server import (
    HOST,
    Server,
    ServerFailedError,
    StorageServer,
    free_port,
    python_module,
)
from recovery.harness.services.sftp_server import Sftp
from recovery.harness.services.shared import shared_server
from tests.support.processes import is_alive
from tests.support.suites import share, slow

KINDS: list[type[StorageServer]] = [
    Sftp,
    S3Proxy,
    Moto,
    *([VersityGateway] if shutil.which("go") else []),
]
LISTENER = (
    "import socket, sys, subprocess\n"
    "child = subprocess.Popen(['sleep', '1000'], start_new_session=sys.argv[2] == 'apart')\n"
    "print('child', child.pid, flush=True)\n"
    "taken = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
    "while True: taken.accept()[0].close()\n"
)


class Listener(Server):
    """As small as a server can be; it starts a process of its own, like sshd for a session."""

    name = "the listener"
    children = "apart"

    def _command(self, port: int) -> Sequence[str]:
        return [sys.executable, "-c", LISTENER, str(port), self.children]


class Family(Listener):
    children = "together"


class Dying(Listener):
    def _command(self, port: int) -> Sequence[str]:
        return ["/bin/sh", "-c", "echo 'no such thing as a free lunch' >&2; exit 3"]


def child_of(server: Server) -> int:
    return int(server.output().split()[-1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


@pytest.mark.parametrize("kind", share(KINDS, 4, 3))
def test_a_server_is_at_the_same_place_after_a_crash_with_what_it_keeps(
    kind: type[StorageServer], tmp_path: Path
) -> None:
    with kind(tmp_path / "server") as server:
        place = server.location("bucket", "prefix")
        leave_something(server)
        server.kill()
        assert not server.running
        assert not listens(server.port)
        server.start()
        assert server.location("bucket", "prefix") == place
        assert finds_something(server) == server.keeps
    assert not listens(server.port)
    server.stop()


def leave_something(server: StorageServer) -> None:
    if isinstance(server, S3Server):
        server.make_bucket("bucket")
        server.make_bucket("bucket")
        client = server.client()
        client.put_object(Bucket="bucket", Key="x", Body=b"1")
        client.close()
    else:
        assert isinstance(server, Sftp)
        (server.root / "x").write_bytes(b"1")


def finds_something(server: StorageServer) -> bool:
    if not isinstance(server, S3Server):
        assert isinstance(server, Sftp)
        return (server.root / "x").exists()
    client = server.client()
    try:
        return any(each["Name"] == "bucket" for each in client.list_buckets()["Buckets"])
    finally:
        client.close()


def test_a_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    with pytest.raises(
        ServerFailedError, match="the listener ended while starting:\nno such thing as a free lunch"
    ):
        Dying(tmp_path).start()


def test_a_port_that_was_lost_to_another_process_is_given_up_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        offered = [other.getsockname()[1], free_port()]
        monkeypatch.setattr("recovery.harness.services.server.free_port", lambda: offered.pop(0))
        with Family(tmp_path) as server:
            assert server.port != other.getsockname()[1]
            assert listens(server.port)


def test_what_a_server_started_ends_with_it(tmp_path: Path) -> None:
    for kind, end in itertools.product((Listener, Family), (Listener.stop, Listener.kill)):
        server = kind(tmp_path)
        server.start()
        child = child_of(server)
        assert is_alive(child)
        end(server)
        assert not listens(server.port)
        wait_for_the_end_of(child)


def test_a_server_ends_when_the_process_dies_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.harness.test_services import Family, child_of\n"
        "server = Family(Path(sys.argv[1]))\n"
        "server.start()\n"
        "print(server._process.pid, child_of(server), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        processes = [int(word) for word in parent.stdout.readline().split()]
        assert len(processes) == 2
        assert all(is_alive(each) for each in processes)
        parent.send_signal(signal.SIGKILL)
    for process in processes:
        wait_for_the_end_of(process)


def wait_for_the_end_of(process: int) -> None:
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    with os.fdopen(handle) as file:
        assert select.select([file], [], [], 30)[0], f"process {process} goes on"


def test_one_server_serves_a_whole_process() -> None:
    first = shared_server(Sftp)
    assert shared_server(Sftp) is first
    assert first.running


@slow(15)
def test_an_installation_that_is_whole_is_not_touched() -> None:
    install(lambda _: None)  # sources of the gateway may have changed
    before = sorted(services_folder().iterdir())
    said: list[str] = []
    install(said.append)
    assert [line for line in said if "there is no Go" not in line] == []
    assert sorted(services_folder().iterdir()) == before


def test_a_missing_piece_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(installing.FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(ServiceMissingError, match="S3Proxy is not installed: run `make services`"):
        S3Proxy(tmp_path / "server").start()
    monkeypatch.setattr(installing, "_SSHD_PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceMissingError, match=r"java is needed .* default-jdk-headless"):
        S3Proxy(tmp_path / "server").start()
    with pytest.raises(ServiceMissingError, match=r"sshd is needed .* openssh-server"):
        Sftp(tmp_path / "server").start()
    with pytest.raises(
        ServiceMissingError, match="VersityGW is built with Go, which was not found"
    ):
        VersityGateway(tmp_path / "server").start()
    assert VersityGateway.available() is False


def test_the_command_installs_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    ended = subprocess.run(python_module("recovery.harness.services", "uninstall"), check=False)
    assert ended.returncode == 2
    assert "usage" in capfd.readouterr().err
