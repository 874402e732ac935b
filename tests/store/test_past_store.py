"""The past of a real store: restored at moments, replayed, verified and repaired, from its archive
and its log.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import segmentstore
from recovery.moments import AtCheckpoint, AtSequence, AtTime, Moment, MomentNotKeptError
from recovery.restore_past import PastReport, restore_past
from segmentstore import SegmentStore
from segmentstore.contracts.errors import InvalidArgumentError, NotAStoreError
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.past_store import PastStore, open_lost, open_past
from tests.store.archive_world import archive_of, archiver
from tests.store.harness import TINY, UNFLUSHED, WorldDisk, read_store_id, run, until
from tests.support.folders import files_below
from tests.support.suites import slow
from tier2.object_names import parse_checkpoint_name, parse_metadata_manifest_name

ARCHIVING: Mapping[str, Any] = {
    **TINY,
    "containers": 2,
    "flush_age_s": 0.02,
    "offload_above_bytes": 0,
    "archive_deletion_lag_s": 0.0,
    "deletion_lag_s": 0.0,
    "checkpoint_operations": 40,
}
Seen = dict[str, tuple[int, int, int, bool, dict[str, int], bytes]]


class Known(NamedTuple):
    """A quiet moment."""

    time_ms: int
    sequences: list[int]
    seen: Seen


async def observed(store: SegmentStore) -> Seen:
    seen: Seen = {}
    async for info in store.list_segments():
        data = b""
        while info.start_offset + len(data) < info.length:
            data += await store.read(info.name, info.start_offset + len(data), 1 << 20)
        attributes = await store.get_attributes(info.name)
        seen[info.name] = (
            info.segment_id,
            info.start_offset,
            info.length,
            info.sealed,
            {key.hex: value for key, value in attributes.items()},
            data,
        )
    return seen


async def seen_in(location: Path) -> Seen:
    async with segmentstore.open(location) as store:
        return await observed(store)


async def work(store: SegmentStore, rng: random.Random, steps: int) -> None:
    """Creations, appends, truncations, seals, merges and deletions."""
    for step in range(steps):
        infos = [info async for info in store.list_segments()]
        free = [info for info in infos if not info.sealed]
        kind = rng.randrange(24)
        if len(free) < 4 or kind == 0:
            await store.create_segment(f"s{rng.getrandbits(40)}-{step}")
            continue
        info = rng.choice(free)
        if kind == 1:
            await store.truncate(info.name, rng.randint(info.start_offset, info.length))
        elif kind == 2 and len(free) > 5:
            await store.seal(info.name)
        elif kind == 3 and len(free) > 5:
            await store.delete(info.name)
        elif kind == 4:
            targets = [
                each.name
                for each in free
                if each.container_id == info.container_id and each.name != info.name
            ]
            if targets and not info.start_offset:
                await store.merge(rng.choice(targets), info.name)
        else:
            for _ in range(3):
                await store.append(info.name, rng.randbytes(rng.randrange(1, 700)))


async def fill(folder: Path, *, rounds: int = 3, steps: int = 40) -> list[Known]:
    """Some work, and what was known at quiet moments in it."""
    rng = random.Random(7)
    known = []
    async with segmentstore.open(
        folder / "store", archive=folder / "archive", **ARCHIVING
    ) as store:
        for _ in range(rounds):
            await work(store, rng, steps)
            seen = await observed(store)
            sequences = [each.metadata.sequence_number for each in store._containers]
            now_ms = Runtime().clock.time_ms()
            await until(partial(is_later_than, now_ms + 1))
            known.append(Known(now_ms, sequences, seen))
        await work(store, rng, steps)
        await store.flush()
        await until(lambda: all(each.metadata.archive.count > 4 for each in store._containers))
    return known


def is_later_than(time_ms: int) -> bool:
    return Runtime().clock.time_ms() > time_ms


def environment(folder: Path) -> dict[str, str]:
    return {"SEGMENTSTORE_ARCHIVE": (folder / "archive").as_uri()}


async def restored(
    past: PastStore, moment: Moment, location: Path, container_id: int | None = None
) -> PastReport:
    return await restore_past(
        past.source, moment, str(location), Runtime(), container_id=container_id
    )


def mine(seen: Seen, store: PastStore, container_id: int) -> Seen:
    """What is in one container."""
    count = len(store.parts)

    return {name: each for name, each in seen.items() if container_of(name, count) == container_id}


def test_a_store_as_of_a_moment_is_what_it_was_running_stopped_and_lost(tmp_path: Path) -> None:
    async def main() -> None:
        known = await fill(tmp_path)
        async with await open_past(
            str(tmp_path / "store"), environment(tmp_path), Runtime()
        ) as past:
            for number, moment in enumerate(known):
                location = tmp_path / f"time-{number}"
                report = await restored(past, AtTime(moment.time_ms), location)
                assert not report.losses
                assert await seen_in(location) == moment.seen
            for container_id in range(2):
                location = tmp_path / f"sequence-{container_id}"
                at = AtSequence(known[1].sequences[container_id])
                report = await restored(past, at, location, container_id)
                assert report.containers[container_id].sequence_number == at.sequence_number
                assert mine(await seen_in(location), past, container_id) == mine(
                    known[1].seen, past, container_id
                )
            part = await past.parts[0].at(past.parts[0].kept[-1])
            if part.checkpoint_sequence:
                at_checkpoint = AtCheckpoint(part.checkpoint_sequence)
                report = await restored(past, at_checkpoint, tmp_path / "checkpoint", 0)
                assert report.containers[0].operations == 1
        tier2 = (tmp_path / "store" / "tier2").as_uri()
        shutil.rmtree(tmp_path / "store" / "log")
        async with await open_lost(tier2, (tmp_path / "archive").as_uri(), Runtime()) as past:
            report = await restored(past, AtTime(known[0].time_ms), tmp_path / "lost")
            assert not report.losses
            assert await seen_in(tmp_path / "lost") == known[0].seen

    run(main())


def test_without_a_copy_of_the_metadata_nothing_says_what_the_archive_has(tmp_path: Path) -> None:
    async def main() -> None:
        await fill(tmp_path, rounds=1)
        tier2 = tmp_path / "store" / "tier2"
        places = (tier2.as_uri(), (tmp_path / "archive").as_uri())
        for path in (tier2 / "checkpoints").rglob("*"):
            if path.is_file():
                path.write_bytes(b"no copy")
        with pytest.raises(NotAStoreError, match=r"can be read .*; checkpoint checkpoints/"):
            await open_lost(*places, Runtime())
        shutil.rmtree(tier2 / "checkpoints")
        with pytest.raises(NotAStoreError, match="no copy of the metadata can be read"):
            await open_lost(*places, Runtime())

    run(main())


def test_copies_of_the_metadata_of_two_stores_are_not_mixed(tmp_path: Path) -> None:
    async def main() -> None:
        for name in ("one", "two"):
            await fill(tmp_path / name, rounds=1)
        tier2 = [tmp_path / name / "store" / "tier2" for name in ("one", "two")]
        # What a copy of one bucket into another may leave, without the markers.
        for place in tier2:
            for path in (place / "checkpoints").rglob("*"):
                named = parse_checkpoint_name(path.relative_to(place).as_posix())
                if named is not None and named.container_id != tier2.index(place):
                    path.unlink()
        shutil.copytree(tier2[1], tier2[0], dirs_exist_ok=True)
        shutil.rmtree(tier2[0] / "stores")
        ids = [read_store_id(place.parent) for place in tier2]
        with pytest.raises(InvalidArgumentError) as caught:
            await open_lost(tier2[0].as_uri(), (tmp_path / "archive").as_uri(), Runtime())
        assert f"{ids[0]} (container 0) and {ids[1]} (container 1)" in str(caught.value)

    run(main())


async def fill_by_reference(folder: Path, *, inline_before: bool) -> Known:
    """Some work, and what was known in the midst of it: behind the checkpoint by reference that
    the log begins with. All inline ones are before that, and no more in the archive unless
    `inline_before`.
    """
    rng = random.Random(5)
    options = {**ARCHIVING, **UNFLUSHED, "containers": 1, "archive": folder / "archive"}
    options["deletion_lag_s"] = 1000.0
    by_reference = {**options, "inline_checkpoint_bytes_max": 0}
    async with segmentstore.open(folder / "store", **by_reference) as store:
        await work(store, rng, 60)
        await store.flush()
        await store.checkpoint()
        await until(lambda: store.stats()["containers"][0]["snapshots"]["completed"] > 0)
        before = store._containers[0].metadata.sequence_number
        await store.create_segment("pin")
        await store.append("pin", b"not flushed: the log is not truncated behind it")
        await work(store, rng, 60)
        seen = await observed(store)
        sequence = store._containers[0].metadata.sequence_number
        now_ms = Runtime().clock.time_ms()
        await until(partial(is_later_than, now_ms + 1))
        await work(store, rng, 60)
        await until(lambda: archive_of(store).last_sequence > sequence)
        if not inline_before:
            await until(lambda: archive_of(store).hot_deleted_count > 1)
            assert await archiver(store).remove_prefix(before)
    return Known(now_ms, [sequence], seen)


def manifests(folder: Path) -> list[Path]:
    """Of metadata snapshots, oldest first."""
    return sorted(path for path in files_below(folder / "store" / "tier2") if is_manifest(path))


def is_manifest(path: Path) -> bool:
    name = path.as_posix().split("/tier2/", 1)[1]
    return parse_metadata_manifest_name(name) is not None


@pytest.mark.parametrize("lost", ["nothing", "a snapshot", "all before"])
def test_a_lost_folder_is_no_obstacle_where_a_snapshot_is_in_tier_2(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    tier2 = tmp_path / "store" / "tier2"

    async def main() -> None:
        known = await fill_by_reference(tmp_path, inline_before=lost == "a snapshot")
        for path in (tmp_path / "store").iterdir():
            if path.name != "tier2":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if lost != "nothing":
            for path in manifests(tmp_path)[:-1]:
                path.unlink()
        async with await open_lost(
            tier2.as_uri(), (tmp_path / "archive").as_uri(), Runtime()
        ) as past:
            at = AtTime(known.time_ms)
            if lost == "all before":
                with pytest.raises(MomentNotKeptError, match="no such manifest"):
                    await restored(past, at, tmp_path / "new")
                return
            report = await restored(past, at, tmp_path / "new")
            assert not report.losses
        assert await seen_in(tmp_path / "new") == known.seen

    run(main())
    assert not list(scratch.iterdir())


def test_a_running_store_is_read_and_not_disturbed(tmp_path: Path) -> None:
    async def main() -> None:
        known = await fill(tmp_path, rounds=1)
        options = {**ARCHIVING, "archive": tmp_path / "archive"}
        async with segmentstore.open(tmp_path / "store", **options) as store:
            async with await open_past(
                str(tmp_path / "store"), environment(tmp_path), Runtime()
            ) as past:
                await restored(past, AtTime(known[0].time_ms), tmp_path / "new")
            await store.create_segment("still-open")
        assert await seen_in(tmp_path / "new") == known[0].seen

    run(main())


def test_a_store_whose_maker_died_before_its_first_operation_has_no_past(tmp_path: Path) -> None:
    async def main() -> None:
        async with segmentstore.open(tmp_path / "whole", **TINY):
            pass
        (tmp_path / "store").mkdir()
        shutil.copyfile(tmp_path / "whole/store.toml", tmp_path / "store/store.toml")
        with pytest.raises(MomentNotKeptError, match="nothing to begin with at the end: there is"):
            await open_past(str(tmp_path / "store"), {}, Runtime())

    run(main())


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_archive_is_read_in_requests_of_the_size_that_is_set(
    is_lost: bool, tmp_path: Path
) -> None:
    async def requests(read_bytes: int) -> int:
        """What it takes to read the second part."""
        disk, asked = WorldDisk(), []

        def note(call: str, path: str) -> None:
            if call == "pread" and "-ledger-" in path and not path.endswith("-index"):
                asked.append(path)

        disk.trap = note
        settings = {**environment(tmp_path), "SEGMENTSTORE_ARCHIVE_READ_BYTES": str(read_bytes)}
        if is_lost:
            tier2 = (tmp_path / "store" / "tier2").as_uri()
            opening = open_lost(
                tier2, settings["SEGMENTSTORE_ARCHIVE"], Runtime(disk=disk), settings
            )
        else:
            opening = open_past(str(tmp_path / "store"), settings, Runtime(disk=disk))
        async with await opening as past:
            handle = await past.open_part(await past.parts[0].at(1))
            asked.clear()
            async with aclosing(handle.read(0, handle.last_entry)) as batches:
                async for _ in batches:
                    pass
            await handle.close()
        return len(asked)

    async def main() -> None:
        await fill(tmp_path, rounds=1)
        assert await requests(1 << 20) == 1
        assert await requests(512) > 8

    run(main())


def segmentstore_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "segmentstore", *arguments],
        env={**os.environ, **environment(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_the_command_line_shows_verifies_replays_and_restores(tmp_path: Path) -> None:
    known = asyncio.run(fill(tmp_path))
    store = str(tmp_path / "store")
    checked = segmentstore_command(tmp_path, "archive", "verify", store, "--json")
    assert (checked.returncode, json.loads(checked.stdout)["harmful"]) == (0, False)
    shown = segmentstore_command(tmp_path, "archive", "show", store, "2", "--container", "1")
    assert shown.returncode == 0, shown.stderr
    lines = segmentstore_command(tmp_path, "archive", "replay", store, "--json").stdout.splitlines()
    operations = [json.loads(line) for line in lines]
    numbers = [each["sequence"] for each in operations if each["container"] == 0]
    assert numbers == sorted(set(numbers))
    created = next(each for each in operations if each["kind"] == "create")
    name = created["what"].split()[1]
    of_one = segmentstore_command(tmp_path, "archive", "replay", store, "--segment", name)
    assert of_one.stdout.splitlines()[0].endswith(f"create: name {name}")
    at = datetime.fromtimestamp(known[1].time_ms / 1000, UTC).isoformat()
    new = str(tmp_path / "new")
    dry = segmentstore_command(tmp_path, "restore", store, new, "--at", at, "--dry-run", "--json")
    assert (dry.returncode, Path(new).exists()) == (0, False)
    made = segmentstore_command(tmp_path, "restore", store, new, "--at", at, "--json")
    report = json.loads(made.stdout)
    assert report["restored_bytes"] == json.loads(dry.stdout)["restored_bytes"]
    assert report["archive_requests"] > 0
    assert report["archive_bytes_received"] >= report["containers"][0]["bytes_from_history"]
    assert asyncio.run(seen_in(Path(new))) == known[1].seen
    refused = segmentstore_command(tmp_path, "restore", store, new, "--at", "5")
    assert refused.returncode != 0


@slow(15)
def test_what_the_archive_has_lost_is_named_with_exit_code_6(tmp_path: Path) -> None:
    known = asyncio.run(fill(tmp_path))
    store = str(tmp_path / "store")
    # All that is not in the log any more, and no object either.
    for path in (tmp_path / "store" / "tier2").rglob("flush-*"):
        path.unlink()
    for end in ("", "-index"):
        for path in (tmp_path / "archive").glob(f"*-ledger-2{end}"):
            path.unlink()
    at = datetime.fromtimestamp(known[2].time_ms / 1000, UTC).isoformat()
    made = segmentstore_command(
        tmp_path, "restore", store, str(tmp_path / "new"), "--at", at, "--json"
    )
    assert made.returncode == 6, made.stderr
    report = json.loads(made.stdout)
    assert report["lost_bytes"] == sum(
        loss["end_offset"] - loss["start_offset"] for loss in report["losses"]
    )
    assert all("no append that is kept has it" in loss["reason"] for loss in report["losses"])
    checked = segmentstore_command(tmp_path, "archive", "verify", store, "--json")
    assert checked.returncode == 3
    assert {each["kind"] for each in json.loads(checked.stdout)["findings"]} == {
        "archived-part-missing"
    }


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def cut(content: bytes) -> bytes:
    """Its other blocks are whole. For as long as one of them is referred to the object stays."""
    return content[:-5]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("damage", [flipped, cut])
def test_a_damaged_block_is_written_anew_and_the_owner_takes_it(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    asyncio.run(fill(tmp_path, rounds=1))
    store = tmp_path / "store"
    before = asyncio.run(seen_in(store))
    # All of them: which are still referred to depends on when the work's last jobs ended.
    for path in (store / "tier2").rglob("*"):
        if path.name.startswith(("flush-", "consolidation-")):
            path.write_bytes(damage(path.read_bytes()))
    found = segmentstore_command(tmp_path, "scrub", str(store), "--repair", "--restart")
    assert found.returncode == 3, found.stdout + found.stderr
    assert "can be written anew" in found.stdout
    repaired = segmentstore_command(
        tmp_path, "scrub", str(store), "--repair", "--apply", "--restart"
    )
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
    assert "committed" in repaired.stdout
    assert segmentstore_command(tmp_path, "scrub", str(store), "--restart").returncode == 0
    assert asyncio.run(seen_in(store)) == before
