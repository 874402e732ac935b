"""The owner's side of the mailbox as a task: when it checks, what it waits out, how it ends, and
every place it may be cut off.
"""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import NotPrimaryError
from storagewriter import mailbox_pace, proposal_committer, request_processor
from storagewriter.config import StorageWriterConfig
from tests.storagewriter.fake_container import make_config
from tests.storagewriter.proposing import DAY_MS, JOB, OTHER_JOB, Mailed, Owner, owned
from tier2.mailbox.mailbox import list_messages, put_message, read_answer
from tier2.mailbox.messages import ExportRequest, OrphanDeletionRequest, ReplaceProposal
from tier2.memory_object_storage import Method
from tier2.object_storage import StorageUnavailableError

CONFIG = make_config(consolidation=False, mailbox_poll_interval_s=0.0)


# --- the task -------------------------------------------------------------------------------------


def _polls(o: Owner) -> list[float]:
    """When the mailbox is listed, from now on."""
    times: list[float] = []

    async def note(method: Method, name: str) -> None:
        if method == "list" and name.startswith("mailbox/"):
            times.append(asyncio.get_running_loop().time())

    o.hooks.before = note
    return times


def test_it_checks_now_and_then_and_often_after_something_was_found() -> None:
    async def body(o: Owner) -> None:
        looks = _polls(o)
        await asyncio.sleep(600)
        assert 18 <= len(looks) <= 21
        proposal = o.compact(await o.written())
        await put_message(o.storage, o.runtime, proposal)
        await asyncio.sleep(31)
        assert await o.answer(proposal) is not None
        del looks[:]
        await asyncio.sleep(mailbox_pace.QUICK_FOR_S - 60)
        # A listing with something in it has two pages, the last one empty.
        assert len(looks) / 2 == pytest.approx(240, abs=15)
        await asyncio.sleep(100)
        del looks[:]
        await asyncio.sleep(600)
        assert len(looks) / 2 == pytest.approx(20, abs=2)

    owned(body, mailbox_poll_interval_s=30.0)


def test_who_put_a_message_may_have_it_checked_now_and_checks_are_bounded() -> None:
    async def body(o: Owner) -> None:
        looks = _polls(o)
        await asyncio.sleep(600)
        proposal = o.compact(await o.written())
        await put_message(o.storage, o.runtime, proposal)
        o.keeper.pace.wake()
        await asyncio.sleep(0.1)
        assert await o.answer(proposal) is not None
        del looks[:]
        for _ in range(1000):
            o.keeper.pace.wake()
            await asyncio.sleep(0.01)
        assert 20 <= len(looks) / 2 <= 10 / mailbox_pace.WAKE_INTERVAL_S + 1

    owned(body, mailbox_poll_interval_s=30.0)


def test_what_one_container_finds_wakes_the_others_once() -> None:
    async def body(o: Owner) -> None:
        await asyncio.sleep(1)
        group = mailbox_pace.MailboxGroup()
        one, other = (mailbox_pace.MailboxPace(30.0, number, group) for number in (1, 2))
        loop = asyncio.get_running_loop()
        began = loop.time()
        one.polled(1)
        await other.until_due()
        assert (loop.time() - began, one.delay_s) == (0.0, 1.0)
        other.polled(1)
        await one.until_due()
        assert loop.time() - began == 1.0, "it polls often already: it is not woken"
        third = mailbox_pace.MailboxPace(30.0, 15, group)
        group.leave(third)
        group.leave(third)
        group.wake_others(one, loop.time())
        began = loop.time()
        await third.until_due()
        assert loop.time() - began == 30.0, "it has left: it is not woken"

    owned(body, mailbox_poll_interval_s=30.0)


def test_who_asks_while_a_check_fails_gets_a_check_when_the_tier_may_be_asked_again() -> None:
    async def body(o: Owner) -> None:
        await asyncio.sleep(1)
        pace, loop = mailbox_pace.MailboxPace(1000.0, 15), asyncio.get_running_loop()
        began = loop.time()
        pace.wake()
        await pace.until_due()
        pace.wake()
        pace.failed(7.0)
        pace.wake()
        await pace.until_due()
        assert loop.time() - began == 7.0, "owed, and no sooner"
        # The caller of the check that failed is owed one as well, without a further request.
        pace.failed(13.0)
        await pace.until_due()
        assert loop.time() - began == 20.0
        pace.polled(0)
        await pace.until_due()
        assert loop.time() - began == 20.0 + mailbox_pace.QUICK_POLL_S

    owned(body, mailbox_poll_interval_s=0.0)


def test_where_a_check_fails_without_a_request_the_pace_is_the_ordinary_one() -> None:
    async def body(_: Owner) -> None:
        pace, loop = mailbox_pace.MailboxPace(30.0, 15), asyncio.get_running_loop()
        await pace.until_due()
        for wait_s, paused in ((7.0, 30.0), (70.0, 70.0)):
            began = loop.time()
            pace.failed(wait_s)
            await pace.until_due()
            assert loop.time() - began == paused

    owned(body, mailbox_poll_interval_s=0.0)


def test_a_check_that_answers_and_then_fails_wakes_the_others_as_well() -> None:
    async def body(o: Owner) -> None:
        other = mailbox_pace.MailboxPace(1000.0, 15, o.keeper.pace.group)
        proposal = o.compact(await o.written())
        unread = o.compact(await o.written("b"), message_id="group-2")
        for message in (proposal, unread):
            await put_message(o.storage, o.runtime, message)

        async def refuse(method: Method, name: str) -> None:
            if method == "get_range" and "group-2" in name:
                raise StorageUnavailableError(name, "does not answer for it")

        o.hooks.before = refuse
        loop = asyncio.get_running_loop()
        began = loop.time()
        await other.until_due()
        assert loop.time() - began <= 30.0
        assert await o.answer(proposal) is not None
        assert await o.answer(unread) is None

    owned(body, mailbox_poll_interval_s=30.0)


def test_it_may_check_every_millisecond_or_never() -> None:
    async def body(o: Owner) -> None:
        looks = _polls(o)
        proposal = o.compact(await o.written())
        await put_message(o.storage, o.runtime, proposal)
        await asyncio.sleep(0.01)
        assert await o.answer(proposal) is not None
        assert len(looks) > 5

    owned(body, mailbox_poll_interval_s=0.001)

    async def never(o: Owner) -> None:
        looks = _polls(o)
        await asyncio.sleep(10_000)
        assert not looks

    owned(never, mailbox_poll_interval_s=0.0)


def test_the_interval_is_not_negative() -> None:
    with pytest.raises(Exception, match="mailbox_poll_interval_s"):
        dataclasses.replace(StorageWriterConfig(), mailbox_poll_interval_s=-1.0)


def test_a_tier_that_does_not_answer_is_waited_out_and_reported_if_something_waits() -> None:
    async def body(o: Owner) -> None:
        o.storage.fail("list", 1000)
        await asyncio.sleep(3600)
        assert 50 < o.writer.statistics().mailbox_failures <= 125
        # No request is known to wait.
        assert o.writer.health() is None
        o.storage.heal()
        proposal = o.compact(await o.written())
        await put_message(o.storage, o.runtime, proposal)
        o.storage.fail("get_range", 1000)
        await asyncio.sleep(100)
        health = o.writer.health()
        assert health is not None
        assert "mailbox in tier2" in health
        await o.writer.flush()
        o.storage.heal()
        await asyncio.sleep(100)
        assert await o.answer(proposal) is not None
        assert o.writer.health() is None

    owned(body, mailbox_poll_interval_s=30.0)


@pytest.mark.parametrize("method", ["list", "get_range", "head", "put"])
@pytest.mark.parametrize("after_effect", [False, True])
def test_any_request_may_fail_at_any_time(method: Method, after_effect: bool) -> None:
    async def body(o: Owner) -> None:
        ids = [await o.written(name) for name in ("a", "b", "c")]
        proposals = [o.compact(each, message_id=f"group-{each}") for each in ids]
        for proposal in proposals:
            await put_message(o.storage, o.runtime, proposal)
        for _ in range(5):
            o.storage.fail(method, 1, after_effect=after_effect)
            await asyncio.sleep(7)
        o.storage.heal()
        await asyncio.sleep(60)
        answers = [await o.answer(proposal) for proposal in proposals]
        assert [answer and answer.verdict for answer in answers] == ["committed"] * 3

    owned(body, mailbox_poll_interval_s=1.0)


def test_an_object_that_never_answers_holds_up_no_other_message() -> None:
    async def body(o: Owner) -> None:
        ids = [await o.written(f"s{number}") for number in range(6)]
        proposals = [
            o.compact(each, message_id=f"group-{number}") for number, each in enumerate(ids)
        ]
        stuck = [proposals[number].object.name for number in (0, 1, 3)]
        for proposal in proposals:
            await put_message(o.storage, o.runtime, proposal)

        async def refuse(method: Method, name: str) -> None:
            if method == "head" and name in stuck:
                raise StorageUnavailableError(name, "it is in an archive")

        o.hooks.before = refuse
        await asyncio.sleep(300)
        o.hooks.before = None
        answers = [await o.answer(proposal) for proposal in proposals]
        assert [answer is None for answer in answers] == [True, True, False, True, False, False]
        assert "it is in an archive" in (o.writer.health() or "")
        await asyncio.sleep(60)
        assert all([await o.answer(proposal) for proposal in proposals])
        assert o.writer.health() is None

    owned(body, mailbox_poll_interval_s=1.0)


def test_messages_that_cannot_be_answered_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_processor, "MESSAGES_PER_CHECK", 3)

    async def body(o: Owner) -> None:
        segment_id = await o.written()
        good = o.compact(segment_id, message_id="z")
        changed = [
            o.compact(await o.written(f"s{n}"))._replace(message_id=f"group-{n}") for n in range(7)
        ]
        for n in range(7):
            o.truncate(changed[n].replacements[0].segment_id, 150)
        for proposal in (*changed, good):
            await put_message(o.storage, o.runtime, proposal)
        # Beside another store nothing is refused.
        o.writer.orphan_sweeper.shared_with = _not_alone
        assert [await o.keeper.check_now() for _ in range(6)] == [0, 0, 1, 0, 0, 0]
        answer = await o.answer(good)
        assert answer is not None
        assert answer.verdict == "committed"

    owned(body)


def test_our_own_fault_defers_a_message_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(proposal_committer, "find_fault", broken)

    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        export = ExportRequest(7, OTHER_JOB, "export")
        for message in (proposal, export):
            await put_message(o.storage, o.runtime, message)
        await asyncio.sleep(100)
        assert await read_answer(o.storage, *export.key) is not None
        assert await o.answer(proposal) is None
        health = o.writer.health()
        assert health is not None
        assert f"{JOB}/group-1: ZeroDivisionError: a bug" in health
        monkeypatch.undo()
        # The next owner tries again.
        o = o.next_owner()
        assert await o.keeper.check_now() == 1
        await o.writer.stop()

    owned(body, mailbox_poll_interval_s=30.0)


def test_answered_messages_are_deleted_after_a_week() -> None:
    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        await o.ask(proposal)
        await asyncio.sleep(7 * DAY_MS / 1000 - 60)
        await o.keeper.check_now()
        assert len(await list_messages(o.storage, 7)) == 1
        await asyncio.sleep(120)
        await o.keeper.check_now()
        assert not await list_messages(o.storage, 7)

    owned(body)


async def _not_alone() -> str | None:
    return "another"


def test_an_answer_whose_message_is_missing_already_goes_too() -> None:
    async def body(o: Owner) -> None:
        await o.ask(o.compact(await o.written()))
        await asyncio.sleep(8 * DAY_MS / 1000)
        o.storage.fail("delete", 1, after_effect=True)
        with pytest.raises(StorageUnavailableError):
            await o.keeper.check_now()
        (entry,) = await list_messages(o.storage, 7)
        assert entry.message is None
        await o.keeper.check_now()
        assert not await list_messages(o.storage, 7)

    owned(body)


def test_a_close_begins_nothing_more() -> None:
    async def body(o: Owner) -> None:
        first, second = (
            o.compact(await o.written("a")),
            o.compact(await o.written("b"), message_id="group-2"),
        )
        for proposal in (first, second):
            await put_message(o.storage, o.runtime, proposal)

        def drain(committed: bool) -> None:
            o.keeper.draining = committed

        o.on_commit = drain
        assert await o.keeper.check_now() == 1
        assert await o.answer(first) is not None
        assert await o.answer(second) is None
        assert o.keeper.waiting == 1

    owned(body)


# --- the log --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fits", [True, False])
def test_who_was_fenced_says_nothing_and_the_next_owner_answers(fits: bool) -> None:
    async def main() -> None:
        o = Owner(CONFIG)
        o.writer.start()
        segment_id = await o.written()
        proposal = o.compact(segment_id)
        if not fits:
            o.truncate(segment_id, 150)
        await put_message(o.storage, o.runtime, proposal)
        o.commit_error = NotPrimaryError(7, "another has it")
        with pytest.raises(NotPrimaryError):
            await o.keeper.check_now()
        assert await o.answer(proposal) is None
        await o.writer.stop()
        n = o.next_owner()
        assert await n.keeper.check_now() == 1
        answer = await n.answer(proposal)
        assert answer is not None
        assert answer.verdict == ("committed" if fits else "refused_changed")
        n.check_stored()
        await n.writer.stop()

    run_virtual(main())


def test_a_log_that_ended_ends_the_writer() -> None:
    async def main() -> None:
        o = Owner(dataclasses.replace(CONFIG, mailbox_poll_interval_s=1.0))
        o.writer.start()
        await put_message(o.storage, o.runtime, o.compact(await o.written()))
        o.commit_error = RuntimeError("the log is gone")
        await asyncio.sleep(10)
        # Not known to be of the log: the message is taken for the culprit.
        assert "the log is gone" in (o.writer.health() or "")
        o.commit_error = NotPrimaryError(7, "another has it")
        await put_message(o.storage, o.runtime, ExportRequest(7, OTHER_JOB, "export"))
        await asyncio.sleep(10)
        assert o.writer.failure is o.commit_error
        await o.writer.stop()

    run_virtual(main())


# --- cut off anywhere -----------------------------------------------------------------------------


class Cut(BaseException):
    """The process has ended, here."""


class _Cutter:
    """Ends the process before or after the n-th thing it does to the outside."""

    def __init__(self, at: int) -> None:
        self.left = at

    def effect(self) -> None:
        if not self.left:
            raise Cut
        self.left -= 1

    def commit(self, committed: bool) -> None:
        del committed
        self.effect()

    async def call(self, method: Method, name: str) -> None:
        del method, name
        self.effect()


def _messages(o: Owner, ids: list[int]) -> list[Mailed]:
    """One of each kind: taken whole, taken in part, refused, a second attempt, an orphan."""
    in_part = o.compact(ids[2], ids[3], message_id="in-part")
    orphan = o.plant(o.compaction_name(OTHER_JOB), age_ms=4 * DAY_MS)
    messages: list[Mailed] = [
        o.compact(ids[0], ids[1], message_id="whole"),
        in_part,
        o.compact(ids[4], message_id="refused"),
        o.copy(ids[0], message_id="x-second"),
        OrphanDeletionRequest(
            7, OTHER_JOB, "orphans", (orphan,), o.runtime.clock.time_ms() - DAY_MS
        ),
    ]
    o.truncate(ids[3], 120)
    o.delete(ids[4])
    return messages


EXPECTED = [
    "committed",
    "committed_in_part",
    "refused_unknown_segment",
    "refused_changed",
    "condemned",
]


def test_cut_off_anywhere_the_next_owner_ends_at_the_same_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proposal_committer, "OPERATION_CHUNKS", 2)
    verdicts: list[tuple[int, list[str]]] = []

    async def life(at: int) -> bool:
        """Whether the process came to its end before it was cut off."""
        o = Owner(CONFIG)
        o.writer.start()
        ids = [await o.written(f"s{number}", 2) for number in range(5)]
        messages = _messages(o, ids)
        for message in messages:
            assert await put_message(o.storage, o.runtime, message)
        cutter = _Cutter(at)
        o.on_commit, o.hooks.before = cutter.commit, cutter.call
        try:
            await o.keeper.check_now()
            ended = True
        except Cut:
            ended = False
        o.on_commit = o.hooks.before = None
        await o.writer.stop()
        n = o.next_owner()
        await n.keeper.check_now()
        await n.keeper.check_now()
        answers = [await n.answer(message) for message in messages]
        verdicts.append(
            (at, [answer.verdict if answer is not None else "none" for answer in answers])
        )
        n.check_stored()
        for message in messages:
            if isinstance(message, ReplaceProposal):
                assert (
                    message.object.name in n.metadata.objects
                    or message.object.name in n.metadata.garbage
                )
        (orphan,) = messages[-1].names  # type: ignore[union-attr]
        assert orphan in n.metadata.garbage
        await n.writer.stop()
        return ended

    at = 0
    while not run_virtual(life(at)):
        at += 1
    assert at > 30
    assert {tuple(each) for _, each in verdicts} == {tuple(EXPECTED)}
