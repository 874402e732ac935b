"""`segmentstore serve`: ready when it says so, ended by a signal, and killed without losing or
doubling anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from recovery.harness.services.server import free_port
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.contracts.local_socket import STORE_SOCKET_NAME
from segmentstore.contracts.runtime import Runtime
from tests.cli.shell import ROOT, segmentstore, start
from tests.server.wire_client import connected
from tests.store.harness import run
from tests.support.suites import size, sized
from tier2.spark.common.store_client import StoreClient, StoreNotServedError
from tier2.spark.sink.epoch_commit import WriteIdentity, commit_epoch, write_partition, writer_id_of
from tier2.spark.sink.rows import RowLayout

WRITER = UUID(int=1)

EPOCHS = size("SERVE_KILL_EPOCHS", 4, 15)
EVENTS = 130 * EPOCHS
"""Written while `serve` is killed."""


def ready(process: subprocess.Popen[bytes]) -> bytes:
    """Its first line: it serves."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return line


def full_pipe() -> tuple[int, int]:
    """A pipe that has no reader and takes no byte more: its two ends."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * select.PIPE_BUF)
    os.set_blocking(writing, True)
    return reading, writing


@contextmanager
def serving(store: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    process = start("serve", store, *options)
    try:
        ready(process)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_serves_the_ports_it_is_given_and_stops_in_order(tmp_path: Path) -> None:
    wire, controller = free_port(), free_port()
    process = start(
        "serve",
        tmp_path / "s",
        "--create",
        "--wire",
        f"127.0.0.1:{wire}",
        "--controller",
        f"127.0.0.1:{controller}",
    )
    try:
        line = ready(process).decode()
        assert f", wire at 127.0.0.1:{wire}, controller at 127.0.0.1:{controller}" in line

        async def main() -> None:
            async with connected(wire) as client:
                await client.create("a/b/0.#epoch.0")
                await client.set_up("a/b/0.#epoch.0")
                client.append(1, b"event")
                await client.acked(1)
                process.send_signal(signal.SIGTERM)
                assert await client.take() is None

        run(main())
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (ExitCode.DONE, b"")
    finally:
        process.kill()
        process.communicate()


def test_a_signal_that_comes_with_its_first_line_is_heeded(tmp_path: Path) -> None:
    for _ in range(3):
        process = start("serve", tmp_path / "s", "--create")
        try:
            ready(process)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=120)
            assert (process.returncode, err) == (ExitCode.DONE, b"")
        finally:
            process.kill()
            process.communicate()


def test_the_log_waits_for_no_reader_of_stderr(tmp_path: Path) -> None:
    port = free_port()
    reading, writing = full_pipe()
    command = ("serve", str(tmp_path / "s"), "--create", "--wire", f"127.0.0.1:{port}")
    process = subprocess.Popen(
        [sys.executable, "-m", "segmentstore", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=writing,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        for number in range(3):
            with socket.create_connection(("127.0.0.1", port)) as other:
                # No frame; it logs that, and closes the connection.
                other.sendall(bytes([0, 0, 0, 200 + number]) * 4)
                assert other.recv(1) == b""
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == ExitCode.DONE
        os.set_blocking(reading, False)
        assert os.read(reading, select.PIPE_BUF) == b"x" * select.PIPE_BUF
    finally:
        process.kill()
        process.communicate()
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("address", ["127.0.0.1", ":1", "127.0.0.1:0", "127.0.0.1:65536", "a:b"])
def test_an_address_that_is_none_is_a_usage_error(tmp_path: Path, address: str) -> None:
    refused = segmentstore("serve", tmp_path / "s", "--create", "--wire", address)
    assert refused.code == ExitCode.USAGE
    assert "is not HOST:PORT" in refused.err
    assert not (tmp_path / "s").exists()


@pytest.mark.usefixtures("_terminal")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_serves_until_stopped_and_closes_in_order(tmp_path: Path, number: signal.Signals) -> None:
    process = start("serve", tmp_path / "s", "--create", "--json")
    try:
        said = json.loads(ready(process))
        assert said == {
            "store": str(tmp_path / "s"),
            "socket": STORE_SOCKET_NAME,
            "containers": 1,
            "wire": None,
            "controller": None,
        }

        async def main() -> None:
            async with StoreClient(str(tmp_path / "s")) as client:
                await client.create("x")
                assert await client.append("x", WRITER, 0, b"data") == 0

        run(main())
        busy = segmentstore("ls", tmp_path / "s", "--json")
        assert busy.code == ExitCode.DONE
        assert "going through it" in busy.err
        assert [each["name"] for each in busy.json_lines()] == ["x"]
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (ExitCode.DONE, b"")
    finally:
        process.kill()
        process.communicate()
    assert not (tmp_path / "s" / STORE_SOCKET_NAME).exists()
    assert segmentstore("cat", tmp_path / "s", "x").out == b"data"


def test_a_store_that_is_not_there_is_not_created_by_serving(tmp_path: Path) -> None:
    said = segmentstore("serve", tmp_path / "s")
    assert (said.code, said.err) == (
        ExitCode.REFUSED,
        f"segmentstore: {tmp_path / 's'} is not a segment store: there is no such folder\n",
    )


def test_one_store_is_served_once(tmp_path: Path) -> None:
    with serving(tmp_path / "s", "--create"):
        assert segmentstore("serve", tmp_path / "s").code == ExitCode.IN_USE
        assert (tmp_path / "s" / STORE_SOCKET_NAME).exists()


@pytest.mark.parametrize("containers", ["1", "4"])
def test_ends_with_an_error_when_a_container_stops_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, containers: str
) -> None:
    """Of four, three could go on: the clients of the other one would connect for ever."""
    monkeypatch.setenv("SEGMENTSTORE_CONTAINERS", containers)
    with serving(tmp_path / "s", "--create") as process:
        # From now on no file of the process may grow: its log cannot be written.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))

        async def main() -> None:
            async with StoreClient(str(tmp_path / "s"), timeout_s=1) as client:
                await client.create("x")

        with pytest.raises(StoreNotServedError):
            run(main())
        _, err = process.communicate(timeout=120)
        assert process.returncode == ExitCode.UNAVAILABLE
        assert re.search(rb"container \d is stopped", err)


@sized(20)
def test_killed_again_and_again_in_the_middle_of_writing_all_is_committed_once(
    tmp_path: Path,
) -> None:
    """A pipeline of events and epochs with staged rows, SIGKILL, a new process at the same
    folder.
    """
    folder = tmp_path / "s"
    identity = writer_id_of("a query")
    layout = RowLayout("payload", has_segment_column=False, segment="rows", framing="lines")
    environment = {**os.environ, "SEGMENTSTORE_APPEND_BYTES_MAX": "2000"}

    def serve() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "segmentstore", "serve", str(folder), "--create"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        ready(process)
        return process

    async def events() -> None:
        async with StoreClient(str(folder)) as client:
            await client.create("events")
            for number in range(EVENTS):
                await client.send("events", WRITER, number, b"%d\n" % number)
                if not number % 100:
                    await asyncio.sleep(0.02)
            await client.settle()

    async def epochs() -> None:
        async with StoreClient(str(folder)) as client:
            for epoch in range(EPOCHS):
                who = WriteIdentity(identity, epoch, lasting=True)
                for attempt in range(2):
                    reports = [
                        await write_partition(
                            client,
                            who,
                            layout,
                            [rows(epoch, partition)],
                            runtime=Runtime(),
                            partition=partition,
                            attempt=attempt,
                            inline_bytes=300 * (epoch % 2),
                        )
                        for partition in range(3)
                    ]
                    await commit_epoch(client, who, reports, runtime=Runtime())

    async def main() -> None:
        rng = random.Random(3)
        loop = asyncio.get_running_loop()
        process = await loop.run_in_executor(None, serve)
        try:
            writing = [asyncio.ensure_future(events()), asyncio.ensure_future(epochs())]
            kills = 0
            while not all(task.done() for task in writing):
                # Soon at first, or a fast machine is done before the second; later later, or a slow
                # one never is.
                await asyncio.sleep(rng.uniform(0.05, 0.4) + 0.1 * kills)
                process.kill()
                process.communicate()
                kills += 1
                process = await loop.run_in_executor(None, serve)
            await asyncio.gather(*writing)
            assert kills >= 2
        finally:
            process.kill()
            process.communicate()

    asyncio.run(main())
    assert segmentstore("cat", folder, "events").out == b"".join(
        b"%d\n" % number for number in range(EVENTS)
    )
    expected = [
        value
        for epoch in range(EPOCHS)
        for partition in range(3)
        for value in rows(epoch, partition).column(0).to_pylist()
    ]
    assert segmentstore("cat", folder, "rows").out.decode().splitlines() == expected
    assert {row["name"] for row in segmentstore("ls", folder, "--json").json_lines()} == {
        "events",
        "rows",
    }


def rows(epoch: int, partition: int) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array([f"{epoch}.{partition}.{number}" for number in range(100)])], names=["payload"]
    )


# A signal to itself when the opening comes to a file, in a thread of the engine's.
_SIGNAL_AT_FILE = """
import os, signal, sys
left = [{name!r}]
def hook(event, arguments):
    if left and event == "open" and left[0] in str(arguments[0]):
        left.clear()
        os.kill(os.getpid(), {number})
sys.addaudithook(hook)
sys.argv = ["segmentstore", "serve", {store!r}, "--create"]
from segmentstore.cli import main
main()
"""


@pytest.mark.usefixtures("_terminal")
@pytest.mark.parametrize(
    ("number", "name", "code"),
    [
        (signal.SIGTERM, "/log/0/LOCK", ExitCode.DONE),
        (signal.SIGTERM, "/losses.json", ExitCode.DONE),
        (signal.SIGHUP, "/log/0/LOCK", ExitCode.DONE),
        (signal.SIGINT, "/log/0/LOCK", ExitCode.INTERRUPTED),
    ],
)
def test_a_signal_while_it_opens_ends_it_in_order(
    tmp_path: Path, number: signal.Signals, name: str, code: ExitCode
) -> None:
    location = tmp_path / "s"
    program = _SIGNAL_AT_FILE.format(name=name, number=int(number), store=str(location))
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, b"", b"")
    assert not (location / STORE_SOCKET_NAME).exists()
    with serving(location, "--create"):
        pass
