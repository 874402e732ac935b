"""Every call of a blocking store is answered: one whose done-callbacks raise, one that is
cancelled, one that comes at the end of the loop.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from segmentstore import AppendOutcomeUnknownError, StoreClosedError, blocking
from segmentstore.store_thread import StoreFuture
from tests.store.harness import TINY

WAIT_S = 60
EXITS = [SystemExit, KeyboardInterrupt, asyncio.CancelledError]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[blocking.SegmentStore]:
    store = blocking.open(tmp_path / "s", **TINY)
    store.create_segment("x")
    yield store
    ended(store.close)


def ended(work: Callable[[], object]) -> None:
    """Call it in a thread that a failed test may leave behind."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()


@contextmanager
def held(store: blocking.SegmentStore) -> Iterator[None]:
    """The loop of the store does nothing meanwhile."""
    holds, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        holds.set()
        go_on.wait(WAIT_S)

    assert store._thread.loop is not None
    store._thread.loop.call_soon_threadsafe(hold)
    assert holds.wait(WAIT_S)
    try:
        yield
    finally:
        go_on.set()


def begun_to_wait(call: Future[Any]) -> threading.Thread:
    """A thread that waits for it, however it ends."""

    def wait_for_it() -> None:
        with suppress(CancelledError):
            call.result()

    waiting = threading.Thread(target=wait_for_it, daemon=True)
    waiting.start()
    while sys._current_frames()[waiting.ident or 0].f_code.co_name != "_wait":
        pass
    return waiting


def raiser(kind: type[BaseException]) -> Callable[[Future[Any]], NoReturn]:
    def leave_by_it(future: Future[Any]) -> NoReturn:
        del future
        raise kind

    return leave_by_it


def unanswered(store: blocking.SegmentStore) -> StoreFuture[None]:
    """A change that is begun, and that only the end of the loop answers."""

    def begin() -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    call = store._thread.submit(begin, change=True)
    store.get_info("x")
    assert call.running()
    return call


# --- done-callbacks that raise --------------------------------------------------------------------


@pytest.mark.parametrize("kind", EXITS)
def test_a_callback_that_exits_keeps_no_caller_waiting(
    store: blocking.SegmentStore, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    called: list[Future[int]] = []
    with held(store):
        append = store.append_nowait("x", b"abc")
        append.add_done_callback(raiser(kind))
        append.add_done_callback(called.append)
        waiting = begun_to_wait(append)
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    assert append.result(WAIT_S) == 0
    assert store.append("x", b"on") == 3
    assert called == [append]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [kind]


@pytest.mark.parametrize("kind", EXITS)
def test_a_callback_that_exits_does_not_keep_a_store_open(
    store: blocking.SegmentStore, kind: type[BaseException]
) -> None:
    calls = [unanswered(store) for _ in range(3)]
    for call in calls:
        call.add_done_callback(raiser(kind))
    ended(store.close)
    assert [type(call.exception(0)) for call in calls] == [AppendOutcomeUnknownError] * 3


def test_the_thread_that_cancels_gets_what_a_callback_raises_and_all_are_called(
    store: blocking.SegmentStore,
) -> None:
    called: list[Future[int]] = []
    with held(store):
        append = store.append_nowait("x", b"never")
        append.add_done_callback(raiser(KeyboardInterrupt))
        append.add_done_callback(called.append)
        with pytest.raises(KeyboardInterrupt):
            append.cancel()
        assert called == [append]
    with pytest.raises(CancelledError):
        append.result()
    assert store.get_info("x").length == 0


# --- calls that are cancelled, and calls at the end of the loop -----------------------------------


def test_a_wait_is_over_though_the_thread_that_cancels_was_interrupted(
    store: blocking.SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler raised behind the change of the state, before any waiter was woken."""

    def interrupt() -> NoReturn:
        raise KeyboardInterrupt

    with held(store):
        append = store.append_nowait("x", b"never")
        waiting = begun_to_wait(append)
        monkeypatch.setattr(append._condition, "notify_all", interrupt)
        with pytest.raises(KeyboardInterrupt):
            append.cancel()
        monkeypatch.undo()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()


def behind_its_tasks(
    store: blocking.SegmentStore, monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]
) -> None:
    """Close the store, and call `work` when its loop has run for the last time and is open."""
    run = store._thread._run

    def run_and_work(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        run(loop, task)
        work()

    monkeypatch.setattr(store._thread, "_run", run_and_work)
    ended(store.close)


def test_who_waits_for_a_cancelled_call_of_a_closed_store_is_answered(
    store: blocking.SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Future[int]] = []

    def work() -> None:
        calls.extend(store.append_nowait("x", b"never") for _ in range(3))
        assert all(call.cancel() for call in calls[1:])

    behind_its_tasks(store, monkeypatch, work)
    assert wait(calls, timeout=0).done == set(calls)
    assert isinstance(calls[0].exception(0), StoreClosedError)
    assert [call.cancelled() for call in calls] == [False, True, True]
    assert not store._thread._calls


def test_a_call_behind_the_close_of_the_store_is_not_begun(
    store: blocking.SegmentStore, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Future[None]] = []

    async def late() -> None:
        await asyncio.get_running_loop().create_future()

    async def last() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            calls.append(store._thread.submit(late, change=True))

    store._thread.submit(last, change=True)
    store.get_info("x")
    ended(store.close)
    gc.collect()
    assert isinstance(calls[0].exception(0), StoreClosedError)
    assert not caplog.records


def test_tasks_that_others_begin_at_their_end_end_too(
    store: blocking.SegmentStore, caplog: pytest.LogCaptureFixture
) -> None:
    others: list[asyncio.Task[None]] = []

    async def chain(length: int) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if length:
                others.append(asyncio.create_task(chain(length - 1)))
                await asyncio.sleep(0)  # it has begun

    store._thread.submit(lambda: chain(3), change=False)
    store.get_info("x")
    ended(store.close)
    gc.collect()
    assert [other.cancelled() for other in others] == [True] * 3
    assert not caplog.records
