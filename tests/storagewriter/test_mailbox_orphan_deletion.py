"""What a job may have marked for deletion: only what no reader can need, checked by the owner,
through the one way of all deletions.
"""

from __future__ import annotations

from collections import Counter

import pytest

from durablelog.operations import StorageUpdateOperation
from storagewriter import orphan_sweeper, proposal_committer, request_processor
from tests.storagewriter.fake_container import TAG
from tests.storagewriter.proposing import DAY_MS, JOB, OTHER_JOB, RNG, Owner, not_alone, owned
from tier2.mailbox.mailbox import put_message
from tier2.mailbox.messages import Answer, OrphanDeletionRequest
from tier2.object_names import ObjectKind, message_name, object_name
from tier2.object_storage import StorageUnavailableError
from tier2.unique_ids import new_tagged_id, new_unique_id

OLD_MS = 3 * DAY_MS


def _request(
    o: Owner, *names: str, older_than_ms: int | None = None, message_id: str = "orphans"
) -> OrphanDeletionRequest:
    asked = o.runtime.clock.time_ms() - 2 * DAY_MS if older_than_ms is None else older_than_ms
    return OrphanDeletionRequest(7, OTHER_JOB, message_id, names, asked)


def _name(o: Owner, kind: ObjectKind, *, epoch: int = 0) -> str:
    return object_name(7, epoch or o.epoch, kind, new_tagged_id(TAG, RNG))


def _left(answer: Answer | None) -> dict[str, str]:
    assert answer is not None
    assert answer.verdict == "condemned"
    left: dict[str, str] = answer.detail["left_alone"]
    return left


def test_orphans_of_jobs_and_of_dead_owners_go_the_one_way_of_all_deletions() -> None:
    async def body(o: Owner) -> None:
        o.epoch = 3
        of_job = o.plant(o.compaction_name(), age_ms=OLD_MS)
        of_dead = o.plant(_name(o, "flush", epoch=2), age_ms=OLD_MS)
        answer = await o.ask(_request(o, of_job, of_dead))
        assert answer is not None
        assert answer.detail == {"condemned": [of_job, of_dead], "left_alone": {}}
        assert list(o.metadata.garbage) == [of_job, of_dead]
        # By the log, and after the lag.
        assert isinstance(o.log[-1], StorageUpdateOperation)
        assert {of_job, of_dead} <= o.storage.bucket.objects.keys()
        for name in (of_job, of_dead):
            o.metadata.garbage[name] = o.metadata.garbage[name]._replace(since_ms=-(10**12))
        assert await o.writer.garbage_collector.collect_now() == 2
        assert not {of_job, of_dead} & o.storage.bucket.objects.keys()

    owned(body)


def test_whatever_may_be_wanted_is_left_alone_and_the_answer_says_why() -> None:
    async def body(o: Owner) -> None:
        o.epoch = 3
        segment_id = await o.written()
        live = o.segment(segment_id).chunks.first.object_name
        o.delete(await o.written("gone", 1))
        (garbage,) = o.metadata.garbage
        on_its_way = _name(o, "flush", epoch=2)
        o.writer._uploader.in_flight[on_its_way] = None
        left = {
            live: "segments refer to it",
            garbage: "it is garbage already, and waits for its deletion",
            o.plant(on_its_way, age_ms=OLD_MS): "it is on its way",
            o.plant(
                _name(o, "flush"), age_ms=OLD_MS
            ): "it is of the running epoch: its owner manages it",
            o.plant(
                _name(o, "consolidation"), age_ms=OLD_MS
            ): "it is of the running epoch: its owner manages it",
            o.plant(
                o.compaction_name(epoch=4), age_ms=OLD_MS
            ): "it is of an epoch after the running one, 3",
            o.plant(o.compaction_name(container_id=8), age_ms=OLD_MS): "it is of container 8",
            "stores/0123": "its name is not one of an object of ours",
            "no/name of ours": "its name is not one of an object of ours",
            o.plant(object_name(7, 2, "flush", new_unique_id(RNG)), age_ms=OLD_MS): (
                "it does not carry the tag of this store: it may be another's"
            ),
            o.compaction_name(): "it is not there",
            o.plant(o.compaction_name(), age_ms=DAY_MS + 1000): "it is younger than was asked for",
        }
        answer = await o.ask(_request(o, *left, *left))
        assert _left(answer) == left
        assert answer is not None
        assert answer.detail["condemned"] == []
        # However young a job asks for.
        young = o.plant(o.compaction_name(), age_ms=DAY_MS - 1000)
        asked = _request(o, young, older_than_ms=10**15, message_id="young")
        assert _left(await o.ask(asked)) == {young: "it is younger than 24 hours"}
        assert list(o.metadata.garbage) == [garbage]
        del o.writer._uploader.in_flight[on_its_way]

    owned(body)


def test_what_a_waiting_proposal_names_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        name = proposal.object.name
        o.plant(name, o.storage.bucket.objects[name].data, age_ms=OLD_MS)
        # Set aside, so that it goes on waiting.
        with monkeypatch.context() as patched:
            patched.setattr(proposal_committer, "find_fault", broken)
            assert await o.ask(proposal) is None
        assert _left(await o.ask(_request(o, name))) == {
            name: "a proposal names it that has no answer yet"
        }
        assert not o.metadata.garbage

    owned(body)


def test_proposals_are_checked_first_whatever_the_messages_are_called() -> None:
    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        name = proposal.object.name
        request = _request(o, name, older_than_ms=10**15)
        assert request.key < proposal.key
        assert JOB > OTHER_JOB
        for message in (request, proposal):
            assert await put_message(o.storage, o.runtime, message)
        assert await o.keeper.check_now() == 2
        assert _left(await o.answer(request)) == {name: "segments refer to it"}

    owned(body)


def test_what_comes_to_be_wanted_while_it_is_checked_is_left_alone() -> None:
    async def body(o: Owner) -> None:
        names = [o.plant(o.compaction_name(), age_ms=OLD_MS) for _ in range(3)]

        async def note(method: str, name: str) -> None:
            if method == "head" and name == names[2]:
                o.writer._uploader.in_flight[names[0]] = None

        o.hooks.before = note
        answer = await o.ask(_request(o, *names))
        assert _left(answer) == {names[0]: "it is on its way"}
        assert list(o.metadata.garbage) == names[1:]

    owned(body)


def test_nothing_is_marked_for_deletion_beside_another_store() -> None:
    async def body(o: Owner) -> None:
        name = o.plant(o.compaction_name(), age_ms=OLD_MS)
        o.writer.orphan_sweeper.shared_with = not_alone
        request = _request(o, name)
        assert await o.ask(request) is None
        assert not o.metadata.garbage
        o.writer.orphan_sweeper.shared_with = _alone
        await o.keeper.check_now()
        answer = await o.answer(request)
        assert answer is not None
        assert answer.detail["condemned"] == [name]

    owned(body)


async def _alone() -> None:
    return None


def test_what_waits_for_deletion_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphan_sweeper, "GARBAGE_MAX", 4)
    monkeypatch.setattr(orphan_sweeper, "BATCH_OBJECTS", 2)

    async def body(o: Owner) -> None:
        names = [o.plant(o.compaction_name(), age_ms=OLD_MS) for _ in range(7)]
        answer = await o.ask(_request(o, *names))
        assert _left(answer) == dict.fromkeys(names[4:], "too much waits for deletion already")
        assert list(o.metadata.garbage) == names[:4]

    owned(body)


def test_while_too_much_waits_tier2_is_asked_for_no_more_orphans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orphan_sweeper, "GARBAGE_MAX", 8)

    async def body(o: Owner) -> None:
        names = [o.plant(o.compaction_name(), age_ms=OLD_MS) for _ in range(60)]
        heads: list[str] = []

        async def note(method: str, name: str) -> None:
            if method == "head" and name in names:
                heads.append(name)

        o.hooks.before = note
        for message_id, some in (("first", names[:40]), ("second", names[40:])):
            answer = await o.ask(_request(o, *some, message_id=message_id))
            assert set(_left(answer).values()) == {"too much waits for deletion already"}
        assert list(o.metadata.garbage) == heads == names[:8]

    owned(body)


def test_with_more_proposals_than_a_check_takes_a_request_is_answered_and_all_are_protected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_processor, "MESSAGES_PER_CHECK", 3)

    async def body(o: Owner) -> None:
        orphan = o.plant(o.compaction_name(), age_ms=OLD_MS)
        proposals = [
            o.compact(await o.written(f"s{n}", 1), message_id=f"group-{n}") for n in range(4)
        ]
        last = proposals[-1].object.name
        o.plant(last, o.storage.bucket.objects[last].data, age_ms=OLD_MS)
        request = _request(o, orphan, last)
        assert await put_message(o.storage, o.runtime, request)
        for proposal in proposals:
            assert await put_message(o.storage, o.runtime, proposal)
        assert await o.keeper.check_now() == 3
        answer = await o.answer(request)
        assert _left(answer) == {last: "a proposal names it that has no answer yet"}
        assert answer is not None
        assert answer.detail["condemned"] == [orphan]
        assert await o.keeper.check_now() == 2

    owned(body)


def test_more_requests_than_one_check_takes_are_answered_by_one_reading_of_the_mailbox_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_processor, "MESSAGES_PER_CHECK", 10)

    async def body(o: Owner) -> None:
        names = [o.plant(o.compaction_name(), age_ms=OLD_MS) for _ in range(25)]
        requests = [_request(o, name, message_id=f"orphan-{n:02d}") for n, name in enumerate(names)]
        for request in requests:
            assert await put_message(o.storage, o.runtime, request)
        calls: Counter[str] = Counter()

        async def note(method: str, name: str) -> None:
            if name.startswith("mailbox/"):
                calls[method] += 1

        o.hooks.before = note
        assert await o.keeper.check_now() == 10
        # Each of this check's once, each of the others once; the check's own listing, and one for
        # what is proposed.
        assert calls["get_range"] == 25
        assert calls["list"] == 4
        assert [await o.keeper.check_now() for _ in range(3)] == [10, 5, 0]
        assert set(names) == set(o.metadata.garbage)

    owned(body)


def test_of_a_job_with_a_message_that_cannot_be_read_nothing_is_marked_for_deletion() -> None:
    async def body(o: Owner) -> None:
        of_job, of_other = (
            o.plant(o.compaction_name(job), age_ms=OLD_MS) for job in (JOB, "0" * 16)
        )
        unread = o.compact(await o.written())
        request = _request(o, of_job, of_other)
        await put_message(o.storage, o.runtime, unread)
        await put_message(o.storage, o.runtime, request)

        async def refuse(method: str, name: str) -> None:
            if method == "get_range" and name == message_name(unread.key):
                raise StorageUnavailableError(name, "it is in an archive")

        o.hooks.before = refuse
        with pytest.raises(StorageUnavailableError, match="archive"):
            await o.keeper.check_now()
        answer = await o.answer(request)
        assert _left(answer) == {of_job: "a proposal names it that has no answer yet"}
        assert list(o.metadata.garbage) == [of_other]

    owned(body)
