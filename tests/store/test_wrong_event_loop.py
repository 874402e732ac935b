"""An asyncio store belongs to the event loop that opened it; elsewhere every call is refused at
once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from segmentstore import (
    ATTRIBUTE_UNSET,
    SegmentStore,
    SegmentStoreError,
    SegmentWriter,
    WrongEventLoopError,
)
from segmentstore.block_writer import BlockWriter
from tests.store.harness import attribute, open_tiny, read_all, run

WAIT_S = 60


async def refused(calls: dict[str, Callable[[], Any]]) -> dict[str, object]:
    """What each call raises; a call that waits is given up."""
    found: dict[str, object] = {}
    for name, call in calls.items():
        try:
            async with asyncio.timeout(WAIT_S):
                found[name] = await call()
        except (SegmentStoreError, TimeoutError) as error:
            found[name] = type(error)
    return found


def test_a_second_event_loop_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await store.create_segment("x")
            await store.append("x", b"abc")
            calls = calls_on(store)
            found = await asyncio.to_thread(asyncio.run, refused(calls))
            assert found == dict.fromkeys(calls, WrongEventLoopError)
            assert await read_all(store, "x") == b"abc"

    run(main())


def test_a_thread_without_an_event_loop_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await store.create_segment("x")
            writer = store.writer("x", attribute(1))

            def work() -> list[object]:
                found: list[object] = []
                calls: list[Callable[[], object]] = [
                    lambda: store.append("x", b"never"),
                    lambda: store.append_batch("x", [b"never"]),
                    lambda: writer.append(b"never"),
                    lambda: store.reader("x"),
                    lambda: store.writer("x", attribute(1)),
                ]
                for call in calls:
                    try:
                        found.append(call())
                    except SegmentStoreError as error:
                        found.append(type(error))
                return found

            assert await asyncio.to_thread(work) == [WrongEventLoopError] * 5
            assert await store.append("x", b"abc") == 0

    run(main())


def test_a_loop_that_does_not_run_is_refused(tmp_path: Path) -> None:
    async def opened() -> SegmentStore:
        store = await open_tiny(tmp_path / "s")
        await store.create_segment("x")
        return store

    with asyncio.Runner() as runner:
        store = runner.run(opened())
        writer, blocks = runner.run(writers_of(store))
        for call in (
            lambda: store.append("x", b"never"),
            lambda: writer.append(b"never"),
            lambda: blocks.append(b"never", 1, ATTRIBUTE_UNSET, 1),
        ):
            with pytest.raises(WrongEventLoopError):
                call()
        assert runner.run(read_all(store, "x")) == b""
        runner.run(store.close())


def test_the_thread_that_a_loop_has_left_is_refused(tmp_path: Path) -> None:
    """A call there would change the store beside its loop."""
    used, go_on = threading.Event(), asyncio.Event()

    async def opened() -> SegmentStore:
        store = await open_tiny(tmp_path / "s")
        await store.create_segment("x")
        return store

    async def use(number: int) -> None:
        await store.append("x", b"s")
        await writer.append(b"w", number)
        await blocks.append(b"b", number, ATTRIBUTE_UNSET if number == 1 else number - 1, 1)

    async def use_elsewhere() -> None:
        await use(2)
        used.set()
        await go_on.wait()

    with asyncio.Runner() as runner, ThreadPoolExecutor(1) as pool:
        store = runner.run(opened())
        writer, blocks = runner.run(writers_of(store))
        runner.run(writer.open())
        runner.run(use(1))
        loop = runner.get_loop()
        elsewhere = pool.submit(loop.run_until_complete, use_elsewhere())
        try:
            assert used.wait(60)
            for call in (
                lambda: store.append("x", b"never"),
                lambda: writer.append(b"never"),
                lambda: blocks.append(b"never", 3, 2, 1),
            ):
                with pytest.raises(WrongEventLoopError):
                    call()
        finally:
            loop.call_soon_threadsafe(go_on.set)
            elsewhere.result()
        runner.run(use(3))
        assert runner.run(read_all(store, "x")) == b"swb" * 3
        runner.run(store.close())


async def writers_of(store: SegmentStore) -> tuple[SegmentWriter, BlockWriter]:
    numbers = [attribute(number) for number in (1, 2, 3)]
    return store.writer("x", numbers[0]), store.block_writer("x", *numbers[1:])


def calls_on(store: SegmentStore) -> dict[str, Callable[[], Any]]:
    reader, writer = store.reader("x", follow=True), store.writer("x", attribute(1))
    blocks = store.block_writer("x", attribute(2), attribute(3))
    return {
        "append": lambda: store.append("x", b"never"),
        "append_batch": lambda: store.append_batch("x", [b"never"]),
        "writer append": lambda: writer.append(b"never"),
        "block writer append": lambda: blocks.append(b"never", 1, ATTRIBUTE_UNSET, 1),
        "read": lambda: store.read("x", 3, 1, 3600.0),
        "reader": lambda: anext(reader),
        "create_segment": lambda: store.create_segment("y"),
        "get_info": lambda: store.get_info("x"),
        "list_segments": lambda: anext(store.list_segments()),
        "seal": lambda: store.seal("x"),
        "truncate": lambda: store.truncate("x", 1),
        "merge": lambda: store.merge("x", "y"),
        "delete": lambda: store.delete("x"),
        "update_attributes": lambda: store.update_attributes("x", []),
        "get_attributes": lambda: store.get_attributes("x"),
        "iterate_attributes": lambda: store.iterate_attributes("x"),
        "flush": store.flush,
        "flush of one": lambda: store.flush("x"),
        "checkpoint": store.checkpoint,
        "collect_garbage": store.collect_garbage,
        "export_catalog": store.export_catalog,
        "process_mailbox": store.process_mailbox,
        "close": store.close,
    }
