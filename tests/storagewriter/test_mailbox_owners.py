"""Messages say for which store they are: what is another's is neither answered nor deleted, what is
ours is answered anywhere.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.storagewriter.fake_container import STORE_ID
from tests.storagewriter.proposing import DAY_MS, JOB, OTHER_JOB, RNG, Owner, not_alone, owned
from tier2.mailbox.mailbox import list_messages, put_message, read_answer
from tier2.mailbox.messages import (
    Answer,
    ExportRequest,
    Message,
    MessageFormatError,
    OrphanDeletionRequest,
    encode,
    parse,
)
from tier2.memory_object_storage import MemoryObject
from tier2.object_names import answer_name, message_name, object_name
from tier2.unique_ids import new_unique_id

OTHER_ID = "00000000-0000-4000-8000-000000000001"
OLD_MS = 3 * DAY_MS


async def _manifest() -> str:
    return "a manifest"


async def _alone() -> str | None:
    return None


def test_what_is_for_another_store_is_neither_answered_nor_deleted() -> None:
    async def body(o: Owner) -> None:
        o.keeper._export = _manifest
        theirs: list[Message] = [
            ExportRequest(7, OTHER_JOB, "export", OTHER_ID),
            OrphanDeletionRequest(
                7, OTHER_JOB, "condemn", (o.compaction_name(),), 10**15, OTHER_ID
            ),
            o.compact(await o.written())._replace(store_id=OTHER_ID),
        ]
        for message in theirs:
            await put_message(o.storage, o.runtime, message)
        for _ in range(2):
            assert await o.keeper.drain() == 0
            assert o.keeper.waiting == 0
            assert len(await list_messages(o.storage, 7)) == 3
            await asyncio.sleep(8 * DAY_MS / 1000)
        assert not o.metadata.garbage

    owned(body)


def test_an_answer_that_another_store_gave_is_left_to_it() -> None:
    async def body(o: Owner) -> None:
        keys = []
        for number, store_id in enumerate((OTHER_ID, STORE_ID, "")):
            request = ExportRequest(7, OTHER_JOB, f"export-{number}", store_id)
            answer = Answer(*request.key, "exported", "", {"manifest": "x"}, store_id)
            now_ms = o.runtime.clock.time_ms()
            o.storage.bucket.objects[message_name(request.key)] = MemoryObject(
                encode(request), bytes(16), now_ms
            )
            o.storage.bucket.objects[answer_name(request.key)] = MemoryObject(
                encode(answer), bytes(16), now_ms
            )
            keys.append(request.key)
        await asyncio.sleep(8 * DAY_MS / 1000)
        o.writer.orphan_sweeper.shared_with = not_alone
        await o.keeper.check_now()
        assert [entry.key for entry in await list_messages(o.storage, 7)] == [keys[0], keys[2]]
        # The writer of the last one is unknown, unless no other store was ever here.
        o.writer.orphan_sweeper.shared_with = _alone
        await o.keeper.check_now()
        assert [entry.key for entry in await list_messages(o.storage, 7)] == [keys[0]]

    owned(body)


def test_what_is_for_this_store_is_answered_where_others_are_too() -> None:
    async def body(o: Owner) -> None:
        o.keeper._export = _manifest
        o.writer.orphan_sweeper.shared_with = not_alone
        request = ExportRequest(7, JOB, "export", STORE_ID)
        await put_message(o.storage, o.runtime, request)
        await put_message(o.storage, o.runtime, ExportRequest(7, OTHER_JOB, "export"))
        assert await o.keeper.check_now() == 1
        answer = await read_answer(o.storage, *request.key)
        assert answer is not None
        assert (answer.verdict, answer.store_id) == ("exported", STORE_ID)

    owned(body)


def test_a_proposal_of_an_object_without_the_tag_is_refused_and_its_object_stays() -> None:
    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        data = o.storage.bucket.objects[proposal.object.name].data
        name = o.plant(object_name(7, o.epoch, "compaction", new_unique_id(RNG), job_id=JOB), data)
        replacements = tuple(
            each._replace(new=tuple(chunk._replace(object_name=name) for chunk in each.new))
            for each in proposal.replacements
        )
        foreign = proposal._replace(
            object=proposal.object._replace(name=name), replacements=replacements
        )
        answer = await o.ask(foreign)
        assert answer is not None
        assert (answer.verdict, answer.reason) == (
            "refused_malformed",
            f"{name} does not carry the tag of this store",
        )
        assert name in o.storage.bucket.objects
        assert name not in o.metadata.garbage

    owned(body)


def test_what_names_no_store_is_written_as_older_versions_did() -> None:
    named, plain = (ExportRequest(7, JOB, "export", store_id) for store_id in (STORE_ID, ""))
    assert b"store_id" not in encode(plain)
    assert parse(encode(plain)) == plain
    assert parse(encode(named)) == named
    with pytest.raises(ValueError, match="UUID"):
        encode(plain._replace(store_id="mine"))
    with pytest.raises(MessageFormatError):
        parse(encode(named).replace(STORE_ID.encode(), OTHER_ID.encode()))
