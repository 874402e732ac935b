"""Owners asked for snapshots: which ones answer, which do not, and which answers count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import NotAStoreError
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock
from tests.tier2.spark.reconcile_world import STORE_ID
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.catalog.catalog_snapshots import write_snapshot
from tier2.mailbox.mailbox import list_messages, put_answer, put_message, read_message
from tier2.mailbox.messages import Answer, ExportRequest, Replacement, ReplaceProposal
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_names import MessageKey, object_name
from tier2.spark.reconcile.owners import ASK, NEWEST, Owners

RUN = "00000000000000ab"
CONTAINERS = 3


class Beside:
    """The owners of a store's containers, as far as its mailboxes show them."""

    def __init__(self) -> None:
        self.runtime = Runtime(clock=LoopClock(), random=Random(5), executor=inline_executor)
        self.storage = MemoryObjectStorage(self.runtime)
        self.answering = set(range(CONTAINERS))
        self.sequence_number = 0

    def asking(self, how: str = ASK, **options: Any) -> Owners:
        return Owners(self.storage, self.runtime, RUN, how, **({"timeout_s": 60.0} | options))

    def flush(self) -> None:
        """Something of the store is there."""
        name = object_name(0, 1, "flush", bytes(16))
        self.storage.bucket.objects[name] = MemoryObject(b"x", bytes(16), 0)

    async def export(self, number: int, store_id: str = STORE_ID) -> str:
        self.sequence_number += 1
        metadata = ContainerMetadata(number)
        metadata.sequence_number = self.sequence_number
        manifest = await write_snapshot(
            self.storage,
            self.runtime,
            store_id=store_id,
            containers=CONTAINERS,
            container_id=number,
            epoch=2,
            time_ms=0,
            metadata=metadata,
        )
        return manifest.name

    async def own(self) -> None:
        """Poll the mailboxes for ever."""
        while True:
            await asyncio.sleep(7.0)
            for number in sorted(self.answering):
                for entry in await list_messages(self.storage, number):
                    if entry.message is not None and entry.answer is None:
                        await self._answer(entry.key)

    async def _answer(self, key: MessageKey) -> None:
        assert isinstance(await read_message(self.storage, key), ExportRequest)
        answer = Answer(*key, "exported", "", {"manifest": await self.export(key.container_id)})
        await put_answer(self.storage, self.runtime, answer)


def run(case: Callable[[Beside], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        beside = Beside()
        owning = asyncio.ensure_future(beside.own())
        try:
            await case(beside)
        finally:
            owning.cancel()
            await asyncio.gather(owning, return_exceptions=True)

    run_virtual(body())


def test_every_owner_is_asked_each_time_for_a_snapshot_of_that_moment() -> None:
    async def case(beside: Beside) -> None:
        for number in range(CONTAINERS):
            await beside.export(number)
        owners = beside.asking()
        first, second = await owners.snapshots("a"), await owners.snapshots("b")
        assert sorted(first.manifests) == sorted(second.manifests) == [0, 1, 2]
        for number in range(CONTAINERS):
            assert first.manifests[number].sequence_number > CONTAINERS
            assert (
                second.manifests[number].sequence_number > first.manifests[number].sequence_number
            )
        assert (first.unresponsive, first.containers, first.store_id) == ({}, CONTAINERS, STORE_ID)

    run(case)


def test_a_store_that_was_never_exported_says_by_its_first_container_how_many_it_has() -> None:
    async def case(beside: Beside) -> None:
        beside.flush()
        snapshots = await beside.asking().snapshots("a")
        assert (sorted(snapshots.manifests), snapshots.containers) == ([0, 1, 2], CONTAINERS)

    run(case)


def test_an_owner_without_an_answer_in_time_is_reported_and_its_old_snapshot_not_used() -> None:
    async def case(beside: Beside) -> None:
        for number in range(CONTAINERS):
            await beside.export(number)
        beside.answering.discard(1)
        snapshots = await beside.asking(timeout_s=30.0).snapshots("a")
        assert sorted(snapshots.manifests) == [0, 2]
        assert snapshots.unresponsive == {1: "its owner did not answer within 30 s"}

    run(case)


def test_a_place_without_an_answer_has_no_containers() -> None:
    async def case(beside: Beside) -> None:
        beside.answering.clear()
        beside.flush()
        snapshots = await beside.asking(timeout_s=5.0).snapshots("a")
        assert (snapshots.manifests, snapshots.containers, snapshots.store_id) == ({}, 0, None)
        assert list(snapshots.unresponsive) == [0]

    run(case)


def test_where_nothing_is_no_owner_is_asked() -> None:
    """A message would begin the folder of a store, whose maker refuses it then."""

    async def case(beside: Beside) -> None:
        with pytest.raises(NotAStoreError, match="not one object lies there"):
            await beside.asking().snapshots("a")
        assert not beside.storage.bucket.objects

    run(case)


def test_an_owner_that_could_not_export_is_reported() -> None:
    async def case(beside: Beside) -> None:
        for number in range(CONTAINERS):
            await beside.export(number)

        async def refusing(number: int, store_id: str = STORE_ID) -> str:
            return f"catalog/{number:08x}/not-a-manifest"

        beside.export = refusing  # type: ignore[method-assign]
        snapshots = await beside.asking().snapshots("a")
        assert snapshots.manifests == {}
        assert "named no snapshot" in snapshots.unresponsive[0]

    run(case)


def test_of_a_stopped_store_the_newest_snapshots_are_taken_and_no_owner_is_asked() -> None:
    async def case(beside: Beside) -> None:
        for number in (0, 2, 2):
            await beside.export(number)
        snapshots = await beside.asking(NEWEST).snapshots("a")
        assert snapshots.manifests[2].sequence_number == 3
        assert snapshots.unresponsive == {1: "there is no snapshot of it"}
        assert not [name for name in beside.storage.bucket.objects if name.startswith("mailbox/")]
        beside.storage.bucket.objects.clear()
        assert (await beside.asking(NEWEST).snapshots("a")).unresponsive == {
            0: "there is no snapshot of it"
        }

    run(case)


def test_snapshots_of_two_stores_in_one_place_need_a_name() -> None:
    async def case(beside: Beside) -> None:
        other = STORE_ID.replace("1234", "9999")
        await beside.export(0)
        await beside.export(0, other)
        with pytest.raises(CatalogFormatError):
            await beside.asking(NEWEST).snapshots("a")
        assert (await beside.asking(NEWEST, store_id=other).snapshots("a")).store_id == other

    run(case)


def test_objects_of_unanswered_proposals_are_open_and_a_broken_message_names_none() -> None:
    async def case(beside: Beside) -> None:
        beside.answering.clear()
        names = [
            object_name(1, 2, "compaction", bytes([number] * 16), job_id=RUN) for number in range(2)
        ]
        for number, name in enumerate(names):
            old = ChunkRecord(0, 10, "old", 0, 9, 0)
            message = ReplaceProposal(
                1,
                RUN,
                f"group-{number}",
                ObjectRecord(name, 200, 1),
                (Replacement(9, (old,), (old._replace(object_name=name),)),),
                1,
            )
            assert await put_message(beside.storage, beside.runtime, message)
        await put_answer(
            beside.storage, beside.runtime, Answer(1, RUN, "group-1", "refused_changed")
        )
        beside.storage.bucket.objects[f"mailbox/00000002/{RUN}/x.json"] = MemoryObject(
            b"{", bytes(16), 0
        )
        assert await beside.asking().open_names(range(CONTAINERS)) == frozenset({names[0]})
        # Of more than may be read here none is read.
        assert await beside.asking().open_names(range(CONTAINERS), 1) is None
        assert await beside.asking().open_names(range(CONTAINERS), 2) == frozenset({names[0]})

    run(case)
