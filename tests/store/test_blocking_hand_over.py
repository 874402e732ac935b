"""What threads hand to the loop of a blocking store is bounded, and none of them waits for ever."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from segmentstore import StoreClosedError, blocking, hand_over
from segmentstore.hand_over import HandOver
from tests.store.harness import TINY, attribute
from tests.store.test_blocking_answers import WAIT_S, ended, held

PLACES = 8


@pytest.fixture(autouse=True)
def _few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_over, "_PLACES", PLACES)
    monkeypatch.setattr(hand_over, "_PLACE_BYTES", 100)
    monkeypatch.setattr(hand_over, "_WAIT_S", WAIT_S)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[blocking.SegmentStore]:
    store = blocking.open(tmp_path / "s", **TINY)
    store.create_segment("x")
    yield store
    ended(store.close)


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_until_it_waits(thread: threading.Thread) -> None:
    while sys._current_frames()[thread.ident or 0].f_code is not HandOver.wait.__code__:
        assert thread.is_alive()


@pytest.mark.parametrize(("length", "fit"), [(10, PLACES), (250, PLACES // 3 + 1)])
@pytest.mark.parametrize("by_writer", [False, True])
def test_a_thread_waits_while_too_much_is_handed_over(
    store: blocking.SegmentStore, length: int, fit: int, *, by_writer: bool
) -> None:
    writer = store.writer("x", attribute(1))
    pieces = [b"%03d" % number + bytes(length - 3) for number in range(40)]
    answers: list[Future[int | None] | Future[int]] = []

    def append(piece: bytes) -> Future[int | None] | Future[int]:
        return writer.append_nowait(piece) if by_writer else store.append_nowait("x", piece)

    def append_all() -> None:
        # The list has each before the next one is asked for.
        answers.extend(map(append, pieces))

    with held(store):
        thread = started(append_all)
        wait_until_it_waits(thread)
        assert len(answers) == fit
    thread.join(WAIT_S)
    assert [answer.result(WAIT_S) for answer in answers] == [length * n for n in range(40)]
    assert b"".join(store.reader("x")) == b"".join(pieces)


def test_done_callbacks_do_not_wait(store: blocking.SegmentStore) -> None:
    answers: list[Future[int]] = []
    done = threading.Event()

    def append_all(first: Future[int]) -> None:
        del first
        for _ in range(4 * PLACES):
            answers.append(store.append_nowait("x", b"1"))  # noqa: PERF401 - one after the other
        done.set()

    with held(store):
        store.append_nowait("x", b"1").add_done_callback(append_all)
    assert done.wait(WAIT_S)
    assert [answer.result(WAIT_S) for answer in answers] == list(range(1, 4 * PLACES + 1))


def test_a_done_callback_may_want_a_lock_that_a_waiting_thread_holds(
    store: blocking.SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over, "_WAIT_S", 0.001)
    lock, added, wants = threading.Lock(), threading.Event(), threading.Event()

    def want(first: Future[int]) -> None:
        del first
        wants.set()
        with lock:
            pass

    def append_all() -> None:
        with lock:
            first = store.append_nowait("x", b"1")
            first.add_done_callback(want)
            added.set()
            assert wants.wait(WAIT_S)
            answers.extend(store.append_nowait("x", b"1") for _ in range(2 * PLACES))

    answers: list[Future[int]] = []
    with held(store):
        thread = started(append_all)
        assert added.wait(WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert [answer.result(WAIT_S) for answer in answers] == list(range(1, 2 * PLACES + 1))


def test_a_closed_store_lets_those_go_on_that_wait(
    store: blocking.SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has run for the last time when they begin to wait."""
    answers: list[Future[int]] = []
    threads: list[threading.Thread] = []
    answer_all = store._thread._answer_all

    def append() -> None:
        answers.append(store.append_nowait("x", b"1"))

    def fill(failure: BaseException | None) -> None:
        for number in range(PLACES):
            store._thread._handed.put((Future(), print), number)  # type: ignore[arg-type]
        threads.append(started(append))
        wait_until_it_waits(threads[0])
        store._thread._handed._places.clear()
        answer_all(failure)

    monkeypatch.setattr(store._thread, "_answer_all", fill)
    ended(store.close)
    threads[0].join(WAIT_S)
    assert isinstance(answers[0].exception(0), StoreClosedError)
    assert isinstance(store.append_nowait("x", b"1").exception(0), StoreClosedError)


def test_places_are_taken_by_bytes_and_given_back_in_order() -> None:
    handed: HandOver[str] = HandOver()
    handed.put("large", 10**9)
    handed.put("small", 99)
    waiting = started(handed.wait)
    wait_until_it_waits(waiting)
    assert handed.take() == "large"
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    assert [handed.take(), handed.take()] == ["small", None]
    handed.put("late", 350)
    assert handed.close() == ["late"]
