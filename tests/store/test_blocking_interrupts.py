"""Exceptions of signal handlers in the middle of blocking calls, and calls from the store's own
thread.
"""

from __future__ import annotations

import asyncio
import dis
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from segmentstore import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    SegmentStoreError,
    StoreClosedError,
    WrongThreadError,
    blocking,
    hand_over,
)
from segmentstore.contracts.event_loops import new_event_loop
from segmentstore.contracts.runtime import Runtime
from segmentstore.hand_over import HandOver
from segmentstore.store_thread import StoreThread
from tests.store.harness import TINY, WorldDisk, attribute
from tests.store.test_blocking_answers import held

WAIT_S = 60
EVENTS = 60


class InterruptedCallError(Exception):
    """What the signal handler raises."""


@pytest.fixture(autouse=True)
def handled() -> Iterator[threading.Event]:
    """Set by the handler of SIGUSR1, which raises in the main thread."""
    event = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        event.set()
        raise InterruptedCallError

    # What is raised while garbage is collected is lost: hypothesis has a callback there.
    was_enabled = gc.isenabled()
    gc.disable()
    previous = signal.signal(signal.SIGUSR1, handle)
    yield event
    signal.signal(signal.SIGUSR1, previous)
    if was_enabled:
        gc.enable()


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    # uvloop opens some with the first loop of a process.
    new_event_loop().close()
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    yield
    end_others(threads)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def end_others(kept: set[threading.Thread]) -> None:
    for thread in set(threading.enumerate()) - kept:
        thread.join(WAIT_S)
        assert not thread.is_alive(), thread


def signal_until_handled(handled: threading.Event) -> None:
    """Signal the main thread; return when its handler ran.

    Again after a second. A signal that comes just before the main thread begins to wait for a lock
    does not end that wait: CPython calls the handler behind it.
    """
    handled.clear()
    for _ in range(WAIT_S):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        if handled.wait(1.0):
            return
    raise AssertionError(WAIT_S)


class SignallingDisk(WorldDisk):
    """Signals the main thread in the middle of some of its calls, which go on once the signal is
    handled.
    """

    def __init__(self, handled: threading.Event) -> None:
        super().__init__()
        self.handled = handled
        self.calls = 0
        self.moments: set[int] = set()
        """Numbers of calls, from 1."""

    def reach(self, call: str, path: str) -> None:
        self.calls += 1
        if self.calls in self.moments:
            signal_until_handled(self.handled)
        super().reach(call, path)


def interrupted(moment: int, call: Callable[[], object]) -> None:
    """Call, with one signal at about this moment: before, within or after."""

    def send() -> None:
        for _ in range(moment * 200):
            pass
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    sender = threading.Thread(target=send)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        sender.start()
        call()
        sender.join(WAIT_S)
        threading.Event().wait(WAIT_S)
    except InterruptedCallError:
        pass
    finally:
        sys.setswitchinterval(interval)
    sender.join(WAIT_S)


@contextmanager
def signal_once_waiting(handled: threading.Event) -> Iterator[None]:
    """A signal when the main thread waits for a lock that another thread has to give."""
    main = threading.main_thread().ident or 0
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.001):
            if sys._current_frames()[main].f_code.co_name in {"wait", "_wait"}:
                signal_until_handled(handled)
                return

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()


def open_blocking(
    location: Path, disk: WorldDisk | None = None, **options: Any
) -> blocking.SegmentStore:
    runtime = Runtime(disk=disk) if disk is not None else None
    return blocking.open(location, runtime=runtime, **{**TINY, **options})


def event(number: int) -> bytes:
    return b"%04d;" % number


def check_answers(location: Path, answers: list[Future[int]]) -> None:
    """No append that was answered "no effect" is there, none that was answered with an offset is
    not.
    """
    with open_blocking(location) as store:
        content = b"".join(store.reader("x"))
    for number, answer in enumerate(answers):
        error = answer.exception(WAIT_S)
        if error is None:
            assert content[answer.result() :].startswith(event(number))
        elif isinstance(error, ContainerStoppedError):
            assert event(number) not in content, (number, error)
        else:
            assert isinstance(error, AppendOutcomeUnknownError)


# --- close ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("again", [0, 1, 4])
def test_a_close_interrupted_while_it_waits_goes_on(
    tmp_path: Path, handled: threading.Event, moment: int, again: int
) -> None:
    disk = SignallingDisk(handled)
    store = open_blocking(tmp_path / "s", disk)
    store.create_segment("x")
    answers = [store.append_nowait("x", event(number)) for number in range(EVENTS)]
    disk.moments = {disk.calls + moment, disk.calls + moment + again}
    is_closed = False
    while not is_closed:
        with suppress(InterruptedCallError):
            store.close()
            is_closed = True
    check_answers(tmp_path / "s", answers)


@pytest.mark.parametrize("moment", range(0, 40, 3))
def test_a_close_interrupted_at_any_moment_goes_on(tmp_path: Path, moment: int) -> None:
    store = open_blocking(tmp_path / "s")
    store.create_segment("x")
    answers = [store.append_nowait("x", event(number)) for number in range(EVENTS)]
    interrupted(moment, store.close)
    store.close()
    check_answers(tmp_path / "s", answers)


def test_a_change_that_the_end_of_the_loop_leaves_is_unknown_and_all_else_is_closed(
    tmp_path: Path,
) -> None:
    store = open_blocking(tmp_path / "s")

    async def stuck() -> None:
        await asyncio.get_running_loop().create_future()

    change, other = (store._thread.submit(stuck, change=change) for change in (True, False))
    store.close()
    assert isinstance(change.exception(WAIT_S), AppendOutcomeUnknownError)
    assert isinstance(other.exception(WAIT_S), StoreClosedError)
    assert isinstance(store.append_nowait("x", b"").exception(WAIT_S), StoreClosedError)


def test_a_cancelled_append_was_never_begun(tmp_path: Path) -> None:
    with open_blocking(tmp_path / "s") as store:
        store.create_segment("x")
        answers = [store.append_nowait("x", event(number)) for number in range(EVENTS)]
        cancelled = [answer.cancel() for answer in answers]
        store.append("x", b"the last")
        content = b"".join(store.reader("x"))
    for number, (answer, was_cancelled) in enumerate(zip(answers, cancelled, strict=True)):
        assert answer.cancelled() == was_cancelled
        assert (event(number) in content) != was_cancelled


# --- open -----------------------------------------------------------------------------------------


def openings(location: Path, handled: threading.Event) -> int:
    """How many calls of the disk an opening makes."""
    disk = SignallingDisk(handled)
    with open_blocking(location, disk):
        return disk.calls


@pytest.mark.parametrize("made", [False, True])
def test_an_interrupted_opening_leaves_nothing(
    tmp_path: Path, handled: threading.Event, *, made: bool
) -> None:
    count = openings(tmp_path / "count", handled)
    if made:
        count = openings(tmp_path / "count", handled)
    # The last calls may be made behind the opening, in the background.
    for moment in range(1, count // 2, 2):
        location = tmp_path / f"{moment}"
        if made:
            open_blocking(location).close()
        disk = SignallingDisk(handled)
        disk.moments = {moment}
        with pytest.raises(InterruptedCallError):
            open_blocking(location, disk)
        open_blocking(location).close()


# Interrupted between the start of a thread and the end of `Thread.start`, Python 3.11 forgets the
# thread: that reports a KeyError, and ends before it runs anything of ours.
forgotten_threads = pytest.mark.filterwarnings(
    "ignore:Exception ignored in thread started by:pytest.PytestUnraisableExceptionWarning"
)


@forgotten_threads
@pytest.mark.parametrize("moment", range(0, 40, 3))
def test_an_opening_interrupted_at_any_moment_leaves_nothing(tmp_path: Path, moment: int) -> None:
    opened: list[blocking.SegmentStore] = []

    def call() -> None:
        # Options by name: behind a call with ** the interpreter would run the handler before the
        # store is ours.
        opened.append(blocking.open(tmp_path / "s", frame_bytes_max=200, log_file_bytes=8392))

    interrupted(moment, call)
    for store in opened:
        store.close()
    open_blocking(tmp_path / "s").close()


def behind_the_start() -> int:
    """Where in the code of `Thread.start` the new thread exists, and its end is not reached."""
    code = iter(dis.get_instructions(threading.Thread.start))
    next(each for each in code if str(each.argval).startswith("_start_"))
    next(each for each in code if each.opname in {"CALL", "CALL_KW"})
    return next(each for each in code if each.opname != "CACHE").offset


@forgotten_threads
@pytest.mark.parametrize("first", ["caller", "thread"])
def test_an_opening_interrupted_behind_the_start_of_its_thread_ends(
    tmp_path: Path, first: str
) -> None:
    place = behind_the_start()

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code is not threading.Thread.start.__code__:
            return trace if event == "call" else None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti == place:
            sys.settrace(None)
            if first == "thread":
                assert frame.f_locals["self"]._started.wait(WAIT_S)
                threading.Event().wait(0.01)
            raise InterruptedCallError
        return trace

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1.0)
    try:
        sys.settrace(trace)
        with pytest.raises(InterruptedCallError):
            blocking.open(tmp_path / "s", frame_bytes_max=200, log_file_bytes=8392)
    finally:
        sys.settrace(None)
        sys.setswitchinterval(interval)
    open_blocking(tmp_path / "s").close()


# --- everything else ------------------------------------------------------------------------------


def test_an_interrupted_follower_skips_nothing(tmp_path: Path, handled: threading.Event) -> None:
    with open_blocking(tmp_path / "s") as store:
        store.create_segment("x")
        reader = store.reader("x", follow=True)
        content = b""
        for number in range(5):
            for _ in range(2):
                with pytest.raises(InterruptedCallError), signal_once_waiting(handled):
                    next(reader)
            assert reader.offset == len(content)
            store.append("x", event(number))
            if number < 4:
                content += next(reader)
        store.seal("x")
        assert content + b"".join(reader) == b"".join(map(event, range(5)))


@pytest.mark.parametrize("moment", range(0, 20, 2))
def test_a_reader_interrupted_at_any_moment_skips_nothing(tmp_path: Path, moment: int) -> None:
    with open_blocking(tmp_path / "s") as store:
        store.create_segment("x")
        store.append("x", b"abc")
        reader, content = store.reader("x"), []
        interrupted(moment, lambda: content.append(reader.__next__()))
        assert b"".join([*content, *reader]) == b"abc"


def test_an_interrupted_read_ends_and_an_interrupted_change_goes_on(
    tmp_path: Path, handled: threading.Event
) -> None:
    with open_blocking(tmp_path / "s") as store:
        store.create_segment("x")
        waits: list[Callable[[], bytes]] = [
            lambda: store.read("x", 0, 1, wait=3600.0),
            lambda: next(store.reader("x", follow=True)),
        ]
        for wait in waits:
            with pytest.raises(InterruptedCallError), signal_once_waiting(handled):
                wait()
        # Asked behind what gave up: the loop has carried that out.
        store.get_info("x")
        store.get_info("x")
        assert not store._thread._calls
        with store.writer("x", attribute(1)) as writer:
            for number in range(20):
                interrupted(number, partial(writer.append, event(number), number))
                writer.append(event(number), number)
        assert b"".join(store.reader("x")) == b"".join(map(event, range(20)))
        assert [info.name for info in store.list_segments()] == ["x"]


def test_a_wait_on_the_stores_own_thread_is_refused(tmp_path: Path) -> None:
    with open_blocking(tmp_path / "s") as store:
        store.create_segment("x")
        writer, reader = store.writer("x", attribute(1)), store.reader("x")
        nested: list[Future[int]] = []
        calls: list[Callable[[], object]] = [
            lambda: store.append("x", b"never"),
            lambda: store.append_batch("x", [b"never"]),
            lambda: writer.append(b"never"),
            lambda: next(reader),
            lambda: store.read("x", 0, 1),
            store.flush,
            store.list_segments,
            store.stats,
            store.close,
        ]
        refused: list[object] = []
        done = threading.Event()

        def in_callback(first: Future[int]) -> None:
            assert first.result() == 0
            nested.append(store.append_nowait("x", b"nested"))
            for call in (*calls, nested[0].result, nested[0].exception):
                try:
                    refused.append(call())
                except SegmentStoreError as error:
                    refused.append(type(error))
            done.set()

        store.append_nowait("x", b"first").add_done_callback(in_callback)
        assert done.wait(WAIT_S)
        assert refused == [WrongThreadError] * (len(calls) + 2)
        assert nested[0].result(WAIT_S) == 5
        assert b"".join(reader) == b"firstnested"


def test_a_callback_that_exits_does_not_end_the_store(tmp_path: Path) -> None:
    answers: list[Future[int]] = []
    with open_blocking(tmp_path / "s") as store:
        store.create_segment("x")
        store.create_segment("held")

        def append_all(held: Future[int]) -> None:
            del held
            if threading.current_thread() is threading.main_thread():
                return  # the answer was there before its callback
            # In the store's own thread, no answer comes before its callback is added.
            for number in range(EVENTS):
                answers.append(store.append_nowait("x", event(number)))
                answers[-1].add_done_callback(lambda _: sys.exit(1))

        while not answers:
            held = store.append_nowait("held", b"1")
            held.add_done_callback(append_all)
            held.result(WAIT_S)
            store.append("held", b"behind the callback")
        assert [answer.result(WAIT_S) for answer in answers] == [
            5 * number for number in range(EVENTS)
        ]
        assert store.append("x", b"on") == 5 * EVENTS


def test_an_append_interrupted_while_it_waits_for_room_was_never_handed_over(
    tmp_path: Path, handled: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over, "_PLACES", 8)
    with open_blocking(tmp_path / "s") as store:
        store.create_segment("x")
        with held(store):
            answers = [store.append_nowait("x", event(number)) for number in range(8)]
            for _ in range(3):
                with pytest.raises(InterruptedCallError), signal_once_waiting(handled):
                    store.append_nowait("x", b"never")
        answers += [store.append_nowait("x", event(number)) for number in range(8, EVENTS)]
        assert [answer.result(WAIT_S) for answer in answers] == [5 * n for n in range(EVENTS)]
        assert b"".join(store.reader("x")) == b"".join(map(event, range(EVENTS)))


def interrupt_handing_over(moment: int, call: Callable[[], object]) -> bool:
    """Raise at this step of the hand-over, counted in instructions; False if it has fewer."""
    steps = iter(range(moment + 1))
    codes = {
        each.__code__
        for each in (StoreThread.submit_bounded, StoreThread.submit, HandOver.wait, HandOver.put)
    }

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(steps) == moment:
            sys.settrace(None)
            raise InterruptedCallError
        return trace

    try:
        sys.settrace(trace)
        call()
    except InterruptedCallError:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("places", [1, 100])
def test_appends_interrupted_at_any_moment_take_no_room_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    monkeypatch.setattr(hand_over, "_PLACES", places)
    monkeypatch.setattr(hand_over, "_WAIT_S", 0.0)
    with open_blocking(tmp_path / "s") as store:
        store.create_segment("x")
        moment = 0
        with held(store):
            first = store.append_nowait("x", b"1")
            while interrupt_handing_over(moment, lambda: store.append_nowait("x", b"1")):
                moment += 1
        assert first.result(WAIT_S) == 0
        assert moment > 100
        assert store.get_info("x").length > 1
        assert not store._thread._handed._places
        monkeypatch.setattr(hand_over, "_WAIT_S", WAIT_S)
        answers = [store.append_nowait("x", b"1") for _ in range(EVENTS)]
        end = answers[0].result(WAIT_S)
        assert [answer.result(WAIT_S) for answer in answers] == list(range(end, end + EVENTS))
