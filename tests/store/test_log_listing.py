"""Listings of a log that is written to and truncated meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from segmentstore.container import log_listing
from tests.store.harness import UNFLUSHED, open_tiny, run, until


def test_one_that_is_left_halfway_keeps_no_file_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_listing, "FRAMES_OF_A_PORTION", 3)

    def files() -> int:
        return len(list((tmp_path / "s" / "log" / "0").glob("*.log")))

    async def main() -> None:
        async with open_tiny(tmp_path / "s", **UNFLUSHED) as store:
            await store.create_segment("x")
            await asyncio.gather(*(store.append("x", bytes(180)) for _ in range(400)))
            before = files()
            async with (
                aclosing(store.list_frames()) as frames,
                aclosing(store.list_operations()) as operations,
            ):
                first = await anext(frames)
                await anext(operations)
                await store.flush()
                await store.checkpoint()
                await until(lambda: files() < before - 5)
                # Of what there was at the beginning nothing is left but this portion.
                assert [frame.sequence async for frame in frames] == [
                    first.sequence + 1,
                    first.sequence + 2,
                ]

    run(main())
