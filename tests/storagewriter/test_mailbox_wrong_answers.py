"""Messages and proposed objects behind a server that gives a wrong bit: an owner's refusal is
final, and so is what a job reports.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from segmentstore.contracts.runtime import Runtime
from tests.storagewriter.proposing import Owner, owned
from tests.tier2.flipping_storage import FlippingStorage
from tests.tier2.mailbox.test_messages import ANSWER, PROPOSAL
from tier2.block_reader import FETCHES_MAX
from tier2.mailbox.mailbox import (
    put_answer,
    put_message,
    read_answer,
    read_message,
    wait_for_answers,
)
from tier2.mailbox.messages import MessageFormatError

pytestmark = pytest.mark.usefixtures("active_or_idle")


def test_a_proposal_is_not_refused_for_a_wrong_bit_in_an_answer() -> None:
    async def body(o: Owner) -> None:
        answers = number = 0
        while number <= answers:
            segment_id = await o.written(f"s{number}")
            proposal = o.compact(segment_id, message_id=f"group-{number}")
            o.hooks.give_wrong(FETCHES_MAX - 1, random.Random(number), number)
            answer = await o.ask(proposal)
            assert answer is not None
            assert answer.verdict == "committed", (number, answer.reason)
            answers, number = o.hooks.answers, number + 1
            o.hooks.give_wrong(0)
        assert number > 2, "a message and headers"

    owned(body)


def test_what_is_damaged_is_refused_as_before() -> None:
    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        assert await put_message(o.storage, o.runtime, proposal)
        o.hooks.give_wrong(FETCHES_MAX)
        await o.keeper.check_now()
        answer = await o.answer(proposal)
        assert answer is not None
        assert answer.verdict == "refused_malformed"

    owned(body)


def test_messages_and_answers_are_read_behind_a_wrong_bit() -> None:
    async def main() -> None:
        runtime = Runtime(random=random.Random(1))
        storage = FlippingStorage(runtime)
        await put_message(storage, runtime, PROPOSAL)
        await put_answer(storage, runtime, ANSWER)
        for seed in range(20):
            storage.give_wrong(FETCHES_MAX - 1, random.Random(seed))
            assert await read_message(storage, PROPOSAL.key) == PROPOSAL
            storage.give_wrong(FETCHES_MAX - 1, random.Random(seed))
            assert await read_answer(storage, *ANSWER.key) == ANSWER
            storage.give_wrong(FETCHES_MAX - 1, random.Random(seed))
            assert await wait_for_answers(storage, [ANSWER.key], 0, 1) == {ANSWER.key: ANSWER}
        storage.give_wrong(FETCHES_MAX)
        with pytest.raises(MessageFormatError):
            await read_message(storage, PROPOSAL.key)

    asyncio.run(main())
