"""`segmentstore scrub`, and the scrub of an open store: real stores, real files, planted faults."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from recovery.repair_run import RepairReport
from recovery.scrub_state import (
    FILE_NAME,
    FINDINGS_MAX,
    ScrubPass,
    ScrubPosition,
    parse_state,
    render_state,
)
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.scrub_repair import harmful_left
from segmentstore.contracts.findings import harmful
from segmentstore.service import SegmentStore
from tests.cli.shell import segmentstore
from tests.store.harness import open_lazy, run, until
from tier2.file_object_storage import FileObjectStorage
from tier2.object_storage import StorageRefusedError

SEGMENTS = ("a", "b", "c")


@pytest.fixture(params=["none", "zstd"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    location = tmp_path / "store"

    async def fill() -> None:
        async with open_lazy(location, containers=2, compression=request.param) as store:
            for name in SEGMENTS:
                await store.create_segment(name)
                for _ in range(3):
                    await store.append(name, b"0123456789" * 100)
                    await store.flush()

    run(fill())
    return location


def objects(store: Path) -> list[Path]:
    """Files of the objects that hold segments' bytes, in their order in the store."""
    return sorted(path for path in (store / "tier2").rglob("flush-*") if path.is_file())


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def scrub(store: Path, *options: object) -> tuple[int, dict[str, Any]]:
    shown = segmentstore("scrub", store, "--json", *options)
    return shown.code, shown.json()["pass"]


def test_a_good_store(store: Path) -> None:
    code, done = scrub(store)
    assert (code, done["harmful"], done["findings"]) == (ExitCode.DONE, 0, [])
    assert done["objects"] == len(objects(store)) > 1
    assert done["bytes_read"] == sum(path.stat().st_size for path in objects(store))
    shown = segmentstore("scrub", store)
    assert shown.code == ExitCode.DONE
    assert b"harmful" in shown.out


def test_a_flipped_byte_ends_with_3_and_is_named(store: Path) -> None:
    bad = objects(store)[1]
    flip(bad, -1)
    code, done = scrub(store, "--rate", 1000)
    assert (code, done["harmful"]) == (ExitCode.CORRUPTION, 1)
    assert bad.name in done["findings"][0]["place"]
    assert "extent" in done["findings"][0]["place"]
    shown = segmentstore("scrub", store)
    assert shown.code == ExitCode.CORRUPTION
    assert bad.name.encode() in shown.out
    assert segmentstore("verify", store).code == ExitCode.DONE
    flip(bad, -1)
    assert scrub(store)[0] == ExitCode.DONE


def test_an_object_that_is_refused_is_named_and_the_others_are_checked(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = objects(store)[1]

    class Archive(FileObjectStorage):
        async def get_range(self, name: str, offset: int, length: int) -> bytes:
            if name.endswith(refused.name):
                raise StorageRefusedError(name, "the object is archived", "InvalidObjectState")
            return await super().get_range(name, offset, length)

    monkeypatch.setattr(
        "tier2.locations.open_object_storage",
        lambda url, runtime: Archive(url.removeprefix("file://"), runtime),
    )
    # A repair, too, leaves it as unknown as it was.
    code, _ = scrub(store, "--repair", "--apply")
    assert code == ExitCode.UNAVAILABLE
    code, done = scrub(store)
    assert (code, done["objects"]) == (ExitCode.UNAVAILABLE, len(objects(store)))
    ((severity, kind, place, _),) = [each.values() for each in done["findings"]]
    assert (severity, kind) == ("unknown", "unreadable")
    assert refused.name in place


def test_an_unfinished_pass_is_continued_unless_asked_otherwise(store: Path) -> None:
    whole = scrub(store)[1]
    path = store / FILE_NAME
    store_id = json.loads(path.read_text())["store"]
    state = parse_state(path.read_text(), store_id)
    names = [str(path.relative_to(store / "tier2")) for path in objects(store)]
    state.current.finished_at_ms = None
    state.current.objects = 1
    state.current.position = ScrubPosition(0, min(name for name in names if "/00000000/" in name))
    unfinished = render_state(state, store_id)
    path.write_text(unfinished)
    assert scrub(store)[1]["objects"] == whole["objects"]
    path.write_text(unfinished)
    before = state.current.bytes_read
    assert scrub(store)[1]["bytes_read"] < before + whole["bytes_read"]
    path.write_text(unfinished)
    assert scrub(store, "--restart")[1]["bytes_read"] == whole["bytes_read"]


def test_a_state_that_is_not_understood_is_said_and_can_be_begun_anew(store: Path) -> None:
    (store / FILE_NAME).write_text("nonsense")
    shown = segmentstore("scrub", store)
    assert shown.code != ExitCode.DONE
    assert "--restart begins anew" in shown.err
    assert scrub(store, "--restart")[0] == ExitCode.DONE


def test_a_store_that_is_open_is_left_alone(store: Path) -> None:
    async def case() -> int:
        async with open_lazy(store):
            return await asyncio.to_thread(lambda: segmentstore("scrub", store).code)

    assert run(case()) == ExitCode.IN_USE


def test_no_store_is_created_by_inspecting(tmp_path: Path) -> None:
    assert segmentstore("scrub", tmp_path / "nothing").code != ExitCode.DONE
    assert not (tmp_path / "nothing").exists()


def scrub_health(store: SegmentStore) -> list[str]:
    return [said for said in store.stats()["health"] if said.startswith("scrub: ")]


def test_an_open_store_finds_it_in_the_background(store: Path) -> None:
    bad = objects(store)[0]
    flip(bad, 130)

    async def case() -> None:
        async with open_lazy(store, scrub_bytes_per_s=1 << 30) as opened:
            await until(lambda: bool(scrub_health(opened)))
            assert bad.name in scrub_health(opened)[0]
            assert opened.stats()["scrub"]["harmful"] == 1  # type: ignore[index]
        async with open_lazy(store) as opened:
            assert opened.stats()["scrub"] is None

    run(case())
    assert json.loads((store / FILE_NAME).read_text())["current"]["harmful"] == 1


def test_a_repair_leaves_what_it_was_not_asked_to_repair() -> None:
    """Findings of other kinds, and those behind the bound of what a scrub keeps."""
    blocks = [harmful("block", f"object o block at {number} x", "bad") for number in range(3)]
    found = ScrubPass(started_at_ms=0)
    found.add(blocks)
    whole, part = RepairReport(dry_run=False), RepairReport(dry_run=True)
    assert [harmful_left(found, report) for report in (whole, part, None)] == [0, 3, 3]
    found.add([harmful("catalog", "container 0", "bad")])
    assert harmful_left(found, whole) == 1
    found.add([*blocks * FINDINGS_MAX])
    assert harmful_left(found, whole) == 3 * FINDINGS_MAX + 4 - (FINDINGS_MAX - 1)
