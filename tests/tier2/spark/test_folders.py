"""The folders that the engine keeps beside segments: foreign files, lost and broken copies,
markers, messages, leftovers.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from recovery.harness.services.s3_servers import Moto, credentials
from recovery.harness.services.shared import shared_server
from segmentstore import blocking
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.runtime import Runtime
from storagewriter import request_processor
from tests.store.harness import TINY
from tests.support.suites import slow
from tests.tier2.flipping_storage import FlippingStorage
from tests.tier2.spark.reconcile_dry import LocalSpark, found, stopped
from tests.tier2.spark.reconcile_world import DAY_S, EPOCH, STORE_ID, World
from tier2.block_reader import FETCHES_MAX
from tier2.mailbox.messages import Answer, ExportRequest, encode
from tier2.metadata_manifest import (
    FileContent,
    MetadataManifest,
    SnapshotFile,
    encode_metadata_manifest,
)
from tier2.object_names import (
    ENGINE_PREFIXES,
    SnapshotName,
    answer_name,
    marker_name,
    message_name,
    metadata_file_name,
    metadata_manifest_name,
    table_name,
)
from tier2.spark.common.command_options import Exit
from tier2.spark.reconcile import folder_tasks
from tier2.spark.reconcile.findings import StoreFacts
from tier2.spark.reconcile.folders import ANSWERED_KEPT_MS
from tier2.spark.reconcile.job import reconcile
from tier2.store_markers import marker_text
from tier2.unique_ids import new_copy_id

OTHER = str(uuid.UUID(int=0x9999))
JOB = "00000000feedbeef"
IDS = random.Random(9)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What seems wrong is checked again without waiting, but in Spark's own processes."""
    monkeypatch.setattr(folder_tasks, "AGAIN_S", 0.0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tier2")


def test_a_marker_behind_a_wrong_bit_says_what_its_name_does(world: World) -> None:
    async def main() -> None:
        runtime = Runtime()
        storage = FlippingStorage(runtime)
        name = marker_name(STORE_ID)
        await storage.put(name, [marker_text(name)], uuid.UUID(STORE_ID).bytes)
        place = StoreFacts({}, world.now_ms, 0, store_id=STORE_ID)
        executor = runtime.executor("listing", 1)
        for count in (FETCHES_MAX - 1, FETCHES_MAX):
            storage.give_wrong(count)
            findings = await folder_tasks.check_folders(
                storage, world.url, place, "00000000000000aa", executor
            )
            found_there = [row["kind"] for row in findings.to_pylist() if row["object"] == name]
            assert found_there == ["unreadable"] * (count == FETCHES_MAX)
        executor.shutdown()

    asyncio.run(main())


def snapshot_file(world: World, container_id: int, store_id: str, table: str = "segments") -> str:
    return table_name(
        SnapshotName(container_id, EPOCH, 7, new_copy_id(store_id, world.random)), table
    )


def plant(world: World) -> dict[str, tuple[str, str]]:
    """One of each, in a world that was not exported yet: kind and severity by object."""
    old = 20 * DAY_S
    foreign = [
        *(
            world.put(f"{prefix}{name}", b"x", old)
            for prefix in ENGINE_PREFIXES
            for name in ("x", "deep/no name")
        ),
        world.put(f"mailbox/00000000/{JOB}/Message.json", b"x", old),
        world.put(message_name(ExportRequest(9, JOB, "m").key), b"x", old),
        world.put("probe/" + "0" * 31, b"x", old),
        world.put(snapshot_file(world, 7, STORE_ID), b"x", old),
        world.put(metadata_file_name(7, 1, new_copy_id(STORE_ID, IDS)), b"x", old),
    ]
    # What the owner alone knows to be wanted, and another store's.
    world.put(metadata_file_name(0, 1, new_copy_id(STORE_ID, IDS)), b"x", old)
    world.put(metadata_manifest_name(0, 1, 2, new_copy_id(STORE_ID, IDS)), b"x", old)
    world.put(metadata_file_name(0, 1, new_copy_id(OTHER, IDS)), b"x", old)
    whole = ExportRequest(0, JOB, "whole")
    world.put(message_name(whole.key), encode(whole))
    answered = ExportRequest(0, JOB, "answered")
    world.put(message_name(answered.key), b"whatever it was", old)
    answer = world.put(
        answer_name(answered.key), encode(Answer(*answered.key, "refused_malformed", "no")), old
    )
    just_now = ExportRequest(0, JOB, "just-now")
    world.put(answer_name(just_now.key), b"x", DAY_S)
    world.put(marker_name(OTHER), marker_text(marker_name(OTHER)))
    world.put("probe/" + "0" * 32, b"x", DAY_S)
    world.put(snapshot_file(world, 0, OTHER), b"another's")
    world.put(snapshot_file(world, 1, STORE_ID), b"under way", DAY_S)
    leftover = [
        answer,
        world.put("probe/" + "1" * 32, b"x", old),
        world.put(snapshot_file(world, 1, STORE_ID), b"x", old),
        world.copy(0, store_id=str(uuid.UUID(int=0x7777))),
    ]
    malformed = world.put(message_name(ExportRequest(1, JOB, "bad").key), b"{}", 0)
    bad_marker = world.put(marker_name(str(uuid.UUID(int=5))), b"")
    broken = world.copy(1)
    world.flip(broken, 100)
    torn = snapshot_file(world, 0, STORE_ID, "objects").rpartition("/")[0] + "/manifest.json"
    world.put(torn, b"{}", old)
    # It sorts as newer than all before, and those as what they are.
    world.put(torn.replace("manifest.json", "chunks.parquet"), b"x", old)
    return {
        **dict.fromkeys(foreign, ("foreign", "note")),
        **dict.fromkeys(leftover, ("leftover", "information")),
        malformed: ("unreadable", "note"),
        bad_marker: ("unreadable", "note"),
        broken: ("unreadable", "harmful"),
        torn: ("missing", "note"),
    }


def told(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    return {row["object"]: (row["kind"], row["severity"]) for row in rows}


def test_each_folder_is_checked_by_its_grammar(world: World) -> None:
    expected = plant(world)
    world.snapshot()
    result = stopped(LocalSpark(), world, store_id=STORE_ID)
    assert told(result.table.to_pylist()) == expected
    assert (result.verdict, result.summary.orphans) == (Exit.FINDINGS, 0)
    (row,) = [row for row in result.table.to_pylist() if row["severity"] == "harmful"]
    assert (row["container_id"], "restore" in row["evidence"], "checksum" in row["evidence"]) == (
        1,
        True,
        True,
    )


@slow(6)
def test_the_same_in_a_bucket(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    expected = plant(world)
    world.snapshot()
    server = shared_server(Moto)
    server.make_bucket("folders")
    client = server.client()
    try:
        for path in sorted(world.folder.rglob("*")):
            if path.is_file():
                key = f"store/{path.relative_to(world.folder)}"
                client.put_object(Bucket="folders", Key=key, Body=path.read_bytes())
    finally:
        client.close()
    result = stopped(LocalSpark(), world, server.location("folders", "store"), store_id=STORE_ID)
    # All of it was put a moment ago, and only another store's copy is no matter of age.
    rows = [row for row in result.table.to_pylist() if row["kind"] != "leftover"]
    assert told(rows) == {name: each for name, each in expected.items() if each[0] != "leftover"}


def test_a_container_without_a_copy_of_its_metadata_is_reported(world: World) -> None:
    for path in (world.folder / "checkpoints" / "00000001").iterdir():
        path.unlink()
    world.snapshot()
    result = stopped(LocalSpark(), world)
    (row,) = result.table.to_pylist()
    assert (row["kind"], row["severity"], row["object"]) == (
        "missing",
        "harmful",
        "checkpoints/00000001/",
    )
    assert "no whole copy of the metadata" in row["evidence"]
    assert result.verdict == Exit.FINDINGS


def test_a_copy_of_an_earlier_owner_alone_is_a_note_and_one_of_a_later_owner_shows_an_old_snapshot(
    world: World,
) -> None:
    world.copy(0, epoch=EPOCH + 2)
    world.export(0)
    world.export(1, EPOCH + 1)
    result = stopped(LocalSpark(), world)
    rows = told(result.table.to_pylist())
    assert rows == {
        "checkpoints/00000000/": ("in_flight", "unknown"),
        "checkpoints/00000001/": ("missing", "note"),
    }
    assert result.verdict == Exit.UNDECIDED


@pytest.mark.parametrize("fault", ["none", "manifest", "file"])
@pytest.mark.parametrize("copies", [True, False])
def test_a_whole_metadata_snapshot_counts_as_a_copy(
    world: World, fault: str, *, copies: bool
) -> None:
    if not copies:
        for path in (world.folder / "checkpoints" / "00000001").iterdir():
            path.unlink()
    unique_id = new_copy_id(STORE_ID, IDS)
    content = FileContent("000008.sst", 4, crc32c(b"data"))
    manifest = MetadataManifest(
        uuid.UUID(STORE_ID),
        len(world.metadata),
        1,
        EPOCH,
        world.metadata[1].sequence_number + 1,
        new_copy_id(STORE_ID, IDS),
        world.now_ms,
        (SnapshotFile(content, EPOCH, unique_id),),
    )
    if fault != "file":
        world.put(metadata_file_name(1, EPOCH, unique_id), b"data")
    data = encode_metadata_manifest(manifest)
    world.put(manifest.name, data[:-1] if fault == "manifest" else data)
    world.export(0)
    world.export(1, EPOCH + 1)
    rows = told(stopped(LocalSpark(), world).table.to_pylist())
    missing = {"checkpoints/00000001/": ("missing", "note" if copies else "harmful")}
    assert rows == ({} if fault == "none" else missing)


@pytest.mark.parametrize(("check", "count"), [("headers", 1), ("bodies", 2)])
def test_older_copies_are_read_to_their_end_only_with_bodies(
    world: World, check: str, count: int
) -> None:
    first, cut = world.copy(0), world.copy(0)
    world.copy(0)
    world.flip(first, 100)
    world.cut(cut, 100)
    world.snapshot()
    result = stopped(LocalSpark(), world, check=check)
    assert found(result.table) == {("unreadable", each) for each in (first, cut)[2 - count :]}


def test_a_lost_marker_is_a_note(world: World) -> None:
    world.lose(marker_name(STORE_ID))
    world.snapshot()
    (row,) = stopped(LocalSpark(), world).table.to_pylist()
    assert (row["kind"], row["severity"], row["object"]) == (
        "missing",
        "note",
        marker_name(STORE_ID),
    )


@slow(1)
def test_beside_a_live_owner_its_own_folders_are_as_they_should_be_and_a_lost_copy_is_found(
    tmp_path: Path,
) -> None:
    location, tier2 = tmp_path / "store", tmp_path / "store" / "tier2"
    with blocking.open(
        location, **{**TINY, "containers": 2, "mailbox_poll_interval_s": 0.05}
    ) as store:
        store.create_segment("a")
        store.append("a", b"a" * 500)
        store.flush()
        while len({path.parent for path in (tier2 / "checkpoints").glob("*/*")}) < 2:
            # The first copy is begun when a container starts, and no caller waits for it.
            time.sleep(0.01)
        assert reconcile(LocalSpark().as_spark(), tier2.as_uri()).table.num_rows == 0
        for path in (tier2 / "checkpoints" / "00000000").iterdir():
            path.unlink()
        result = reconcile(LocalSpark().as_spark(), tier2.as_uri())
    assert found(result.table) == {("missing", "checkpoints/00000000/")}


def test_answers_are_kept_as_long_as_owners_keep_them() -> None:
    assert ANSWERED_KEPT_MS == request_processor.KEEP_MS
