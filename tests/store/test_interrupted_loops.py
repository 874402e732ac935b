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
from durablelog.file.log_folder import LogFolder
from durablelog.frame_commits import FrameCommits
from durablelog.frame_packer import FramePacker
from durablelog.operation_processor import OperationProcessor
from durablelog.queue_room import QueueRoom
from segmentstore import AppendOutcomeUnknownError, ContainerStoppedError, SegmentStore
from tests.store.harness import open_tiny, read_all, run
from tests.support.fake_kernel import syncs_by  # noqa: F401 - each test runs both ways

PLACES: dict[str, tuple[object, str, bool]] = {
    "packed": (FramePacker, "seal", False),
    "before a frame is shipped": (OperationProcessor, "_ship", True),
    "before what left the queue is noted": (QueueRoom, "note_left", True),
    "checksum": (durablelog.file.file_log, "crc32c_parts", False),
    "in the log's queue": (FileLog, "append", False),
    "shipped": (OperationProcessor, "_ship", False),
    "noted by the log": (LogFolder, "grow", False),
    "acknowledged by the log": (FileLog, "_acknowledge", False),
    "committed": (FrameCommits, "commit", False),
}
"""What is interrupted, and whether at its beginning."""


class CtrlCError(KeyboardInterrupt):
    """What the handler raises."""


def raises_once(call: Callable[..., Any], *, before: bool = False) -> Callable[..., Any]:
    """The same call, which is interrupted right behind its end, or `before` it, the first time."""
    left = [1]

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        result = None if left and before else call(*arguments, **keywords)
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
        # This one goes at once. The others wait for the next turn of the loop.
        taken.append(store.append("x", b"00"))
        monkeypatch.setattr(owner, name, raises_once(getattr(owner, name), before=before))
        for number in range(1, 50):
            taken.append(store.append("x", b"%02d" % number))
        await asyncio.gather(*taken)

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
    owner, name, before = PLACES[place]
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
