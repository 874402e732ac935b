"""Segments that are in the catalog alone are consolidated, and their chunks replaced, as those in
memory are, few at a time. A catalog that fails harms nothing else.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from storagewriter import consolidator, proposal_committer
from tests.storagewriter.consolidating import GATED, LONG_S, WAYS, held, kinds, write
from tests.storagewriter.fake_container import FakeContainer, StorageWithoutCompose, run
from tests.storagewriter.proposing import Owner, owned
from tier2.block_object import parse_block_header
from tier2.mailbox.messages import Answer
from tier2.object_storage import StorageUnavailableError

AWAY = TierUnavailableError("tier1", "the catalog does not answer")
DAMAGED = DataCorruptionError("container 7, catalog", "segment 1: it is damaged")


def _verdict(answer: Answer | None) -> str:
    assert answer is not None
    return answer.verdict


class TestConsolidation:
    @WAYS
    def test_objects_of_nothing_but_idle_segments_become_one(self, storage_type: Any) -> None:
        async def body(c: FakeContainer) -> None:
            ids = [c.create(f"s{number}") for number in range(8)]
            for each in ids:
                await write(c, each, 1, 60)
            c.check_idle()
            assert not c.metadata.segments
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["consolidation"]
            assert len(c.metadata.garbage) == 8
            assert c.writer.statistics().replacements_refused == 0
            c.check_idle()

        run(body, storage_type=storage_type, consolidation_bytes=480, evicting=True)

    def test_blocks_written_anew_say_the_names_of_their_segments(self) -> None:
        async def body(c: FakeContainer) -> None:
            ids = [c.create(f"segment {number}") for number in range(5)]
            for each in ids:
                await write(c, each, 2, 60)
            await asyncio.sleep(LONG_S)
            [name] = c.metadata.objects
            data = c.storage.bucket.objects[name].data
            for each in ids:
                [chunk] = c.segment(each).chunks
                header = parse_block_header(data[chunk.block_offset :])
                assert header.segment_name == c.segment(each).name

        storage_type = partial(StorageWithoutCompose, compose_bytes_min=None)
        run(body, storage_type=storage_type, consolidation_bytes=600, evicting=True)

    @WAYS
    def test_few_of_a_group_are_held_at_once(
        self, storage_type: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consolidator, "SEGMENTS_HELD", 3)
        monkeypatch.setattr(consolidator, "OPERATION_CHUNKS", 4)

        async def body(c: FakeContainer) -> None:
            ids = [c.create(f"s{number}") for number in range(40)]
            for each in ids:
                await write(c, each, 1, 20)
            c.catalog.held_max = 0
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["consolidation"]
            assert c.catalog.held_max == 4

        run(body, storage_type=storage_type, consolidation_bytes=800, evicting=True)

    @GATED
    @pytest.mark.parametrize("change", ["truncate", "delete", "merge", "append"])
    def test_what_changes_while_it_runs_is_left_as_it_is(
        self, storage_type: Any, change: str
    ) -> None:
        async def body(c: FakeContainer) -> None:
            a, b = c.create("a"), c.create("b")
            for each in (a, b, a, b):
                await write(c, each, 1)
            gate = await held(c)
            c.check_idle()
            if change == "truncate":
                c.truncate(a, 100)
            elif change == "delete":
                c.delete(a)
            elif change == "merge":
                c.merge(b, a)
                await c.writer.flush()
            else:
                c.append(a, 30)
                await c.writer.flush()
            c.check_idle()
            gate.set()
            await asyncio.sleep(LONG_S)
            assert c.writer.statistics().replacements_refused == 0
            assert "consolidation" in c.segment(b).chunks.first.object_name
            c.check_idle()

        run(body, storage_type=storage_type, consolidation_bytes=400, evicting=True)

    @WAYS
    @pytest.mark.parametrize("when", ["before", "behind the upload"])
    def test_a_catalog_that_is_away_is_waited_out(self, storage_type: Any, when: str) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 4)
            if when == "before":
                c.catalog.error = AWAY
            else:
                _fail_behind_the_upload(c, AWAY)
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["flush"] * 4
            assert "the catalog does not answer" in (c.writer.health() or "")
            assert not c.writer.in_flight_names
            # What was uploaded is garbage, not an orphan.
            assert len(c.metadata.garbage) == c.object_count - 4 == (when != "before")
            c.catalog.error = None
            await asyncio.sleep(60)
            assert kinds(c) == ["consolidation"]
            assert c.writer.health() is None

        run(body, storage_type=storage_type, consolidation_bytes=400, evicting=True)

    def test_what_a_damaged_catalog_does_not_give_is_left_alone(self) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 4)
            c.catalog.error = DAMAGED
            await asyncio.sleep(LONG_S)
            assert "leaves 4 objects alone" in (c.writer.health() or "")
            assert "segment 1: it is damaged" in (c.writer.health() or "")
            c.catalog.error = None
            b = c.create("b")
            await write(c, b, 4)
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["flush"] * 4 + ["consolidation"]
            assert c.writer.statistics().consolidation_failures == 1

        run(body, consolidation_bytes=400, evicting=True)


def _fail_behind_the_upload(c: FakeContainer, error: Exception) -> None:
    errors = [error]

    def failing(method: Any) -> Any:
        async def made(*arguments: Any) -> None:
            await method(*arguments)
            if errors:
                c.catalog.error = errors.pop()

        return made

    c.storage.compose = failing(c.storage.compose)  # type: ignore[method-assign]
    c.storage.put = failing(c.storage.put)  # type: ignore[method-assign]


class TestProposals:
    @pytest.mark.parametrize("way", ["compact", "copy"])
    def test_chunks_of_idle_segments_are_replaced(self, way: str) -> None:
        async def body(o: Owner) -> None:
            ids = [await o.written(f"s{number}") for number in range(3)]
            proposal = getattr(o, way)(*ids)
            o.check_idle()
            assert _verdict(await o.ask(proposal)) == "committed"
            assert list(o.metadata.objects) == [proposal.object.name]
            o.check_idle()
            again = proposal._replace(message_id="again")
            assert _verdict(await o.ask(again)) == "committed", "it is recognised"

        owned(body, evicting=True)

    def test_few_of_a_proposal_are_held_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(proposal_committer, "OPERATION_CHUNKS", 4)

        async def body(o: Owner) -> None:
            proposal = o.compact(*[await o.written(f"s{number}", 2) for number in range(9)])
            o.catalog.held_max = 0
            assert _verdict(await o.ask(proposal)) == "committed"
            assert o.catalog.held_max == 2

        owned(body, evicting=True)

    def test_of_what_there_is_not_it_is_still_refused(self) -> None:
        async def body(o: Owner) -> None:
            a, b = await o.written("a"), await o.written("b")
            proposal = o.compact(a)
            o.delete(a)
            assert o.segment(b).chunks
            assert _verdict(await o.ask(proposal)) == "refused_unknown_segment"
            assert proposal.object.name in o.metadata.garbage

        owned(body, evicting=True)

    def test_a_catalog_that_is_away_refuses_nothing(self) -> None:
        async def body(o: Owner) -> None:
            proposal = o.compact(await o.written())
            o.catalog.error = AWAY
            with pytest.raises(StorageUnavailableError, match="catalog"):
                await o.ask(proposal)
            assert await o.answer(proposal) is None
            assert "the catalog does not answer" in (o.writer.health() or "")
            o.catalog.error = None
            await o.keeper.check_now()
            assert _verdict(await o.answer(proposal)) == "committed"
            assert o.writer.health() is None

        owned(body, evicting=True)

    def test_a_segment_that_is_damaged_in_the_catalog_quarantines_its_message_alone(self) -> None:
        async def body(o: Owner) -> None:
            proposal = o.compact(await o.written("a"))
            o.catalog.error = DAMAGED
            assert await o.ask(proposal) is None
            assert "quarantined" in (o.writer.health() or "")
            assert "segment 1: it is damaged" in (o.writer.health() or "")
            o.catalog.error = None
            other = o.compact(await o.written("b"), message_id="other")
            assert _verdict(await o.ask(other)) == "committed"
            after = o.next_owner()
            await after.keeper.check_now()
            assert _verdict(await after.answer(proposal)) == "committed", "by the next owner"

        owned(body, evicting=True)
