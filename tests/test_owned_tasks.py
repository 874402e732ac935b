"""Tasks of the engine: not listed by the loop, made in one place, and their owners are notified of
their ends.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from segmentstore.contracts.owned_tasks import (
    OwnedTaskGroup,
    gather_outcomes,
    gather_owned,
    own_task,
    owned_tasks,
)

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ("durablelog", "readindex", "recovery", "segmentstore", "storagewriter", "tier2")
NOT_IN_A_STORE = (
    "recovery/harness",
    "segmentstore/cli",
    "tier2/spark",
    "durablelog/bookkeeper/cluster",
)
LISTED_ON_PURPOSE = {
    "durablelog/bookkeeper/zookeeper_nodes.py",  # gathers futures
    "segmentstore/cancellation_watch.py",
    "segmentstore/container/segment_calls.py",  # gathers futures
    "segmentstore/contracts/owned_tasks.py",
    "segmentstore/store_thread.py",
}
MAKES_TASKS = re.compile(
    r"(?<!group)\.create_task\(|ensure_future\(|asyncio\.TaskGroup\(\)"
    r"|asyncio\.(gather|wait_for|as_completed)\("
)
"""`wait_for` makes one in Python 3.11: `asyncio.timeout` does not."""


def test_tasks_of_the_engine_are_created_in_one_place() -> None:
    makers = {
        str(path.relative_to(ROOT))
        for package in ENGINE
        for path in (ROOT / package).rglob("*.py")
        if not str(path.relative_to(ROOT)).startswith(NOT_IN_A_STORE)
        and MAKES_TASKS.search(path.read_text("utf-8"))
    }
    assert makers == LISTED_ON_PURPOSE


def test_a_loop_does_not_list_them_and_everything_of_asyncio_works_in_them() -> None:
    seen: list[asyncio.Task[object] | None] = []

    async def work() -> int:
        seen.append(asyncio.current_task())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(1)
        async with OwnedTaskGroup() as group:
            child = group.create_task(asyncio.sleep(0, 1))
        outcomes = await gather_outcomes(asyncio.sleep(0, 2), asyncio.sleep(0, 3), name="two")
        return (
            child.result()
            + sum(await gather_owned(asyncio.sleep(0, 4), name="one"))
            + len(outcomes)
        )

    async def main() -> None:
        task = own_task(work(), name="work")
        while not task.done():
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert task in owned_tasks()
            await asyncio.sleep(0)
        assert seen == [task]
        assert task.result() == 7
        assert owned_tasks() == set()

    asyncio.run(main())


def test_an_error_and_a_cancellation_are_reported_to_the_owner() -> None:
    async def fail() -> None:
        raise KeyError("planted")

    async def main() -> None:
        reported: list[BaseException] = []
        own_task(fail(), name="fails", on_failure=reported.append)  # type: ignore[unused-awaitable]
        task = own_task(asyncio.sleep(1), name="waits", on_failure=reported.append)
        ends = asyncio.sleep(0)
        own_task(ends, name="ends", on_failure=reported.append)  # type: ignore[unused-awaitable]
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert [type(error) for error in reported] == [KeyError, asyncio.CancelledError]
        assert "waits" in str(reported[1])

    asyncio.run(main())
