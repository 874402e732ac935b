"""The blocking API: the same meanings without await, from many threads, and no caller left waiting
at close.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from segmentstore import (
    AttributeUpdate,
    BadOffsetError,
    ContainerStoppedError,
    EndOfSegmentError,
    InvalidArgumentError,
    SegmentNotFoundError,
    SegmentStoreError,
    StoreInUseError,
    UpdateType,
    blocking,
)
from tests.store.harness import TINY, attribute

WAIT_S = 60


def open_blocking(location: Path, **options: Any) -> blocking.SegmentStore:
    return blocking.open(location, **{**TINY, **options})


def test_every_call(tmp_path: Path) -> None:
    with open_blocking(tmp_path / "s") as store:
        info = store.create_segment("x", [AttributeUpdate(attribute(1), UpdateType.REPLACE, 5)])
        assert (info.name, info.length) == ("x", 0)
        assert store.append("x", b"abc") == 0
        assert store.append("x", b"def", expected_offset=3) == 3
        assert store.append_batch("x", [b"g", b"hi"]) == 6
        future = store.append_nowait("x", b"jk")
        assert isinstance(future, Future)
        assert future.result(WAIT_S) == 9
        assert store.read("x", 2, 1) == b"c"
        assert store.read("x", 11, 1, wait=0.01) == b""
        reader = store.reader("x", 1)
        assert b"".join(reader) == b"bcdefghijk"
        assert reader.offset == 11
        store.update_attributes("x", [AttributeUpdate(attribute(1), UpdateType.ACCUMULATE, 2)])
        assert store.get_attributes("x") == {attribute(1): 7}
        assert store.get_attributes("x", [attribute(2)]) == {}
        with store.writer("x", attribute(9)) as writer:
            assert writer.last_event_number == -1
            assert writer.append(b"l") == 11
            assert writer.append_nowait(b"m").result(WAIT_S) == 12
            assert writer.append(b"again", 0) is None
            assert writer.last_event_number == 1
        store.create_segment("y")
        store.append("y", b"merged")
        assert store.merge("x", "y") == (13, 19)
        assert store.merge_batch("x", ["y"]) == [19]
        assert [info.name for info in store.list_segments()] == ["x"]
        store.truncate("x", 5)
        store.flush("x")
        store.flush()
        store.checkpoint()
        assert store.seal("x") == 19
        with pytest.raises(EndOfSegmentError):
            store.read("x", 19, 1)
        info = store.get_info("x")
        assert (info.start_offset, info.length, info.sealed) == (5, 19, True)
        assert store.stats()["health"] == []
        store.delete("x")
        assert list(store.list_segments()) == []


def test_errors_come_to_the_callers_thread(tmp_path: Path) -> None:
    with open_blocking(tmp_path / "s") as store:
        with pytest.raises(SegmentNotFoundError):
            store.append("x", b"")
        assert isinstance(store.append_nowait("x", b"").exception(WAIT_S), SegmentNotFoundError)
        store.create_segment("x")
        with pytest.raises(BadOffsetError):
            store.append("x", b"", expected_offset=5)
        with pytest.raises(InvalidArgumentError):
            store.append_batch("x", ["text"])  # type: ignore[list-item]
        with pytest.raises(SegmentNotFoundError):
            store.reader("y")
        with pytest.raises(InvalidArgumentError):
            store.writer("x", 5)  # type: ignore[arg-type]
        with pytest.raises(StoreInUseError):
            open_blocking(tmp_path / "s")


def test_a_buffer_may_be_reused_after_the_call(tmp_path: Path) -> None:
    with open_blocking(tmp_path / "s") as store:
        store.create_segment("x")
        writer = store.writer("x", attribute(1))
        buffer, go_on = bytearray(b"first"), threading.Event()
        assert store._thread.loop is not None
        store._thread.loop.call_soon_threadsafe(go_on.wait, WAIT_S)
        futures: list[Future[Any]] = []
        try:
            futures += [store.append_nowait("x", buffer), writer.append_nowait(memoryview(buffer))]
            buffer[:] = b"other"
        finally:
            go_on.set()
        assert [future.result(WAIT_S) for future in futures] == [0, 5]
        assert store.read("x", 0, 100) == b"firstfirst"


def test_many_threads_on_one_segment(tmp_path: Path) -> None:
    def work(number: int) -> list[int]:
        futures = [
            store.append_nowait("x", b"%02d:%03d;" % (number, event)) for event in range(100)
        ]
        return [future.result(WAIT_S) for future in futures]

    with open_blocking(tmp_path / "s") as store, ThreadPoolExecutor(16) as threads:
        store.create_segment("x")
        offsets = list(threads.map(work, range(16)))
        assert all(own == sorted(own) for own in offsets), (
            "appends of one thread land in the order of its calls"
        )
        assert sorted(offset for own in offsets for offset in own) == list(
            range(0, 16 * 100 * 7, 7)
        )
        events = b"".join(store.reader("x")).decode().split(";")[:-1]
        for number in range(16):
            assert [event for event in events if event.startswith(f"{number:02d}")] == [
                f"{number:02d}:{event:03d}" for event in range(100)
            ]


def test_many_threads_doing_everything(tmp_path: Path) -> None:
    def work(number: int) -> bytes:
        name = f"s/{number}"
        store.create_segment(name)
        with store.writer(name, UUID(int=number + 1)) as writer:
            for event in range(10):
                writer.append(b"<%d>" % event * number)
        store.flush(name)
        store.create_segment(name + "/source")
        store.append_batch(name + "/source", [b"a", b"b"])
        store.merge(name, name + "/source")
        store.seal(name)
        return b"".join(store.reader(name))

    with open_blocking(tmp_path / "s") as store, ThreadPoolExecutor(12) as threads:
        contents = list(threads.map(work, range(12)))
    for number, content in enumerate(contents):
        assert content == b"".join(b"<%d>" % event * number for event in range(10)) + b"ab"
    with open_blocking(tmp_path / "s") as store:
        assert [b"".join(store.reader(f"s/{number}")) for number in range(12)] == contents


def test_a_follower_in_a_thread(tmp_path: Path) -> None:
    with open_blocking(tmp_path / "s") as store, ThreadPoolExecutor(1) as threads:
        store.create_segment("x")
        begun = threading.Event()

        def follow() -> bytes:
            reader = store.reader("x", follow=True)
            begun.set()
            return b"".join(reader)

        result = threads.submit(follow)
        assert begun.wait(WAIT_S)
        for number in range(50):
            store.append("x", b"%d," % number)
        store.seal("x")
        assert result.result(WAIT_S) == b"".join(b"%d," % number for number in range(50))


def test_a_closed_store_answers_every_caller(tmp_path: Path) -> None:
    store = open_blocking(tmp_path / "s")
    with ThreadPoolExecutor(2) as threads:
        store.create_segment("x")
        reader, writer = store.reader("x", follow=True), store.writer("x", attribute(1))
        waiting = threads.submit(next, reader)
        futures = [store.append_nowait("x", b"a") for _ in range(50)]
        store.close()
        for future in futures:
            assert future.exception(WAIT_S) is None or isinstance(
                future.exception(), SegmentStoreError
            )
        # The follower may have got the appends before the end.
        error = waiting.exception(WAIT_S)
        assert error is None or isinstance(error, ContainerStoppedError)
        for call in (
            lambda: store.append("x", b""),
            lambda: store.append_nowait("x", b"").result(WAIT_S),
            lambda: writer.append(b""),
            lambda: store.get_info("x"),
            lambda: store.read("x", 0, 1),
            store.flush,
            lambda: list(store.list_segments()),
            lambda: next(reader),
        ):
            with pytest.raises(SegmentStoreError):
                threads.submit(call).result(WAIT_S)
    store.close()


def test_a_failed_opening_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    def fail_to_open() -> None:
        with pytest.raises(SegmentStoreError):
            open_blocking(tmp_path)

    # The first one may start threads that the process keeps.
    fail_to_open()
    before = threading.active_count()
    for _ in range(5):
        fail_to_open()
    assert threading.active_count() <= before + 1
