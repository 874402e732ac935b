"""`mailbox`: it shows what is asked and what was said, changes nothing by checking, and answers for
a store that no process has open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

import segmentstore as engine
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.stopped_store import StoppedStore
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from tests.cli.shell import segmentstore
from tests.cli.test_inspection import snapshot
from tests.support.suites import slow
from tier2.block_reader import BlockReader
from tier2.locations import open_object_storage
from tier2.mailbox.mailbox import put_message
from tier2.mailbox.messages import Message, OrphanDeletionRequest, Replacement, ReplaceProposal
from tier2.object_builder import ObjectBuilder
from tier2.object_names import object_name
from tier2.object_storage import ObjectStorage
from tier2.unique_ids import new_tagged_id, store_tag

JOB = "00000000feedbeef"
RUNTIME = Runtime()

T = TypeVar("T")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    location = tmp_path / "store"
    for line in (b"one\n", b"two\n", b"three\n"):
        segmentstore("append", location, "a", stdin=line)
        segmentstore("flush", location)
    return location


def _in_tier2(store: Path, action: Callable[[ObjectStorage], Awaitable[T]]) -> T:
    async def run() -> T:
        storage = open_object_storage((store / "tier2").as_uri(), RUNTIME)
        try:
            return await action(storage)
        finally:
            await storage.close()

    return asyncio.run(run())


def _send(store: Path, *messages: Message) -> None:
    async def send(storage: ObjectStorage) -> None:
        for message in messages:
            assert await put_message(storage, RUNTIME, message)

    _in_tier2(store, send)


def _compacted(store: Path, message_id: str) -> ReplaceProposal:
    """What a job would propose: all of segment `a` in one object, which is there."""
    with StoppedStore(str(store)) as stopped:
        metadata, epoch, tag = (
            asyncio.run(stopped.metadata(0)),
            stopped.logs.last_epoch(0),
            store_tag(stopped.store_id),
        )
    assert epoch is not None
    return _in_tier2(store, lambda storage: _compact(storage, metadata, epoch, message_id, tag))


async def _compact(
    storage: ObjectStorage, metadata: ContainerMetadata, epoch: int, message_id: str, tag: bytes
) -> ReplaceProposal:
    segment = metadata.segments[metadata.names["a"]]
    reader = BlockReader(storage, 0, RUNTIME)
    old = tuple(segment.chunks)
    parts = [await reader.read(chunk, chunk.start_offset, chunk.length) for chunk in old]
    await reader.close()
    builder = ObjectBuilder(0, epoch)
    builder.add(segment.segment_id, old[0].start_offset, parts)
    unique_id = new_tagged_id(tag, RUNTIME.random)
    name = object_name(0, epoch, "compaction", unique_id, job_id=JOB)
    await storage.put(name, builder.parts, unique_id)
    record, chunks = builder.finish(name, RUNTIME.clock.time_ms())
    replacement = Replacement(segment.segment_id, old, tuple(chunk for _, chunk in chunks))
    return ReplaceProposal(0, JOB, message_id, record, (replacement,), RUNTIME.clock.time_ms())


def _by_message(shown: Any) -> dict[str, Any]:
    rows: Sequence[Any] = shown["messages"]
    return {row["message"]: row for row in rows}


@slow(1)
def test_an_empty_mailbox(store: Path) -> None:
    before = snapshot(store)
    shown = segmentstore("mailbox", store, "--json")
    assert (shown.code, shown.json()) == (
        0,
        {"store": str(store), "answered_now": None, "waiting": 0, "messages": []},
    )
    assert b"0 messages, 0 without an answer" in segmentstore("mailbox", store).out
    assert snapshot(store) == before


@slow(2)
def test_what_is_asked_is_shown_and_nothing_changes_by_inspecting(store: Path) -> None:
    (store / "tier2" / "mailbox" / "00000000" / JOB).mkdir(parents=True)
    (store / "tier2" / "mailbox" / "00000000" / JOB / "broken.json").write_bytes(b"{")
    _send(
        store, _compacted(store, "group-1"), OrphanDeletionRequest(0, JOB, "orphans", ("x", "y"), 0)
    )
    before = snapshot(store)
    shown = segmentstore("mailbox", store, "--json").json()
    rows = _by_message(shown)
    assert shown["waiting"] == 3
    assert rows["group-1"]["asks"].startswith("replace 3 chunks by an object of ")
    assert rows["orphans"]["asks"] == "delete 2 orphans"
    assert rows["broken"]["asks"].startswith("unreadable: not JSON")
    assert all(
        row["put"] and not row["verdict"] and row["answered"] is None for row in rows.values()
    )
    assert b"3 messages, 3 without an answer" in segmentstore("mailbox", store).out
    assert snapshot(store) == before


def test_processing_answers_through_the_log_and_the_bytes_stay(store: Path) -> None:
    (store / "tier2" / "mailbox" / "00000000" / JOB).mkdir(parents=True)
    (store / "tier2" / "mailbox" / "00000000" / JOB / "broken.json").write_bytes(b"{")
    proposal = _compacted(store, "group-1")
    _send(
        store,
        proposal,
        _compacted(store, "group-2"),
        OrphanDeletionRequest(0, JOB, "orphans", ("x",), 0),
    )
    shown = segmentstore("mailbox", store, "--process", "--json")
    assert shown.code == ExitCode.DONE
    assert (shown.json()["answered_now"], shown.json()["waiting"]) == (4, 0)
    rows = _by_message(shown.json())
    verdicts = {name: row["verdict"] for name, row in rows.items()}
    assert verdicts == {
        "broken": "refused_malformed",
        "group-1": "committed",
        "group-2": "refused_changed",
        "orphans": "condemned",
    }
    assert rows["group-1"]["detail"] == {"refused": [], "replacements": 1, "taken": 1}
    with StoppedStore(str(store)) as stopped:
        assert list(asyncio.run(stopped.metadata(0)).objects) == [proposal.object.name]
    assert segmentstore("cat", store, "a").out == b"one\ntwo\nthree\n"
    said = segmentstore("mailbox", store, "--process")
    assert b"4 messages, 0 answered now, 0 without an answer" in said.out
    assert b"committed" in said.out
    assert segmentstore("verify", store).code == ExitCode.DONE


def test_beside_a_running_store_its_owner_processes(store: Path) -> None:
    proposal = _compacted(store, "group-1")

    async def beside() -> None:
        async with engine.open(store, mailbox_poll_interval_s=0.0):
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, _run) == ExitCode.DONE
            storage = open_object_storage((store / "tier2").as_uri(), RUNTIME)
            await put_message(storage, RUNTIME, proposal)
            await storage.close()
            assert await loop.run_in_executor(None, _run, "--process") == ExitCode.DONE

    def _run(*options: str) -> int:
        return segmentstore("mailbox", store, *options).code

    asyncio.run(beside())
    assert (
        _by_message(segmentstore("mailbox", store, "--json").json())["group-1"]["verdict"]
        == "committed"
    )


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    assert segmentstore("mailbox", tmp_path).code == ExitCode.REFUSED
