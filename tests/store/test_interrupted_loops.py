"""A signal handler of the program's raises while the loop runs, between two steps of the engine's.

So does Ctrl-C in a program that runs `run_until_complete` in a `try`, and closes its store behind
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import durablelog.file.file_log
from durablelog.file.file_log import FileLog
from durablelog.frame_commits import FrameCommits
from durablelog.frame_packer import FramePacker
from durablelog.operation_processor import OperationProcessor
from segmentstore import AppendOutcomeUnknownError, ContainerStoppedError, SegmentStore
from tests.store.harness import open_tiny, read_all, run

PLACES: dict[str, tuple[object, str]] = {
    "packed": (FramePacker, "seal"),
    "checksum": (durablelog.file.file_log, "crc32c_parts"),
    "in the log's queue": (FileLog, "append"),
    "shipped": (OperationProcessor, "_ship"),
    "acknowledged by the log": (FileLog, "_acknowledge"),
    "committed": (FrameCommits, "commit"),
}


class CtrlCError(KeyboardInterrupt):
    """What the handler raises."""


def raises_once(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, which is interrupted right behind its end, the first time."""
    left = [1]

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        result = call(*arguments, **keywords)
        while left:
            left.pop()
            raise CtrlCError
        return result

    return interrupted


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_stops_the_container_and_the_log_stays_readable(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> SegmentStore:
        store = await open_tiny(tmp_path / "s", containers=1)
        await store.create_segment("x")
        assert await store.append("x", b"kept") == 0
        return store

    async def append_more(store: SegmentStore) -> None:
        calls = [store.append("x", b"%02d" % number) for number in range(20)]
        taken.extend(calls)
        await asyncio.gather(*calls)

    async def end(store: SegmentStore) -> bytes:
        taken.append(store.append("x", b"late"))
        done, left = await asyncio.wait(taken, timeout=60)
        await store.close()
        assert not left, "no call may wait for ever"
        refused = [each.exception() for each in done]
        assert {type(error) for error in refused} <= {
            AppendOutcomeUnknownError,
            ContainerStoppedError,
            type(None),
        }
        assert isinstance(taken[-1].exception(), ContainerStoppedError)
        acknowledged = [each for each in taken if not each.exception()]
        return b"".join(b"%02d" % number for number in range(len(acknowledged)))

    taken = list[asyncio.Future[int]]()
    store = loop.run_until_complete(begin())
    owner, name = PLACES[place]
    monkeypatch.setattr(owner, name, raises_once(getattr(owner, name)))
    with pytest.raises(CtrlCError):
        loop.run_until_complete(append_more(store))
    durable = loop.run_until_complete(end(store))
    loop.close()

    async def check() -> None:
        async with open_tiny(tmp_path / "s") as again:
            content = await read_all(again, "x")
            assert content.startswith(b"kept" + durable)
            assert await again.append("x", b"more") == len(content)

    run(check())
