"""The mailbox in an object storage: which message was first, what is there, waiting for answers,
removal.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock
from tests.tier2.mailbox.test_messages import ANSWER, JOB, PROPOSAL
from tier2.mailbox.mailbox import (
    get_bytes,
    list_job,
    list_messages,
    put_answer,
    put_message,
    read_answer,
    read_message,
    remove_entry,
    wait_for_answers,
)
from tier2.mailbox.messages import MESSAGE_BYTES_MAX, Answer, ExportRequest, MessageFormatError
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_names import MessageKey, answer_name, message_name
from tier2.object_storage import StorageUnavailableError

OTHER_JOB = "00000000deadbeef"


def in_mailbox(
    body: Callable[[MemoryObjectStorage, Runtime], Coroutine[Any, Any, None]], page_objects: int = 3
) -> None:
    async def main() -> None:
        runtime = Runtime(clock=LoopClock(), random=random.Random(1), executor=inline_executor)
        await body(MemoryObjectStorage(runtime, page_objects=page_objects), runtime)

    run_virtual(main())


def _export(message_id: str, job_id: str = JOB, container_id: int = 3) -> ExportRequest:
    return ExportRequest(container_id, job_id, message_id)


def _exported(message_id: str, job_id: str = JOB, container_id: int = 3) -> Answer:
    return Answer(container_id, job_id, message_id, "exported")


def test_of_two_attempts_the_first_counts_and_each_knows_its_own() -> None:
    async def body(storage: MemoryObjectStorage, runtime: Runtime) -> None:
        assert await put_message(storage, runtime, PROPOSAL)
        # The same attempt again, whose first reply was lost.
        assert await put_message(storage, runtime, PROPOSAL)
        assert not await put_message(storage, runtime, _export(PROPOSAL.message_id))
        assert await read_message(storage, PROPOSAL.key) == PROPOSAL
        assert await put_answer(storage, runtime, ANSWER)
        assert not await put_answer(storage, runtime, Answer(*ANSWER.key, "expired"))
        assert await read_answer(storage, *ANSWER.key) == ANSWER

    in_mailbox(body)


@pytest.mark.parametrize("after_effect", [False, True])
def test_a_put_whose_reply_is_lost_may_be_sent_again(after_effect: bool) -> None:
    async def body(storage: MemoryObjectStorage, runtime: Runtime) -> None:
        storage.fail("put", after_effect=after_effect)
        with pytest.raises(StorageUnavailableError):
            await put_message(storage, runtime, PROPOSAL)
        assert await put_message(storage, runtime, PROPOSAL)
        assert await read_message(storage, PROPOSAL.key) == PROPOSAL

    in_mailbox(body)


def test_what_is_not_there_is_none() -> None:
    async def body(storage: MemoryObjectStorage, runtime: Runtime) -> None:
        del runtime
        assert await read_message(storage, PROPOSAL.key) is None
        assert await read_answer(storage, *PROPOSAL.key) is None
        assert await list_messages(storage, 3) == []

    in_mailbox(body)


def test_what_is_not_what_its_name_says_is_refused() -> None:
    async def body(storage: MemoryObjectStorage, runtime: Runtime) -> None:
        await put_message(storage, runtime, PROPOSAL)
        await put_answer(storage, runtime, ANSWER)
        objects = storage.bucket.objects
        other = MessageKey(3, JOB, "other")
        objects[message_name(other)] = objects[message_name(PROPOSAL.key)]
        objects[answer_name(other)] = objects[message_name(PROPOSAL.key)]
        with pytest.raises(MessageFormatError, match="group-1"):
            await read_message(storage, other)
        with pytest.raises(MessageFormatError, match="no answer"):
            await read_answer(storage, *other)
        objects[message_name(other)] = objects[answer_name(ANSWER.key)]
        with pytest.raises(MessageFormatError, match="an answer"):
            await read_message(storage, other)
        for data in (b"", bytes(MESSAGE_BYTES_MAX + 1)):
            objects["x"] = MemoryObject(data, bytes(16), 0)
            with pytest.raises(MessageFormatError):
                await get_bytes(storage, "x")

    in_mailbox(body)


@pytest.mark.parametrize("page_objects", [1, 2, 3, 1000])
def test_a_listing_joins_answers_to_their_messages(page_objects: int) -> None:
    async def body(storage: MemoryObjectStorage, runtime: Runtime) -> None:
        ids = ["a", "a-", "a-b", "a0", "ab", "b", "z9"]
        for message_id in ids:
            await put_message(storage, runtime, _export(message_id))
        for message_id in ids[::2]:
            await put_answer(storage, runtime, _exported(message_id))
        await put_message(storage, runtime, _export("a", container_id=4))
        await put_message(storage, runtime, _export("other", OTHER_JOB))
        await storage.delete(message_name(_export("a0").key))
        await storage.delete(message_name(_export("b").key))
        storage.bucket.objects[f"mailbox/00000003/{JOB}/not one.json"] = MemoryObject(
            b"x", bytes(16), 0
        )
        found = {
            (entry.key.job_id, entry.key.message_id): (
                entry.message is not None,
                entry.answer is not None,
            )
            for entry in await list_messages(storage, 3)
        }
        assert found == {
            (OTHER_JOB, "other"): (True, False),
            (JOB, "a"): (True, True),
            (JOB, "a-"): (True, False),
            (JOB, "a-b"): (True, True),
            (JOB, "ab"): (True, True),
            (JOB, "z9"): (True, True),
        }
        await put_answer(storage, runtime, _exported("b"))
        (alone,) = [entry for entry in await list_job(storage, 3, JOB) if entry.message is None]
        assert (alone.key, alone.answer is not None) == (MessageKey(3, JOB, "b"), True)

    in_mailbox(body, page_objects)


def test_answers_are_waited_for_and_outages_waited_out() -> None:
    async def body(storage: MemoryObjectStorage, runtime: Runtime) -> None:
        keys = [_export(f"m{number}", container_id=number % 2).key for number in range(20)]

        async def owner() -> None:
            for number, key in enumerate(keys[:15]):
                await asyncio.sleep(1)
                if number == 5:
                    storage.fail("list", 7)
                    storage.fail("get_range", 3)
                await put_answer(storage, runtime, Answer(*key, "exported"))

        owning = asyncio.ensure_future(owner())
        begun = asyncio.get_running_loop().time()
        found = await wait_for_answers(storage, [*keys[:15], *keys[:3]], 3600, 2.0)
        assert list(found) == keys[:15]
        assert 15 <= asyncio.get_running_loop().time() - begun <= 30
        found = await wait_for_answers(storage, keys, 60, 2.0)
        assert list(found) == keys[:15]
        assert all(answer.verdict == "exported" for answer in found.values())
        assert await wait_for_answers(storage, [], 60, 2.0) == {}
        await owning

    in_mailbox(body)


def test_an_answer_that_cannot_be_read_is_a_failure() -> None:
    async def body(storage: MemoryObjectStorage, runtime: Runtime) -> None:
        del runtime
        storage.bucket.objects[answer_name(PROPOSAL.key)] = MemoryObject(b"\n", bytes(16), 0)
        found = await wait_for_answers(storage, [PROPOSAL.key], 60, 1.0)
        assert found[PROPOSAL.key].verdict == "failed"
        assert "cannot be read" in found[PROPOSAL.key].reason

    in_mailbox(body)


def test_a_message_is_taken_away_before_its_answer() -> None:
    async def body(storage: MemoryObjectStorage, runtime: Runtime) -> None:
        await put_message(storage, runtime, _export("a"))
        await put_answer(storage, runtime, _exported("a"))
        for after_effect, left in ((False, (True, True)), (True, (False, True)), (True, None)):
            (entry,) = await list_messages(storage, 3)
            storage.fail("delete", 1, after_effect=after_effect)
            with pytest.raises(StorageUnavailableError):
                await remove_entry(storage, entry)
            found = [
                (each.message is not None, each.answer is not None)
                for each in await list_messages(storage, 3)
            ]
            assert found == ([left] if left else [])

    in_mailbox(body)
