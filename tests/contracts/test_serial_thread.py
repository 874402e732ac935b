"""SerialThread: the order of what it is given, its errors, and its end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from recovery.harness.simulation.virtual_loop import InlineExecutor
from segmentstore.contracts.errors import ForkedStoreError, TierUnavailableError
from segmentstore.contracts.runtime import thread_executor
from segmentstore.contracts.serial_thread import SerialThread, post


def test_one_thread_is_serial_and_more_are_a_pool() -> None:
    assert isinstance(thread_executor("serial", 1), SerialThread)
    assert isinstance(thread_executor("pool", 2), ThreadPoolExecutor)


def test_what_is_posted_and_submitted_is_done_in_its_order_on_one_thread() -> None:
    executor, done = SerialThread("order"), list[tuple[int, str]]()

    def note(number: int) -> int:
        done.append((number, threading.current_thread().name))
        return -number

    futures = []
    for number in range(0, 100, 2):
        executor.post(note, number)
        futures.append(executor.submit(note, number + 1))
    assert [future.result() for future in futures] == [-number for number in range(1, 100, 2)]
    assert done == [(number, "order_0") for number in range(100)]
    executor.shutdown()


def test_an_error_is_its_callers_and_the_next_work_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    executor = SerialThread("errors")
    failed = executor.submit(int, "x")
    executor.post(int, "y")
    assert executor.submit(int, "3", base=8).result() == 3
    with pytest.raises(ValueError, match="'x'"):
        failed.result()
    assert [(each.exc_type, each.thread.name) for each in reported] == [(ValueError, "errors_0")]
    executor.shutdown()


def test_shutdown_waits_for_all_and_nothing_is_taken_behind_it() -> None:
    executor, gate, done = SerialThread("ends"), threading.Event(), list[int]()
    executor.post(gate.wait)
    for number in range(10):
        executor.post(done.append, number)
    executor.shutdown(wait=False)
    for take in (executor.post, executor.submit):
        with pytest.raises(RuntimeError, match="after shutdown"):
            take(done.append, 10)
    gate.set()
    executor.shutdown()
    assert done == list(range(10))


def test_a_shutdown_that_cancels_does_nothing_more() -> None:
    executor, gate, done = SerialThread("cancels"), threading.Event(), list[int]()
    begun = threading.Event()
    executor.post(begun.set)
    first = executor.submit(gate.wait)
    begun.wait()
    left = executor.submit(done.append, 1)
    executor.post(done.append, 2)
    executor.shutdown(wait=False, cancel_futures=True)
    gate.set()
    executor.shutdown()
    assert left.cancelled()
    assert not done
    # It may have been taken by then, or not.
    assert first.cancelled() or first.result()


def no_more_threads(patch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError(f"can't start new thread for {self.name}")

    patch.setattr(threading.Thread, "start", start)


@pytest.mark.parametrize(
    ("name", "tier"), [("tier2-file", "tier2"), ("cache", "cache"), ("log-0", "tier1")]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_where_the_system_begins_no_thread_there_is_no_executor(
    monkeypatch: pytest.MonkeyPatch, name: str, tier: str, threads: int
) -> None:
    no_more_threads(monkeypatch)
    with pytest.raises(TierUnavailableError, match="RLIMIT_NPROC") as caught:
        thread_executor(name, threads)
    assert caught.value.tier == tier


@pytest.mark.parametrize("threads", [1, 3])
def test_an_executor_needs_no_thread_that_the_system_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    executor, gate = thread_executor("pool", threads), threading.Event()
    no_more_threads(monkeypatch)
    waits = executor.submit(gate.wait, 60)
    later = executor.submit(int, "4")
    gate.set()
    assert waits.result(60)
    assert later.result(60) == 4
    executor.shutdown()


def test_a_cancelled_future_is_not_begun() -> None:
    executor, gate, done = SerialThread("cancelled"), threading.Event(), list[int]()
    executor.post(gate.wait)
    future = executor.submit(done.append, 1)
    assert future.cancel()
    gate.set()
    executor.shutdown()
    assert not done


def test_a_dropped_executor_ends_its_thread_and_keeps_nothing_of_its_work() -> None:
    executor: SerialThread | None = SerialThread("dropped")
    assert executor is not None
    argument = threading.Event()
    kept = weakref.ref(argument)
    executor.submit(argument.set).result()
    del argument
    # What follows it is begun behind the last reference to it.
    executor.submit(gc.collect).result()
    assert kept() is None
    [thread] = [each for each in threading.enumerate() if each.name == "dropped_0"]
    executor = None
    thread.join(10)
    assert not thread.is_alive()


def printed(program: str) -> str:
    """What a program prints that ends by itself."""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stderr == ""
    return ended.stdout


def test_all_is_done_before_the_interpreter_ends() -> None:
    program = (
        "import time\n"
        "from segmentstore.contracts.serial_thread import SerialThread\n"
        "executor = SerialThread('program')\n"
        "executor.post(time.sleep, 0.2)\n"
        "for number in range(3): executor.post(print, number)\n"
        "executor.shutdown(wait=False)\n"
        "del executor\n"
    )
    assert printed(program) == "0\n1\n2\n"


def test_nothing_is_taken_once_the_interpreter_ends() -> None:
    # Handlers are called in the reverse order: this one behind the end of the threads.
    program = (
        "import atexit\n"
        "def late():\n"
        "    for executor in used, unused:\n"
        "        try: executor.submit(int).result()\n"
        "        except RuntimeError as error: print(error)\n"
        "atexit.register(late)\n"
        "from segmentstore.contracts.serial_thread import SerialThread\n"
        "used, unused = SerialThread('used'), SerialThread('unused')\n"
        "print(used.submit(int).result())\n"
    )
    refusal = "cannot schedule new futures after interpreter shutdown\n"
    assert printed(program) == f"0\n{refusal}{refusal}"


def test_a_forked_child_takes_no_work_and_ends() -> None:
    executor = SerialThread("forked")
    executor.submit(int).result()
    child = os.fork()
    if not child:
        refused = 0
        for take in (executor.post, executor.submit):
            try:
                take(int)
            except ForkedStoreError:
                refused += 1
        # It would wait for a thread that is not here.
        executor.shutdown()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert executor.submit(int, "4").result() == 4
    executor.shutdown()


@pytest.mark.parametrize("executor", [SerialThread("any"), InlineExecutor()])
def test_post_is_for_any_executor(executor: SerialThread | InlineExecutor) -> None:
    done: list[int] = []
    post(executor, done.append, 1)
    executor.shutdown()
    assert done == [1]
