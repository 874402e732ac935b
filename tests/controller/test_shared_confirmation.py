"""A confirmation that is shared, when the program around cancels tasks."""

from __future__ import annotations

import asyncio

import pytest

from segmentstore.controller.shared_confirmation import SharedConfirmation


def test_calls_share_one_confirmation_that_begins_behind_them() -> None:
    async def main() -> None:
        begun = 0
        until = asyncio.Event()

        async def confirm() -> None:
            nonlocal begun
            begun += 1
            await until.wait()

        shared = SharedConfirmation(confirm)
        first = asyncio.ensure_future(shared.confirm())
        while not begun:  # noqa: ASYNC110 - a turn of the loop
            await asyncio.sleep(0)
        later = [asyncio.ensure_future(shared.confirm()) for _ in range(3)]
        await asyncio.sleep(0)
        assert begun == 1
        until.set()
        await asyncio.gather(first, *later)
        assert begun == 2

    asyncio.run(main())


def test_one_that_was_cancelled_before_its_turn_keeps_the_next_from_nothing() -> None:
    async def main() -> None:
        async def confirm() -> None:
            pass

        shared = SharedConfirmation(confirm)
        asked = asyncio.ensure_future(shared.confirm())
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await shared.confirm()

    asyncio.run(main())
