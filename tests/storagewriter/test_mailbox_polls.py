"""One check of the mailbox: what it takes in which order, what it passes over, and what it
deletes.
"""

from __future__ import annotations

import asyncio

import pytest

from segmentstore.contracts.errors import TierUnavailableError
from storagewriter import proposal_committer, request_processor
from tests.storagewriter.fake_container import STORE_ID
from tests.storagewriter.proposing import DAY_MS, JOB, OTHER_JOB, Owner, not_alone, owned
from tier2.mailbox.mailbox import list_messages, put_message, read_answer
from tier2.mailbox.messages import ExportRequest, Message, OrphanDeletionRequest
from tier2.memory_object_storage import Method
from tier2.object_storage import StorageUnavailableError


def test_an_unanswered_message_is_tried_for_a_week_and_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def body(o: Owner) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(proposal_committer, "find_fault", broken)
            ours = o.compact(await o.written())._replace(store_id=STORE_ID)
            assert await o.ask(ours) is None
        foreign = ExportRequest(7, OTHER_JOB, "export")
        await put_message(o.storage, o.runtime, foreign)
        o.writer.orphan_sweeper.shared_with = not_alone
        await asyncio.sleep(7 * DAY_MS / 1000 - 60)
        assert await o.keeper.check_now() == 0
        assert len(await list_messages(o.storage, 7)) == 2
        assert o.writer.health() is not None
        await asyncio.sleep(120)
        # Both tried once more. The one that was set aside is deleted then, for it says that it is
        # ours.
        for _ in range(2):
            await o.keeper.check_now()
            assert [entry.key for entry in await list_messages(o.storage, 7)] == [foreign.key]
        assert o.writer.health() is None

    owned(body)


def test_what_is_answered_at_last_keeps_its_message_as_long_as_its_answer() -> None:
    async def body(o: Owner) -> None:
        request = ExportRequest(7, OTHER_JOB, "export")
        await put_message(o.storage, o.runtime, request)
        await asyncio.sleep(8 * DAY_MS / 1000)
        assert await o.keeper.check_now() == 1
        (entry,) = await list_messages(o.storage, 7)
        assert None not in (entry.message, entry.answer)

    owned(body)


def test_what_tier2_never_answers_for_holds_up_neither_orphans_nor_the_clean_up() -> None:
    async def body(o: Owner) -> None:
        await o.ask(o.compact(await o.written("old"), message_id="old"))
        await asyncio.sleep(7 * DAY_MS / 1000 + 60)
        stuck = [
            o.compact(await o.written(f"s{n}"), message_id=f"stuck-{n:02d}") for n in range(12)
        ]
        orphan = o.plant(o.compaction_name(OTHER_JOB), age_ms=4 * DAY_MS)
        request = OrphanDeletionRequest(
            7, OTHER_JOB, "orphans", (orphan,), o.runtime.clock.time_ms() - DAY_MS
        )
        messages: list[Message] = [*stuck, request]
        for message in messages:
            await put_message(o.storage, o.runtime, message)
        held = {proposal.object.name for proposal in stuck}
        heads: list[str] = []

        async def refuse(method: Method, name: str) -> None:
            if method == "head" and name in held:
                heads.append(name)
                raise StorageUnavailableError(name, "it is in an archive")

        o.hooks.before = refuse
        for _ in range(3):
            with pytest.raises(StorageUnavailableError, match="archive"):
                await o.keeper.check_now()
        assert len(heads) == 3 * request_processor.FAILURES_IN_A_ROW
        # In turn: one that is to be had again does not wait behind those that never are.
        assert set(heads) == held
        assert orphan in o.metadata.garbage
        assert "old" not in [entry.key.message_id for entry in await list_messages(o.storage, 7)]
        held.clear()
        assert await o.keeper.check_now() == 12

    owned(body)


# --- exports --------------------------------------------------------------------------------------


def test_an_export_is_answered_with_the_name_of_the_snapshot() -> None:
    async def body(o: Owner) -> None:
        async def export() -> str:
            return "catalog/00000007/x/manifest.json"

        o.keeper._export = export
        request = ExportRequest(7, JOB, "export")
        await put_message(o.storage, o.runtime, request)
        await o.keeper.check_now()
        answer = await read_answer(o.storage, *request.key)
        assert answer is not None
        assert (answer.verdict, answer.detail) == (
            "exported",
            {"manifest": "catalog/00000007/x/manifest.json"},
        )

    owned(body)


def test_one_export_after_all_else_answers_all_who_asked() -> None:
    async def body(o: Owner) -> None:
        orphan = o.plant(o.compaction_name(OTHER_JOB), age_ms=4 * DAY_MS)
        requests = [ExportRequest(7, "0" * 16, f"export-{number}") for number in range(5)]
        proposal = o.compact(await o.written())
        mark_for_deletion = OrphanDeletionRequest(
            7, OTHER_JOB, "orphans", (orphan,), o.runtime.clock.time_ms() - DAY_MS
        )
        seen: list[tuple[bool, bool]] = []

        async def export() -> str:
            seen.append((proposal.object.name in o.metadata.objects, orphan in o.metadata.garbage))
            return f"catalog/00000007/{len(seen)}/manifest.json"

        o.keeper._export = export
        messages: list[Message] = [*requests, proposal, mark_for_deletion]
        for message in messages:
            await put_message(o.storage, o.runtime, message)
        assert await o.keeper.check_now() == 7
        assert seen == [(True, True)]
        answers = [await read_answer(o.storage, *request.key) for request in requests]
        assert {answer.detail["manifest"] for answer in answers if answer} == {
            "catalog/00000007/1/manifest.json"
        }
        assert all(answers)

    owned(body)


def test_an_export_with_a_bug_defers_all_requests() -> None:
    async def body(o: Owner) -> None:
        calls: list[int] = []

        async def export() -> str:
            calls.append(1)
            raise ZeroDivisionError("a bug")

        o.keeper._export = export
        for number in range(3):
            await put_message(o.storage, o.runtime, ExportRequest(7, JOB, f"export-{number}"))
        assert [await o.keeper.check_now() for _ in range(2)] == [0, 0]
        assert len(calls) == 1
        assert "3 messages" in (o.writer.health() or "")

    owned(body)


@pytest.mark.parametrize(
    "error", [StorageUnavailableError("catalog/x", "no\nroom"), TierUnavailableError("tier2", "no")]
)
def test_an_export_that_fails_is_answered_too(error: Exception) -> None:
    async def body(o: Owner) -> None:
        async def export() -> str:
            raise error

        o.keeper._export = export
        request = ExportRequest(7, JOB, "export")
        await put_message(o.storage, o.runtime, request)
        await o.keeper.check_now()
        answer = await read_answer(o.storage, *request.key)
        assert answer is not None
        assert answer.verdict == "failed"
        assert "no" in answer.reason

    owned(body)
