"""The check of a stopped store: each kind of finding planted on a real store, and what the command
line makes of it.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import segmentstore.blocking
from durablelog.operations import AppendOperation, CreateOperation, SnapshotCheckpointOperation
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.stopped_store import StoppedStore
from segmentstore.contracts.chunks import ObjectRecord
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.object_states import LiveObject
from tests.cli.shell import segmentstore as command
from tests.recovery.planted import (
    FLUSHED,
    UNFLUSHED,
    check,
    copy_as_it_is,
    flip,
    kinds,
    make_store,
    metadata_of,
    object_files,
    plant_checkpoint,
    put_into_log,
    segment_of,
    tree,
)
from tests.store.harness import open_lazy, run
from tests.support.chunk_edits import edited_chunks
from tier2.block_object import HEADER_BYTES, encode_block, parse_block_header
from tier2.object_names import object_name
from tier2.unique_ids import new_unique_id


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


def frames(store: Path) -> list[tuple[Path, int]]:
    """File and position of each frame that counts."""
    with StoppedStore(str(store)) as stopped:
        return [
            (Path(report.path), report.position)
            for report in stopped.logs.frames(0)
            if report.status == "ok"
        ]


def test_a_good_store_has_no_finding_and_is_left_as_it_was(store: Path) -> None:
    before = tree(store)
    for deep in (False, True):
        assert check(store, deep=deep) == []
        assert command("verify", store, *(["--deep"] if deep else [])).code == ExitCode.DONE
    assert tree(store) == before


def test_every_container_is_checked(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", containers=3)
    assert check(store, deep=True) == []
    for file in object_files(store):
        file.unlink()
    with StoppedStore(str(store)) as stopped:
        others = [name for each in run(stopped.all_metadata())[1:] for name in each.objects]
    for name in others:
        (store / "tier2" / name).unlink()
    findings = check(store)
    assert len(findings) == len({finding.place for finding in findings}) > 1
    assert set(kinds(findings)) == {("harmful", "object-missing")}


def test_a_store_that_is_used_in_every_way_has_nothing_harmful(tmp_path: Path) -> None:
    async def use() -> None:
        async with open_lazy(tmp_path / "store", deletion_lag_s=1000.0) as store:
            for name in ("a", "b", "c", "d"):
                await store.create_segment(name)
                for number in range(20):
                    await store.append(name, b"%d " % number * 5)
            await store.flush("a")
            await store.merge("a", "b")
            await store.append("a", UNFLUSHED)
            await store.flush("c")
            await store.truncate("c", 77)
            await store.merge("c", "a")
            await store.delete("d")
            await store.checkpoint()
            await store.append("c", UNFLUSHED)
            await store.seal("c")

    run(use())
    assert {finding.severity.value for finding in check(tmp_path / "store", deep=True)} <= {"note"}


def test_what_a_kill_leaves_has_nothing_harmful(tmp_path: Path) -> None:
    async def use() -> list[Path]:
        copies = []
        # No truncation, no deletion and no second log file: a copy takes a while, a kill does not.
        still: dict[str, Any] = {
            "deletion_lag_s": 1000.0,
            "checkpoint_operations": 10_000,
            "checkpoint_bytes": 1 << 20,
        }
        async with open_lazy(
            tmp_path / "store", log_file_bytes=1 << 20, flush_age_s=0.01, **still
        ) as store:
            for name in ("a", "b"):
                await store.create_segment(name)
            for number in range(60):
                await asyncio.gather(
                    *(store.append(name, b"%d " % number * 9) for name in ("a", "b"))
                )
                if number % 10 == 5:
                    copies.append(copy_as_it_is(tmp_path / "store", tmp_path / f"copy-{number}"))
        return copies

    for copy in run(use()):
        findings = check(copy, deep=True)
        assert {finding.severity.value for finding in findings} <= {"note"}, findings


# --- the log --------------------------------------------------------------------------------------


def test_a_corrupt_frame(store: Path) -> None:
    path, position = frames(store)[1]
    flip(path, position + 8)
    findings = check(store)
    assert kinds(findings) == [("harmful", "log")]
    assert findings[0].place == f"{path} offset {position} frame 2"


def test_a_torn_tail_is_a_note(store: Path) -> None:
    path, position = frames(store)[-1]
    flip(path, position + 8)
    findings = check(store)
    assert ("note", "torn-tail") in kinds(findings)
    assert command("verify", store).code == ExitCode.DONE


def test_a_state_record_that_is_damaged_or_missing(store: Path) -> None:
    (state,) = (store / "log" / "0").glob("state-*")
    flip(state, 20)
    assert kinds(check(store)) == [("harmful", "log")]
    state.unlink()
    findings = check(store)
    assert kinds(findings) == [("harmful", "log")]
    assert "state record" in findings[0].detail


def test_a_log_that_is_missing_while_tier_2_has_its_objects(store: Path) -> None:
    shutil.rmtree(store / "log")
    assert kinds(check(store)) == [("harmful", "log-lost")]


def test_a_store_whose_creation_was_interrupted_is_empty_and_good(store: Path) -> None:
    shutil.rmtree(store / "log")
    shutil.rmtree(store / "tier2")
    assert check(store) == []


def test_operations_without_a_checkpoint(store: Path) -> None:
    put_into_log(store, CreateOperation("x", sequence_number=10_000), cut=True)
    findings = check(store)
    assert kinds(findings) == [("harmful", "log")]
    assert "not with a checkpoint" in findings[0].detail


@pytest.mark.parametrize("offset", [0, len(FLUSHED + UNFLUSHED) + 1])
def test_an_operation_that_does_not_fit_what_came_before(store: Path, offset: int) -> None:
    segment = segment_of(metadata_of(store), "a")
    put_into_log(store, AppendOperation(segment.segment_id, offset, b"x", sequence_number=10_000))
    assert kinds(check(store)) == [("harmful", "log")]


def test_a_checkpoint_that_is_not_what_the_log_adds_up_to(store: Path) -> None:
    def change(metadata: ContainerMetadata) -> None:
        segment_of(metadata, "b").apply_attributes({bytes(16): 7})

    plant_checkpoint(store, change, cut=False)
    findings = check(store)
    assert kinds(findings) == [("harmful", "checkpoint")]
    assert f"segment {segment_of(metadata_of(store), 'b').segment_id}" in findings[0].detail


def test_a_second_checkpoint_that_is_right(store: Path) -> None:
    plant_checkpoint(store, lambda _: None, cut=False)
    assert check(store) == []


def test_a_checkpoint_by_reference_in_the_middle_is_passed_over(store: Path) -> None:
    put_into_log(store, SnapshotCheckpointOperation(1, bytes(16), sequence_number=1 << 40))
    assert check(store) == []


def test_a_log_that_begins_by_reference_says_which_snapshot_is_missing(store: Path) -> None:
    put_into_log(store, SnapshotCheckpointOperation(1, bytes(16), sequence_number=0x99), cut=True)
    findings = check(store)
    assert kinds(findings) == [("harmful", "log")]
    assert "metadata/00000000/0000000000000001-0000000000000099-" in findings[0].detail


def test_unflushed_bytes_that_the_log_has_lost(store: Path) -> None:
    plant_checkpoint(store, lambda _: None)
    findings = check(store)
    assert kinds(findings) == [("harmful", "missing-bytes")]
    assert findings[0].place == f"container 0, segment 'a' offset {len(FLUSHED)}"


# --- the metadata ---------------------------------------------------------------------------------


@pytest.fixture
def flushed(store: Path) -> Path:
    """All of it in Tier 2, so that a planted checkpoint alone is sufficient."""
    assert command("flush", store).code == ExitCode.DONE
    return store


def test_a_gap_between_chunks(flushed: Path) -> None:
    def change(metadata: ContainerMetadata) -> None:
        segment = segment_of(metadata, "a")
        assert len(segment.chunks) > 1
        with edited_chunks(segment) as chunks:
            del chunks[0]

    plant_checkpoint(flushed, change)
    findings = check(flushed)
    assert ("harmful", "gap") in kinds(findings)
    assert any(finding.place == "container 0, segment 'a' offset 0" for finding in findings)


def test_chunks_that_overlap(flushed: Path) -> None:
    def change(metadata: ContainerMetadata) -> None:
        segment = segment_of(metadata, "a")
        with edited_chunks(segment) as chunks:
            chunks[-1] = chunks[-1]._replace(start_offset=chunks[-1].start_offset - 1)

    plant_checkpoint(flushed, change)
    assert ("harmful", "overlap") in kinds(check(flushed))


def test_bytes_of_a_block_that_belong_to_two_chunks(flushed: Path) -> None:
    def change(metadata: ContainerMetadata) -> None:
        with edited_chunks(segment_of(metadata, "b")) as chunks:
            chunks[0] = segment_of(metadata, "a").chunks.first

    plant_checkpoint(flushed, change)
    assert ("harmful", "overlap") in kinds(check(flushed))


def test_a_chunk_that_reaches_beyond_its_object(flushed: Path) -> None:
    def change(metadata: ContainerMetadata) -> None:
        with edited_chunks(segment_of(metadata, "b")) as chunks:
            chunks[0] = chunks[0]._replace(block_offset=1 << 20)

    plant_checkpoint(flushed, change)
    assert ("harmful", "chunk") in kinds(check(flushed))


def test_another_invariant_of_the_metadata(flushed: Path) -> None:
    def change(metadata: ContainerMetadata) -> None:
        segment_of(metadata, "b").merged_into = segment_of(metadata, "a").segment_id

    plant_checkpoint(flushed, change)
    assert kinds(check(flushed)) == [("harmful", "metadata")]


# --- Tier 2 ---------------------------------------------------------------------------------------


def test_an_object_that_is_missing(store: Path) -> None:
    for file in object_files(store):
        file.unlink()
    for deep in (False, True):
        assert set(kinds(check(store, deep=deep))) == {("harmful", "object-missing")}
    shown = command("verify", store, "--json")
    assert (shown.code, shown.json()["harmful"]) == (ExitCode.CORRUPTION, True)
    assert {finding["kind"] for finding in shown.json()["findings"]} == {"object-missing"}
    assert b"object-missing" in command("verify", store).out


def test_an_object_of_another_size(store: Path) -> None:
    file = object_files(store)[0]
    file.write_bytes(file.read_bytes()[:-1])
    assert kinds(check(store)) == [("harmful", "object-size")]
    assert ("harmful", "block") in kinds(check(store, deep=True))


@pytest.mark.parametrize(
    ("position", "part"),
    [(0, "header"), (40, "header"), (HEADER_BYTES + 1, "extent table"), (-1, "extent")],
)
def test_a_flipped_byte_is_found_by_reading_deep(store: Path, position: int, part: str) -> None:
    file = object_files(store)[0]
    flip(file, position % file.stat().st_size)
    before = tree(store)
    assert check(store) == []
    findings = check(store, deep=True)
    assert kinds(findings) == [("harmful", "block")]
    assert part in findings[0].place
    assert command("verify", store, "--deep").code == ExitCode.CORRUPTION
    assert tree(store) == before


def test_every_bad_extent_of_a_block_is_counted(store: Path) -> None:
    file = object_files(store)[0]
    header = parse_block_header(file.read_bytes())
    assert header.extent_count > 2
    for index in range(header.extent_count):
        flip(file, header.prefix_length + index * header.extent_bytes)
    findings = check(store, deep=True)
    assert len(findings) == 1
    assert f"{header.extent_count - 1} more" in findings[0].detail


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"container_id": 5}, "container 5"),
        ({"epoch": 99}, "epoch 99"),
        ({"segment_id": 77}, "segment 77"),
        ({"start_offset": 3}, "holds bytes 3"),
    ],
)
def test_a_block_that_is_not_the_one_meant(store: Path, wrong: dict[str, int], said: str) -> None:
    file = object_files(store)[0]
    data = file.read_bytes()
    header = parse_block_header(data)
    names = ("container_id", "epoch", "segment_id", "start_offset", "extent_bytes")
    fields = {name: getattr(header, name) for name in names} | wrong
    payload = data[header.prefix_length : header.block_length]
    file.write_bytes(
        b"".join(encode_block(**fields, parts=[payload])) + data[header.block_length :]
    )
    findings = check(store, deep=True)
    assert kinds(findings) == [("harmful", "block")]
    assert said in findings[0].detail


def test_a_chunk_that_points_inside_of_a_block(flushed: Path) -> None:
    def change(metadata: ContainerMetadata) -> None:
        with edited_chunks(segment_of(metadata, "b")) as chunks:
            chunks[0] = chunks[0]._replace(block_offset=chunks[0].block_offset - 1)

    place = segment_of(metadata_of(flushed), "b").chunks.first.block_offset
    assert place
    plant_checkpoint(flushed, change)
    findings = check(flushed, deep=True)
    assert kinds(findings) == [("harmful", "block")]
    assert "inside of the block" in findings[0].detail


def test_a_fault_in_an_unneeded_block_is_a_note(store: Path) -> None:
    metadata = metadata_of(store)
    chunk = segment_of(metadata, "b").chunks.first
    assert len({segment_of(metadata, name).chunks.first.object_name for name in ("b", "c")}) == 1
    assert command("rm", store, "b").code == ExitCode.DONE
    flip(store / "tier2" / chunk.object_name, chunk.block_offset + 2)
    findings = check(store, deep=True)
    assert kinds(findings) == [("note", "unused-block")]
    assert command("verify", store, "--deep").code == ExitCode.DONE


def test_garbage_that_waits(tmp_path: Path) -> None:
    async def use() -> None:
        async with open_lazy(tmp_path / "store", deletion_lag_s=1000.0) as store:
            await store.create_segment("a")
            await store.append("a", FLUSHED)
            await store.flush()
            await store.delete("a")

    run(use())
    findings = check(tmp_path / "store", deep=True)
    assert kinds(findings) == [("note", "garbage")]
    assert findings[0].detail.startswith("1 objects")


def test_orphans_and_what_is_not_ours(store: Path) -> None:
    rng = random.Random(1)
    for container_id in (0, 0, 7):
        file = store / "tier2" / object_name(container_id, 1, "flush", new_unique_id(rng))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"xyz")
    (store / "tier2" / "notes.txt").write_bytes(b"1234")
    findings = check(store)
    assert kinds(findings) == [("note", "orphans"), ("note", "foreign-objects")]
    assert findings[0].detail.startswith("2 objects (6 bytes")
    assert findings[1].detail.startswith("2 objects (7 bytes")
    assert command("verify", store).code == ExitCode.DONE


def test_orphans_of_a_container_whose_log_is_corrupt_are_not_guessed(store: Path) -> None:
    path, position = frames(store)[1]
    flip(path, position + 8)
    assert len(object_files_on_disk(store)) > 0
    assert kinds(check(store, deep=True)) == [("harmful", "log")]


def object_files_on_disk(store: Path) -> list[Path]:
    return [path for path in (store / "tier2").rglob("flush-*") if path.is_file()]


def test_an_object_without_a_chunk_breaks_the_count(flushed: Path) -> None:
    def change(metadata: ContainerMetadata) -> None:
        name = object_name(0, 1, "flush", bytes(16))
        metadata.objects[name] = LiveObject(ObjectRecord(name, 10, 0))

    plant_checkpoint(flushed, change)
    assert ("harmful", "object-missing") in kinds(check(flushed))


def test_a_tier_that_does_not_answer_is_not_corruption(store: Path) -> None:
    file = object_files(store)[0]
    file.unlink()
    file.symlink_to(file.name)  # A loop of links: the file system refuses to say.
    with pytest.raises(TierUnavailableError):
        check(store)
    assert command("verify", store).code == ExitCode.UNAVAILABLE


# --- the command ----------------------------------------------------------------------------------


def test_a_store_that_is_open_is_in_use(store: Path) -> None:
    with segmentstore.blocking.open(str(store)):
        assert command("verify", store).code == ExitCode.IN_USE
    assert command("verify", store).code == ExitCode.DONE


def test_a_log_that_is_open_is_in_use(store: Path) -> None:
    with StoppedStore(str(store)):
        assert command("verify", store, "--deep").code == ExitCode.IN_USE


def test_what_is_no_store_is_refused_and_not_created(tmp_path: Path) -> None:
    assert command("verify", tmp_path).code == ExitCode.REFUSED
    assert list(tmp_path.iterdir()) == []
