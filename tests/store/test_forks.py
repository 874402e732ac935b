"""Forked children: a store is its owner's alone; a child keeps nothing locked, waits for nothing,
breaks nothing.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import segmentstore.blocking
from recovery.harness.services.server import free_port
from segmentstore import ForkedStoreError, StoreInUseError
from segmentstore.contracts import forks
from segmentstore.contracts.disk import OsDisk
from segmentstore.contracts.local_socket import STORE_SOCKET_NAME

ROOT = Path(__file__).resolve().parents[2]

OPEN_AND_FORK = """
import asyncio, gc, multiprocessing, os, signal, sys, uuid
import segmentstore, segmentstore.blocking
folder, options = sys.argv[1], eval(sys.argv[2])

def say(text):
    os.write(1, (text + "\\n").encode())

def child():
    say("child")
    os.read(int(sys.argv[3]), 1)  # until the test lets it go
    os._exit(0)
"""

BLOCKING = """
store = segmentstore.blocking.open(folder, **options)
store.create_segment("x")
if not os.fork():
    child()
sys.stdin.readline()
store.close()
say("closed")
sys.stdin.read()
"""

ASYNCIO = """
async def main():
    store = await segmentstore.open(folder, **options)
    await store.create_segment("x")
    if not os.fork():
        child()
    await asyncio.to_thread(sys.stdin.readline)
    await store.close()
    say("closed")
asyncio.run(main())
sys.stdin.read()
"""


@contextmanager
def running(program: str, folder: Path, **options: object) -> Iterator[subprocess.Popen[str]]:
    """The program, which forks a child that runs until this is left."""
    ours, childs = socket.socketpair()
    number = childs.fileno()
    arguments = [
        sys.executable,
        "-c",
        OPEN_AND_FORK + program,
        str(folder),
        repr(options),
        str(number),
    ]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(
            arguments, stdin=pipe, stdout=pipe, text=True, bufsize=1, cwd=ROOT, pass_fds=(number,)
        ) as process,
        ours,
        childs,
    ):
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def ran(program: str, folder: Path, **options: object) -> list[str]:
    """What the program has said; it, and its child, must end by themselves."""
    arguments = [sys.executable, "-c", OPEN_AND_FORK + program, str(folder), repr(options)]
    ended = subprocess.run(
        arguments, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("program", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
class TestLocks:
    def test_closed_by_the_owner_it_can_be_opened_while_the_child_runs(
        self, tmp_path: Path, program: str
    ) -> None:
        with running(program, tmp_path / "s") as owner:
            assert said(owner) == "child"
            with pytest.raises(StoreInUseError):
                segmentstore.blocking.open(tmp_path / "s")
            print(file=owner.stdin)
            assert said(owner) == "closed"
            with segmentstore.blocking.open(tmp_path / "s") as store:
                assert store.get_info("x").length == 0

    def test_the_owner_killed_it_can_be_opened_while_the_child_runs(
        self, tmp_path: Path, program: str
    ) -> None:
        with running(program, tmp_path / "s") as owner:
            assert said(owner) == "child"
            owner.kill()
            owner.wait(60)
            with segmentstore.blocking.open(tmp_path / "s") as store:
                assert store.get_info("x").length == 0


def test_ports_and_sockets_are_free_when_the_owner_is_killed_and_the_child_runs(
    tmp_path: Path,
) -> None:
    ports: dict[str, Any] = {"metrics_port": free_port(), "wire_port": free_port()}
    with running(BLOCKING, tmp_path / "s", **ports) as owner:
        assert said(owner) == "child"
        owner.kill()
        owner.wait(60)
        with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
            client.connect(str(tmp_path / "s" / STORE_SOCKET_NAME))
        with segmentstore.blocking.open(tmp_path / "s", **ports) as store:
            assert store.get_info("x").length == 0


USE_BLOCKING = """
store = segmentstore.blocking.open(folder)
store.create_segment("x")
store.append("x", b"before")
reader, writer = store.reader("x"), store.writer("x", uuid.UUID(int=1))
calls = [
    lambda: store.append("x", b"y"), lambda: store.append_nowait("x", b"y").result(),
    lambda: store.read("x", 0, 1),
    lambda: store.append_batch("x", [b"y"]), lambda: store.writer("x", uuid.UUID(int=2)),
    lambda: store.reader("x"),
    lambda: store.create_segment("y"), lambda: store.get_info("x"), lambda: store.list_segments(),
    lambda: store.seal("x"), lambda: store.truncate("x", 1), lambda: store.merge("x", "y"),
    lambda: store.delete("x"),
    lambda: store.update_attributes("x", []), lambda: store.get_attributes("x"), store.flush,
    lambda: store.iterate_attributes("x"),
    store.checkpoint,
    store.collect_garbage, store.export_catalog, store.process_mailbox, store.stats,
    store.metrics_text,
    lambda: next(reader), lambda: writer.append(b"y"), lambda: writer.append_nowait(b"y").result(),
]
owner = os.getpid()
pid = os.fork()
if not pid:
    for number, call in enumerate(calls):
        try:
            call()
        except segmentstore.ForkedStoreError as error:
            assert error.process_id == owner
        else:
            say(f"call-{number}-was-answered")
    with store:
        pass
    del store, reader, writer, calls, call
    gc.collect()
    sys.exit(7)
say(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
store.append("x", b", after")
store.flush()
say(str(b"".join(store.reader("x")) == b"before, after"))
try:
    segmentstore.blocking.open(folder)
except segmentstore.StoreInUseError:
    say("locked")
store.close()
"""

USE_ASYNCIO = """
async def main():
    store = await segmentstore.open(folder)
    await store.create_segment("x")
    await store.append("x", b"before")
    reader, writer = store.reader("x"), store.writer("x", uuid.UUID(int=1))
    blocks = store.block_writer("x", uuid.UUID(int=3), uuid.UUID(int=4))
    too_large = bytes(store.config.append_bytes_max + 1)
    calls = [
        lambda: store.append("x", b"y"), lambda: store.append_batch("x", [b"y"]),
        lambda: store.read("x", 0, 1),
        lambda: store.writer("x", uuid.UUID(int=2)), lambda: store.reader("x"),
        lambda: store.create_segment("y"),
        lambda: store.get_info("x"), lambda: anext(store.list_segments()), lambda: store.seal("x"),
        lambda: store.truncate("x", 1), lambda: store.merge("x", "y"), lambda: store.delete("x"),
        lambda: store.update_attributes("x", []), lambda: store.get_attributes("x"), store.flush,
        lambda: store.iterate_attributes("x"),
        store.checkpoint,
        store.collect_garbage, store.export_catalog, store.process_mailbox, store.stats,
        store.metrics_text,
        lambda: anext(reader), lambda: writer.append(b"y"), lambda: writer.append(too_large),
        lambda: blocks.append(b"y", 1, 0, 1), lambda: blocks.append(too_large, 1, 0, 1),
        blocks.last_number,
    ]

    async def use():
        for number, call in enumerate(calls):
            try:
                await call()
            except segmentstore.SegmentStoreError as error:
                if type(error) is segmentstore.ForkedStoreError:
                    continue
            say(f"call-{number}-was-answered")
        await store.close()

    pid = os.fork()
    if not pid:
        for append in (
            lambda: store.append("x", b"y"), lambda: writer.append(too_large),
            lambda: blocks.append(too_large, 1, 0, 1),
        ):
            try:
                append()
            except segmentstore.SegmentStoreError as error:
                say(type(error).__name__)  # at once: no loop runs here
        asyncio.run(use())
        sys.stdout.flush()
        os._exit(7)
    say(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    await store.append("x", b", after")
    await store.flush()
    say(str(await store.read("x", 0, 100) == b"before, after"))
    await store.close()
asyncio.run(main())
"""


class TestUse:
    def test_in_a_child_every_call_of_the_blocking_api_is_refused_and_its_end_disturbs_no_parent(
        self, tmp_path: Path
    ) -> None:
        assert ran(USE_BLOCKING, tmp_path / "s") == ["7", "True", "locked"]

    def test_in_a_child_every_call_of_the_asyncio_api_is_refused(self, tmp_path: Path) -> None:
        assert ran(USE_ASYNCIO, tmp_path / "s") == [
            *["ForkedStoreError"] * 3,
            "7",
            "True",
        ]

    def test_a_worker_of_multiprocessing_gets_the_error_and_can_open_a_store_of_its_own(
        self, tmp_path: Path
    ) -> None:
        program = """
def work(store):
    try:
        store.append("x", b"y")
    except segmentstore.ForkedStoreError:
        say("refused")
    with segmentstore.blocking.open(folder + "-own", cache_bytes_max=1 << 20,
    tail_bytes_max=1 << 16) as own:
        own.create_segment("x")
        for _ in range(40):
            own.append("x", bytes(100_000))
        own.flush()
        say(str(own.read("x", 0, 1 << 20)[:1] == bytes(1)))

with segmentstore.blocking.open(folder, cache_bytes_max=1 << 20, tail_bytes_max=1 << 16) as store:
    store.create_segment("x")
    for _ in range(40):
        store.append("x", bytes(100_000))
    worker = multiprocessing.get_context("fork").Process(target=work, args=(store,))
    worker.start()
    worker.join()
    say(str(worker.exitcode))
"""
        assert ran(program, tmp_path / "s") == ["refused", "True", "0"]


def test_a_child_process_that_runs_another_program_inherits_nothing(tmp_path: Path) -> None:
    with segmentstore.blocking.open(tmp_path / "s"):
        listing = (
            "import os; print(*(os.path.realpath(f'/proc/self/fd/{n}') for n in "
            "os.listdir('/proc/self/fd')))"
        )
        inherited = subprocess.run(
            [sys.executable, "-c", listing],
            capture_output=True,
            text=True,
            check=True,
            close_fds=False,
            timeout=60,
        ).stdout
        assert str(tmp_path) not in inherited


def test_a_lock_that_is_closed_is_free_whoever_has_a_copy_of_its_descriptor(tmp_path: Path) -> None:
    lock = OsDisk().lock(str(tmp_path / "lock"))
    copy = os.dup(lock._descriptor)
    try:
        lock.close()
        OsDisk().lock(str(tmp_path / "lock")).close()
    finally:
        os.close(copy)


def test_what_was_created_before_a_fork_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    birth = forks.Birth()
    birth.check()
    monkeypatch.setattr(forks, "generation", forks.generation + 1)
    assert not birth.here
    with pytest.raises(ForkedStoreError) as caught:
        birth.check()
    assert caught.value.process_id == os.getpid()
