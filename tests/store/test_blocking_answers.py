"""Every call of a blocking store is answered: one whose done-callbacks raise, one that is
cancelled, one that comes at the end of the loop.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from segmentstore import AppendOutcomeUnknownError, blocking
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

    def wait() -> None:
        with suppress(CancelledError):
            call.result()

    waiting = threading.Thread(target=wait, daemon=True)
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
def test_a_callback_that_exits_keeps_nobody_waiting(
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
