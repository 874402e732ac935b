"""The check of a stopped store whose log begins with a checkpoint by reference, and what the
commands that read stopped stores say of it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from durablelog.operations import SnapshotCheckpointOperation
from recovery.snapshot_name import snapshot_name
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.stopped_store import StoppedStore
from storagewriter.snapshot_uploader import KEPT
from tests.cli.shell import segmentstore as command
from tests.recovery.planted import check, flip, kinds, metadata_of, tree
from tests.store.harness import open_lazy, read_all, run

ROUNDS = 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two containers; each log begins with a checkpoint by reference and has more behind it."""
    folder = tmp_path_factory.mktemp("made") / "store"

    async def fill() -> None:
        async with open_lazy(folder, containers=2, inline_checkpoint_bytes_max=0) as store:
            for number in range(8):
                await store.create_segment(f"s{number}")
            for round_number in range(ROUNDS):
                for number in range(8):
                    await store.append(f"s{number}", b"<%d>" % round_number)
                if round_number < ROUNDS - 1:
                    await store.flush()
                    await store.checkpoint()

    run(fill())
    return folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def beginning(store: Path) -> Path:
    """The manifest that the log of container 0 begins with."""
    with StoppedStore(str(store)) as stopped:
        first = next(stopped.operations(0)).operation
    assert isinstance(first, SnapshotCheckpointOperation)
    return store / "tier2" / snapshot_name(0, first)


def files(store: Path) -> list[Path]:
    return sorted((store / "tier2" / "metadata").glob("*/files/*"))


def local_files(store: Path) -> list[Path]:
    """Of the finished checkpoints of container 0."""
    return [path for path in (store / "catalog" / "0").glob("0*/*") if path.stat().st_size]


def test_the_log_is_read_behind_its_snapshot(store: Path) -> None:
    before = tree(store)
    assert check(store, deep=True) == []
    assert metadata_of(store).sequence_number > 0
    assert command("verify", store, "--json").json()["findings"] == []
    assert tree(store) == before


def test_without_a_local_catalog_the_metadata_come_from_tier2(store: Path) -> None:
    shutil.rmtree(store / "catalog")
    before = tree(store)
    assert check(store) == []
    assert tree(store) == before


def test_damage_on_local_disk_is_a_note_if_tier2_is_whole(store: Path) -> None:
    for path in local_files(store):
        flip(path, path.stat().st_size // 2)
    assert kinds(check(store)) == [("note", "catalog")]


@pytest.mark.parametrize("what", ["manifest", "files", "damaged"])
def test_damage_in_tier2_is_a_note_if_the_local_copy_is_whole(what: str, store: Path) -> None:
    if what == "manifest":
        beginning(store).unlink()
    elif what == "damaged":
        flip(beginning(store), 100)
    else:
        for path in files(store):
            path.unlink()
    findings = check(store)
    assert set(kinds(findings)) == {("note", "metadata-snapshot")}
    assert any("the log begins with it" in finding.detail for finding in findings)
    assert all("the next checkpoint puts a new one" in finding.detail for finding in findings)


def test_deep_a_file_with_other_bytes_is_a_note_that_says_how_to_mend_it(store: Path) -> None:
    damaged = [path for path in files(store) if path.parent.parent.name == "00000000"]
    for path in damaged:
        flip(path, path.stat().st_size // 2)
    assert check(store) == []
    findings = check(store, deep=True)
    assert set(kinds(findings)) == {("note", "metadata-snapshot")}
    assert len(findings) == len(list(beginning(store).parent.glob("0*")))
    assert all(any(path.name in each.detail for path in damaged) for each in findings)
    assert all("remove it" in finding.detail for finding in findings)
    assert command("verify", store, "--deep").code == 0
    for path in damaged:
        path.unlink()

    async def go_on() -> None:
        async with open_lazy(store, containers=2, inline_checkpoint_bytes_max=0) as opened:
            for round_number in range(KEPT + 1):
                await opened.append("s0", b"<%d>" % round_number)
                await opened.append("s1", b"<%d>" % round_number)
                await opened.flush()
                await opened.checkpoint()

    run(go_on())
    assert check(store, deep=True) == []


def test_metadata_that_are_nowhere_are_harmful_and_named(store: Path) -> None:
    shutil.rmtree(store / "catalog" / "0")
    name = beginning(store).name
    beginning(store).unlink()
    findings = check(store)
    assert kinds(findings) == [("harmful", "log")]
    assert name in findings[0].detail
    assert command("verify", store).code == ExitCode.CORRUPTION


def test_commands_read_the_store(store: Path) -> None:
    before = tree(store)
    assert len(command("objects", store, "--json").out.splitlines()) >= 8
    assert b"snapshot checkpoint" in command("log", store, "--operations").out
    for args in (["scrub"], ["gc", "--dry-run"], ["log"]):
        said = command(args[0], store, *args[1:])
        assert said.code == ExitCode.DONE, said
    assert set(tree(store)) - set(before) == {"scrub-state.json"}


def test_what_is_replayed_is_what_the_store_has(store: Path) -> None:
    with StoppedStore(str(store)) as stopped:
        replayed = {
            name: metadata.segments[segment_id].length
            for metadata in run(stopped.all_metadata())
            for name, segment_id in metadata.names.items()
        }

    async def lengths() -> dict[str, int]:
        async with open_lazy(store) as opened:
            return {name: len(await read_all(opened, name)) for name in replayed}

    assert len(replayed) == 8
    assert run(lengths()) == replayed


def test_findings_in_json(store: Path) -> None:
    beginning(store).unlink()
    said = command("verify", store, "--json").json()
    assert [finding["kind"] for finding in said["findings"]] == ["metadata-snapshot"]
    assert not said["harmful"]
