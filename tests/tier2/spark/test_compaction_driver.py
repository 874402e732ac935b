"""What a compaction's driver waits for, and how long."""

from __future__ import annotations

import asyncio
import random

import pytest

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock
from tier2.mailbox.mailbox import put_answer
from tier2.mailbox.messages import Answer
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_names import MessageKey
from tier2.spark.reconcile.owners import POLL_S, QUICK_FOR_S, QUICK_POLL_S, answers_to

JOB = "00000000000000ab"


@pytest.mark.parametrize(
    ("answered_s", "timeout_s", "within_s"),
    [
        (0.35, 60.0, QUICK_POLL_S),
        (QUICK_FOR_S + 3.2, 60.0, POLL_S),
        (0.35, 1.0, QUICK_POLL_S),
        (60.5, 60.0, None),
        (0.35, 0.0, None),
    ],
)
def test_answers_are_soon_found_and_no_job_waits_longer_than_was_asked_for(
    answered_s: float, timeout_s: float, within_s: float | None
) -> None:
    async def body() -> None:
        runtime = Runtime(clock=LoopClock(), random=random.Random(1), executor=inline_executor)
        storage = MemoryObjectStorage(runtime)
        early, late = (MessageKey(container, JOB, "0123456789abcdef") for container in (0, 1))
        await put_answer(storage, runtime, Answer(*early, "committed"))

        async def answer_late() -> None:
            await asyncio.sleep(answered_s)
            await put_answer(storage, runtime, Answer(*late, "committed"))

        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.TaskGroup() as group:
            group.create_task(answer_late())
            answers = await answers_to(storage, [early, late], timeout_s)
            waited_s = loop.time() - begun
        if within_s is None:
            assert list(answers) == [early]
            assert waited_s == pytest.approx(timeout_s)
        else:
            assert list(answers) == [early, late]
            assert answered_s <= waited_s <= answered_s + within_s + 0.01

    run_virtual(body())
