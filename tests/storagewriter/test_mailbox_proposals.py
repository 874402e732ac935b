"""Proposals of jobs: what is committed, what is refused and in which words, and that no byte ever
changes.
"""

from __future__ import annotations

import asyncio

import pytest

from durablelog.chunk_slices import Slices
from durablelog.operations import (
    DeletionClockOperation,
    LinkChunksOperation,
    OwnersOperation,
    ReplaceChunksOperation,
)
from segmentstore.contracts.chunks import ObjectRecord
from storagewriter import proposal_committer, request_processor
from tests.storagewriter.fake_container import TAG
from tests.storagewriter.proposing import DAY_MS, JOB, OTHER_JOB, RNG, Owner, not_alone, owned
from tier2.mailbox.mailbox import put_message
from tier2.mailbox.messages import Answer, Replacement, ReplaceProposal
from tier2.memory_object_storage import MemoryObject, Method
from tier2.object_names import MessageKey, answer_name, message_name, object_name
from tier2.object_storage import StorageUnavailableError
from tier2.unique_ids import new_tagged_id

pytestmark = pytest.mark.usefixtures("active_or_idle")


def _said(answer: Answer | None) -> tuple[str, str]:
    assert answer is not None
    return answer.verdict, answer.reason


@pytest.mark.parametrize("way", ["compact", "copy"])
def test_what_was_compacted_is_read_from_the_new_object(way: str) -> None:
    async def body(o: Owner) -> None:
        first, second = await o.written("a"), await o.written("b")
        proposal = getattr(o, way)(first, second)
        before = list(o.metadata.objects)
        answer = await o.ask(proposal)
        assert _said(answer) == ("committed", "")
        assert answer is not None
        assert answer.detail == {"replacements": 2, "taken": 2, "refused": []}
        assert list(o.metadata.objects) == [proposal.object.name]
        assert list(o.metadata.garbage) == before
        assert (o.keeper.proposals_committed, o.keeper.proposals_refused, o.keeper.waiting) == (
            1,
            0,
            0,
        )
        assert not o.writer.in_flight_names

    owned(body)


def test_merged_bytes_are_copied_with_the_blocks_they_were_written_in() -> None:
    async def body(o: Owner) -> None:
        target, source = await o.written("a"), await o.written("b")
        o.merge(target, source)
        await o.writer.flush()
        assert len(o.segment(target).chunks) == 6
        assert _said(await o.ask(o.copy(target)))[0] == "committed"
        assert _said(await o.ask(o.compact(target, message_id="again")))[0] == "committed"

    owned(body)


def test_a_part_of_a_segment_may_be_replaced() -> None:
    async def body(o: Owner) -> None:
        segment_id = await o.written(count=4)
        whole = o.copy(segment_id)
        (_, old, new), name = whole.replacements[0], whole.object.name
        part = whole._replace(replacements=(Replacement(segment_id, old[1:3], new[1:3]),))
        assert _said(await o.ask(part))[0] == "committed"
        assert [chunk.object_name == name for chunk in o.segment(segment_id).chunks] == [
            False,
            True,
            True,
            False,
        ]

    owned(body)


def test_many_replacements_go_in_several_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposal_committer, "OPERATION_CHUNKS", 4)

    async def body(o: Owner) -> None:
        ids = [await o.written(f"s{number}", 2) for number in range(5)]
        before = len(o.log)
        assert _said(await o.ask(o.compact(*ids)))[0] == "committed"
        assert (
            len([each for each in o.log[before:] if isinstance(each, ReplaceChunksOperation)]) == 3
        )

    owned(body)


# --- what has changed -----------------------------------------------------------------------------


def test_truncated_merged_deleted_and_consolidated_segments_are_passed_over() -> None:
    async def body(o: Owner) -> None:
        ids = [
            await o.written(name)
            for name in ("same", "truncated", "merged", "deleted", "consolidated", "longer")
        ]
        proposal = o.compact(*ids)
        o.truncate(ids[1], 150)
        o.merge(ids[5], ids[2])
        await o.writer.flush()
        o.delete(ids[3])
        assert _said(await o.ask(o.compact(ids[4], job_id=OTHER_JOB)))[0] == "committed"
        await o.write(ids[5], 1)
        answer = await o.ask(proposal)
        assert answer is not None
        assert answer.verdict == "committed_in_part"
        refused = {each["segment_id"]: each["reason"] for each in answer.detail["refused"]}
        assert refused == {
            ids[1]: "the segment is truncated to 150",
            ids[2]: "there is no such segment",
            ids[3]: "there is no such segment",
            ids[4]: "these are not the segment's chunks any more",
        }
        assert answer.detail["taken"] == 2

    owned(body)


def test_of_a_source_that_is_linked_in_part_the_answer_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Slices, "linked_max", 1)

    async def body(o: Owner) -> None:
        target, source = await o.written("a"), await o.written("b")
        proposal = o.compact(source)
        in_part, go_on, commit = asyncio.Event(), asyncio.Event(), o.commit

        async def commit_one_slice(operation: OwnersOperation) -> None:
            if isinstance(operation, LinkChunksOperation) and o.segment(source).start_offset:
                in_part.set()
                await go_on.wait()
            await commit(operation)

        o.commit = commit_one_slice  # type: ignore[method-assign]
        o.merge(target, source)
        await in_part.wait()
        verdict, reason = _said(await o.ask(proposal))
        assert verdict == "refused_changed"
        assert reason == (
            f"segment {source} at 0: the segment is merged into {target}, which has its chunks "
            f"below 100 and gets the others: propose those of {target} when it has all"
        )
        go_on.set()
        await o.writer.flush()
        assert _said(await o.ask(o.copy(target, message_id="group-2")))[0] == "committed"

    owned(body)


def test_where_nothing_fits_the_object_becomes_garbage() -> None:
    async def body(o: Owner) -> None:
        segment_id = await o.written()
        proposal = o.compact(segment_id)
        o.truncate(segment_id, 150)
        verdict, reason = _said(await o.ask(proposal))
        assert verdict == "refused_changed"
        assert reason == f"segment {segment_id} at 0: the segment is truncated to 150"
        assert proposal.object.name in o.metadata.garbage
        assert o.keeper.proposals_refused == 1

    owned(body)


def test_of_segments_that_are_missing_the_object_becomes_garbage() -> None:
    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        o.delete(proposal.replacements[0].segment_id)
        assert _said(await o.ask(proposal))[0] == "refused_unknown_segment"
        assert proposal.object.name in o.metadata.garbage

    owned(body)


def test_two_jobs_that_propose_the_same_chunks_get_one_commit() -> None:
    async def body(o: Owner) -> None:
        segment_id = await o.written()
        one, other = o.compact(segment_id), o.compact(segment_id, job_id=OTHER_JOB)
        for proposal in (one, other):
            assert await put_message(o.storage, o.runtime, proposal)
        assert await o.keeper.check_now() == 2
        # In the order of names: that of the other job comes first.
        assert _said(await o.answer(other))[0] == "committed"
        assert _said(await o.answer(one))[0] == "refused_changed"
        assert list(o.metadata.objects) == [other.object.name]
        assert one.object.name in o.metadata.garbage

    owned(body)


def test_what_changes_while_the_operation_is_on_its_way_is_passed_over_by_the_log() -> None:
    async def body(o: Owner) -> None:
        segment_id = await o.written()
        proposal = o.compact(segment_id)

        def truncate(committed: bool) -> None:
            if not committed:
                o.on_commit = None
                o.truncate(segment_id, 150)

        o.on_commit = truncate
        assert _said(await o.ask(proposal))[0] == "refused_changed"
        assert proposal.object.name in o.metadata.garbage

    owned(body)


# --- again ----------------------------------------------------------------------------------------


def test_an_object_proposed_twice_is_recognised() -> None:
    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        assert _said(await o.ask(proposal))[0] == "committed"
        count = len(o.log)
        again = proposal._replace(message_id="group-2")
        assert _said(await o.ask(again))[0] == "committed"
        assert all(isinstance(each, DeletionClockOperation) for each in o.log[count:])

    owned(body)


def test_what_was_committed_and_merged_away_before_the_answer_is_not_called_refused() -> None:
    async def body(o: Owner) -> None:
        target, source = await o.written("a"), await o.written("b")
        proposal = o.compact(source)
        await _committed_unanswered(o, proposal)
        o.merge(target, source)
        await o.writer.flush()
        await o.keeper.check_now()
        answer = await o.answer(proposal)
        assert _said(answer)[0] == "committed_in_part"
        assert answer is not None
        assert [each["reason"] for each in answer.detail["refused"]] == ["there is no such segment"]
        assert proposal.object.name in o.metadata.objects

    owned(body)


async def _committed_unanswered(o: Owner, proposal: ReplaceProposal) -> None:
    """Have the proposal committed, and the answer fail."""
    await put_message(o.storage, o.runtime, proposal)
    o.storage.fail("put", 1)
    with pytest.raises(StorageUnavailableError):
        await o.keeper.check_now()


def test_of_two_messages_for_one_object_the_second_may_bring_more() -> None:
    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written("a"), await o.written("b"))
        first, second = proposal.replacements
        assert _said(await o.ask(proposal._replace(replacements=(first,))))[0] == "committed"
        more = proposal._replace(message_id="group-2", replacements=(first, second))
        assert _said(await o.ask(more))[0] == "committed"
        assert list(o.metadata.objects) == [proposal.object.name]

    owned(body)


def test_an_object_that_is_live_already_does_not_expire() -> None:
    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written("a"), await o.written("b"))
        first, second = proposal.replacements
        assert _said(await o.ask(proposal._replace(replacements=(first,))))[0] == "committed"
        await asyncio.sleep(2 * DAY_MS / 1000)
        # As the next owner finds it that took over in the middle.
        more = proposal._replace(message_id="group-2", replacements=(second,))
        assert _said(await o.ask(more))[0] == "committed"

    owned(body)


def test_an_object_that_is_checked_cannot_be_deleted_and_forgotten_meanwhile() -> None:
    async def body(o: Owner) -> None:
        first, second = await o.written("a"), await o.written("b")
        proposal = o.compact(first, second)
        name = proposal.object.name
        of_first, of_second = proposal.replacements
        assert _said(await o.ask(proposal._replace(replacements=(of_first,))))[0] == "committed"

        async def forget(method: Method, asked: str) -> None:
            if method == "get_range" and asked == name:
                o.hooks.before = None
                o.delete(first)
                o.metadata.garbage[name] = o.metadata.garbage[name]._replace(since_ms=-(10**12))
                await o.writer.garbage_collector.collect_now()

        o.hooks.before = forget
        more = proposal._replace(message_id="group-2", replacements=(of_second,))
        assert _said(await o.ask(more))[0] == "refused_changed"
        assert name in o.storage.bucket.objects
        # From now on it goes the way of all garbage.
        await o.writer.garbage_collector.collect_now()
        assert name not in o.storage.bucket.objects

    owned(body)


def test_an_object_that_was_refused_is_never_taken_later() -> None:
    async def body(o: Owner) -> None:
        first, second = await o.written("a"), await o.written("b")
        proposal = o.compact(first, second)
        of_first, of_second = proposal.replacements
        o.truncate(first, 150)
        assert (
            _said(await o.ask(proposal._replace(replacements=(of_first,))))[0] == "refused_changed"
        )
        late = proposal._replace(message_id="group-2", replacements=(of_second,))
        verdict, reason = _said(await o.ask(late))
        assert verdict == "refused_changed"
        assert "waits for its deletion" in reason
        # Deleted and forgotten: what is asked then finds nothing.
        o.metadata.garbage[proposal.object.name] = o.metadata.garbage[
            proposal.object.name
        ]._replace(since_ms=-(10**12))
        await o.writer.garbage_collector.collect_now()
        assert proposal.object.name not in o.metadata.garbage
        latest = late._replace(message_id="group-3")
        assert _said(await o.ask(latest))[0] == "refused_missing_object"

    owned(body)


def test_an_object_that_expired_becomes_garbage() -> None:
    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        name = proposal.object.name
        o.plant(name, o.storage.bucket.objects[name].data, age_ms=DAY_MS + 1)
        assert _said(await o.ask(proposal))[0] == "expired"
        assert name in o.metadata.garbage

    owned(body)


# --- what is not as it was said to be -------------------------------------------------------------


def test_an_object_that_is_not_there_is_refused() -> None:
    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        del o.storage.bucket.objects[proposal.object.name]
        assert _said(await o.ask(proposal))[0] == "refused_missing_object"
        assert not o.metadata.garbage

    owned(body)


def test_an_object_of_another_size_is_refused_and_left_as_evidence() -> None:
    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        o.plant(proposal.object.name, b"short")
        verdict, reason = _said(await o.ask(proposal))
        assert verdict == "refused_checksum"
        assert "5 bytes" in reason
        assert not o.metadata.garbage

    owned(body)


def test_a_block_that_is_not_what_was_proposed_is_refused() -> None:
    async def body(o: Owner) -> None:
        one, other = await o.written("a"), await o.written("b")
        proposal, of_other = o.compact(one), o.compact(other, message_id="x")
        forged = dict.fromkeys(("another segment", "flipped", "zeros"), b"")
        good = o.storage.bucket.objects[proposal.object.name].data
        forged["another segment"] = o.storage.bucket.objects[of_other.object.name].data
        forged["flipped"] = bytes([good[0] ^ 1]) + good[1:]
        forged["zeros"] = bytes(len(good))
        for number, (what, data) in enumerate(forged.items()):
            assert len(data) == len(good)
            o.plant(proposal.object.name, data)
            message = proposal._replace(message_id=f"forged-{number}")
            assert _said(await o.ask(message))[0] == "refused_checksum", what
        o.plant(proposal.object.name, good)
        assert _said(await o.ask(proposal))[0] == "committed"

    owned(body)


def test_a_block_that_reaches_beyond_its_object_is_refused() -> None:
    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        name, size = proposal.object.name, proposal.object.size - 1
        o.plant(name, o.storage.bucket.objects[name].data[:size])
        shorter = proposal._replace(object=proposal.object._replace(size=size))
        verdict, reason = _said(await o.ask(shorter))
        assert verdict == "refused_checksum"
        assert "beyond" in reason

    owned(body)


def test_headers_of_many_small_blocks_are_few_requests() -> None:
    async def body(o: Owner) -> None:
        ids = [o.create(f"s{number}") for number in range(300)]
        for segment_id in ids:
            o.append(segment_id, 3)
        await o.writer.flush()
        proposal = o.copy(*ids)
        gets: list[str] = []

        async def note(method: Method, name: str) -> None:
            if method == "get_range" and name == proposal.object.name:
                gets.append(name)

        o.hooks.before = note
        assert _said(await o.ask(proposal))[0] == "committed"
        assert len(gets) == 1

    owned(body)


def test_a_block_of_an_epoch_after_its_object_is_refused() -> None:
    async def body(o: Owner) -> None:
        segment_id = await o.written()
        o.epoch = 5
        proposal = o.compact(segment_id)
        name = o.compaction_name(epoch=4)
        o.plant(name, o.storage.bucket.objects[proposal.object.name].data)
        segment, old, new = proposal.replacements[0]
        early = proposal._replace(
            object=proposal.object._replace(name=name),
            replacements=(
                Replacement(segment, old, tuple(chunk._replace(object_name=name) for chunk in new)),
            ),
        )
        verdict, reason = _said(await o.ask(early))
        assert verdict == "refused_checksum"
        assert "epoch 5" in reason

    owned(body)


def test_a_proposal_that_claims_what_cannot_be_is_malformed() -> None:
    async def body(o: Owner) -> None:
        one, other = await o.written("a", 4), await o.written("b", 4)
        good = o.copy(one)
        segment, old, new = good.replacements[0]
        of_other = list(o.segment(other).chunks)
        live = of_other[0].object_name
        flush = object_name(7, 1, "flush", new_tagged_id(TAG, RNG))
        swapped = (
            new[0]._replace(block_offset=new[1].block_offset, block_start_offset=100),
            *new[1:],
        )
        forged: dict[str, ReplaceProposal] = {
            "not a compaction": _renamed(good, flush),
            "of another container": _renamed(good, o.compaction_name(container_id=8)),
            "of another job": _renamed(good, o.compaction_name(OTHER_JOB)),
            "of a later epoch": _renamed(good, o.compaction_name(epoch=9)),
            "no name at all": _renamed(good, "x/y"),
            "another range": _with(good, segment, old, new[:-1]),
            "new chunks elsewhere": _with(
                good, segment, old, tuple(each._replace(object_name=live) for each in new)
            ),
            "beyond the object": _with(
                good, segment, old, (*new[:-1], new[-1]._replace(block_offset=10**6))
            ),
            "its own old chunks": _with(good, segment, new, new),
            "bytes of another place": _with(good, segment, old, swapped),
            "bytes of another segment": _with(good, other, tuple(of_other), new),
        }
        for number, (what, proposal) in enumerate(forged.items()):
            message = proposal._replace(message_id=f"forged-{number}")
            verdict, reason = _said(await o.ask(message))
            assert verdict == "refused_malformed", (what, reason)
            assert reason
        assert o.keeper.proposals_refused == len(forged)
        assert not o.metadata.garbage
        assert _said(await o.ask(good))[0] == "committed"

    owned(body)


def _renamed(proposal: ReplaceProposal, name: str) -> ReplaceProposal:
    segment, old, new = proposal.replacements[0]
    return _with(
        proposal, segment, old, tuple(chunk._replace(object_name=name) for chunk in new)
    )._replace(
        object=ObjectRecord(name, proposal.object.size, 0),
    )


def _with(proposal: ReplaceProposal, segment: int, old: object, new: object) -> ReplaceProposal:
    replacement = Replacement(segment, old, new)  # type: ignore[arg-type]
    return proposal._replace(replacements=(replacement,))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"version": 1e999}']
)
def test_what_is_no_message_is_malformed(data: bytes) -> None:
    async def body(o: Owner) -> None:
        key = MessageKey(7, JOB, "broken")
        o.storage.bucket.objects[message_name(key)] = MemoryObject(data, bytes(16), 0)
        assert await o.keeper.check_now() == 1
        answer = o.storage.bucket.objects["mailbox/00000007/00000000feedbeef/broken.answer.json"]
        assert b'"refused_malformed"' in answer.data
        assert await o.keeper.check_now() == 0

    owned(body)


def test_a_message_that_is_too_long_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_processor, "MESSAGE_BYTES_MAX", 100)

    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        fetched: list[str] = []

        async def note(method: Method, name: str) -> None:
            if method == "get_range":
                fetched.append(name)

        o.hooks.before = note
        assert _said(await o.ask(proposal))[0] == "refused_malformed"
        assert fetched == [answer_name(proposal.key)]

    owned(body)


def test_a_message_put_under_another_name_is_malformed() -> None:
    async def body(o: Owner) -> None:
        proposal = o.compact(await o.written())
        await put_message(o.storage, o.runtime, proposal)
        objects = o.storage.bucket.objects
        data = objects.pop(message_name(proposal.key))
        wrong = proposal.key._replace(message_id="other")
        objects[message_name(wrong)] = data
        await o.keeper.check_now()
        verdict, reason = _said(await o.answer(proposal._replace(message_id="other")))
        assert verdict == "refused_malformed"
        assert "group-1" in reason

    owned(body)


# --- whose it is to say ---------------------------------------------------------------------------


def test_beside_another_store_only_what_is_committed_is_answered() -> None:
    async def body(o: Owner) -> None:
        segment_id, other = await o.written("a"), await o.written("b")
        good, changed = o.compact(segment_id), o.compact(other, message_id="changed")
        o.truncate(other, 150)
        o.writer.orphan_sweeper.shared_with = not_alone
        assert _said(await o.ask(good))[0] == "committed"
        assert await o.ask(changed) is None
        assert changed.object.name not in o.metadata.garbage
        assert (o.keeper.waiting, o.keeper.proposals_refused) == (1, 0)

    owned(body)
