"""Whatever happens to segments between a proposal and its commit, no byte changes; and nothing that
is said of proposals is believed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.chunks import ChunkRecord
from tests.storagewriter.fake_container import make_config
from tests.storagewriter.proposing import DAY_MS, JOB, OTHER_JOB, Mailed, Owner
from tests.support.suites import examples
from tier2.mailbox.mailbox import list_messages, put_message
from tier2.mailbox.messages import OrphanDeletionRequest, Replacement, ReplaceProposal
from tier2.memory_object_storage import Method

CHANGES = [
    "append",
    "append",
    "truncate",
    "merge",
    "delete",
    "seal",
    "create",
    "collect",
    "nothing",
    "nothing",
]
SEEDS = st.integers(0, 2**32)


def _change(o: Owner, rng: random.Random) -> None:
    """Something a caller does, in one turn."""
    named = list(o.names.values())
    opened = [each for each in named if not o.segment(each).sealed]
    change = rng.choice(CHANGES)
    if change == "create" or not opened:
        o.create(f"new {rng.getrandbits(64)}")
    elif change == "append":
        o.append(rng.choice(opened), rng.choice((1, 50, 150)))
    elif change == "truncate":
        segment = o.segment(rng.choice(named))
        o.truncate(segment.segment_id, rng.randint(segment.start_offset, segment.length))
    elif change == "merge":
        target = rng.choice(opened)
        sources = [each for each in named if each != target and not o.segment(each).start_offset]
        if sources:
            o.merge(target, rng.choice(sources))
    elif change == "delete":
        o.delete(rng.choice(named))
    elif change == "seal":
        o.seal(rng.choice(opened))
    elif change == "collect":
        # As if the deletion lag of all garbage were over: what is being checked must not go.
        for name, garbage in list(o.metadata.garbage.items()):
            o.metadata.garbage[name] = garbage._replace(since_ms=-(10**12))


def _propose(o: Owner, rng: random.Random, number: int) -> ReplaceProposal | None:
    ids = [each for each in o.segments if o.segment(each).chunks]
    if not ids:
        return None
    some = rng.sample(ids, rng.randint(1, min(3, len(ids))))
    way: Callable[..., ReplaceProposal] = rng.choice((o.compact, o.copy))
    return way(*some, message_id=f"group-{number}", job_id=rng.choice((JOB, OTHER_JOB)))


def _with_changes_between(o: Owner, rng: random.Random) -> None:
    """From now on callers act before any request and any commit of the owner's."""

    async def before(method: Method, name: str) -> None:
        del method, name
        if rng.random() < 0.3:
            _change(o, rng)
            if rng.random() < 0.3:
                # Beside what is checked: a collection of its own.
                o.collections.append(
                    asyncio.ensure_future(o.writer.garbage_collector.collect_now())
                )

    def on_commit(committed: bool) -> None:
        del committed
        if rng.random() < 0.5:
            _change(o, rng)

    o.hooks.before, o.on_commit = before, on_commit


async def _beginning(rng: random.Random) -> Owner:
    config = make_config(consolidation=rng.random() < 0.3, mailbox_poll_interval_s=0.0)
    o = Owner(config, evicting=rng.random() < 0.5)
    o.writer.start()
    for number in range(rng.randint(1, 5)):
        await o.written(f"s{number}", rng.randint(1, 4))
    return o


@settings(max_examples=examples(150), deadline=None)
@given(SEEDS)
def test_changes_between_a_proposal_and_its_commit_never_change_the_bytes(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        o = await _beginning(rng)
        messages: list[Mailed] = []
        for number in range(rng.randint(1, 6)):
            proposal = _propose(o, rng, number)
            if proposal is not None:
                messages.append(proposal)
                await put_message(o.storage, o.runtime, proposal)
            if rng.random() < 0.2:
                names = tuple(sorted(o.storage.bucket.objects))[:900]
                older_than_ms = o.runtime.clock.time_ms() + 10 * DAY_MS
                messages.append(
                    OrphanDeletionRequest(7, OTHER_JOB, f"condemn-{number}", names, older_than_ms)
                )
                await put_message(o.storage, o.runtime, messages[-1])
            _change(o, rng)
        if rng.random() < 0.2:
            o.runtime.clock.offset_ms += 2 * DAY_MS  # type: ignore[attr-defined] # a LoopClock
        _with_changes_between(o, rng)
        await o.keeper.check_now()
        o.hooks.before = o.on_commit = None
        for message in messages:
            answer = await o.answer(message)
            if answer is not None and isinstance(message, ReplaceProposal):
                assert not (
                    answer.verdict.startswith(("refused", "expired"))
                    and message.object.name in o.metadata.objects
                )
        await asyncio.gather(*o.collections)
        o.check_stored()
        await o.keeper.check_now()
        assert all(entry.answer is not None for entry in await list_messages(o.storage, 7))
        await o.writer.flush()
        await o.writer.garbage_collector.collect_now()
        o.check_stored()
        o.check_covered()
        await o.writer.stop()
        assert not o.failures, o.failures
        # The log says the same to the next owner.
        o.next_owner().check_stored()

    run_virtual(main())


@settings(max_examples=examples(150), deadline=None)
@given(SEEDS)
def test_a_forged_proposal_never_changes_the_bytes(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        o = await _beginning(rng)
        for number in range(6):
            proposal = _propose(o, rng, number)
            if proposal is None:
                continue
            forged = _forge(o, proposal, rng)
            try:
                await put_message(o.storage, o.runtime, forged)
            except ValueError:
                continue
            await o.keeper.check_now()
            answer = await o.answer(forged)
            assert answer is not None
            o.check_stored()
        await o.writer.stop()
        assert not o.failures, o.failures

    run_virtual(main())


def _forge(o: Owner, proposal: ReplaceProposal, rng: random.Random) -> ReplaceProposal:
    """The same with one thing in it changed."""
    index = rng.randrange(len(proposal.replacements))
    segment_id, old, new = proposal.replacements[index]
    other = rng.choice(list(o.segments))
    side = rng.choice(("old", "new", "segment", "size", "swap", "drop"))
    if side == "size":
        record = proposal.object._replace(
            size=max(1, proposal.object.size + rng.choice((-1, 1, 100)))
        )
        return proposal._replace(object=record)
    if side == "segment":
        segment_id = other
    elif side == "swap" and len(new) > 1:
        places = [chunk[3:] for chunk in new]
        rng.shuffle(places)
        new = tuple(
            ChunkRecord(*chunk[:3], *place) for chunk, place in zip(new, places, strict=True)
        )
    elif side == "drop":
        old, new = (old[:-1] or old), (new[1:] or new)
    elif side == "old":
        old = _with_one_changed(old, rng)
    else:
        new = _with_one_changed(new, rng)
    replacements = list(proposal.replacements)
    replacements[index] = Replacement(segment_id, old, new)
    return proposal._replace(replacements=tuple(replacements))


def _with_one_changed(
    chunks: tuple[ChunkRecord, ...], rng: random.Random
) -> tuple[ChunkRecord, ...]:
    index = rng.randrange(len(chunks))
    chunk = chunks[index]
    field = rng.choice(
        ("start_offset", "length", "block_offset", "block_segment_id", "block_start_offset")
    )
    value: Any = max(0, getattr(chunk, field) + rng.choice((-100, -1, 1, 100)))
    return (*chunks[:index], chunk._replace(**{field: value}), *chunks[index + 1 :])
