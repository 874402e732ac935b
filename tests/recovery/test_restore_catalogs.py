"""Restoring a store whose checkpoints are snapshots of real catalogs: from the newest, from the one
before, and from block headers, the same store comes back.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import segmentstore as command
from tests.recovery.planted import check, flip, kinds
from tests.recovery.test_restore import Place
from tests.store.harness import read_all, run
from tier2.metadata_manifest import decode_metadata_manifest

SEGMENTS = 6
SNAPSHOTS: dict[str, Any] = {"inline_checkpoint_bytes_max": 0}


class CatalogPlace(Place):
    def manifests(self) -> list[Path]:
        """Oldest first."""
        below = self.bucket / "metadata" / "00000000"
        return sorted(path for path in below.iterdir() if path.is_file())

    def bytes_of(self, where: Path) -> dict[str, tuple[int, bool, bytes]]:
        """Everything is flushed, so it is what a restore gives back."""

        async def read() -> dict[str, tuple[int, bool, bytes]]:
            async with self.open(where, **SNAPSHOTS) as store:
                return {
                    info.name: (info.length, info.sealed, await read_all(store, info.name))
                    async for info in store.list_segments()
                }

        return run(read())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CatalogPlace:
    """All is flushed, and the last operations are in block headers alone."""
    place = CatalogPlace(tmp_path_factory.mktemp("made"))

    async def live() -> None:
        async with place.open(containers=1, **SNAPSHOTS) as store:
            for number in range(SEGMENTS):
                await store.create_segment(f"s{number}")
            for round_number in range(4):
                for number in range(SEGMENTS):
                    await store.append(f"s{number}", b"<%d>" % round_number * 10)
                await store.flush()
                if round_number < 3:
                    await store.checkpoint()

    run(live())
    assert len(place.manifests()) >= 2
    return place


@pytest.fixture
def place(made: CatalogPlace, tmp_path: Path) -> CatalogPlace:
    shutil.copytree(made.bucket, tmp_path / "bucket")
    return CatalogPlace(tmp_path)


@pytest.mark.parametrize("lost", ["nothing", "manifest", "damaged", "file", "all"])
def test_every_state_gives_the_same_store(lost: str, place: CatalogPlace) -> None:
    place.forget_copies()
    manifests = place.manifests()
    used = manifests[-1]
    if lost == "manifest":
        manifests[-1].unlink()
        used = manifests[-2]
    elif lost == "damaged":
        flip(manifests[-1], 100)
        used = manifests[-2]
    elif lost == "file":
        files = files_of(place, manifests[-1]) - files_of(place, manifests[-2])
        (place.bucket / min(files)).unlink()
        used = manifests[-2]
    elif lost == "all":
        shutil.rmtree(place.bucket / "metadata")
    report = place.restore()
    (container,) = report.containers
    if lost == "all":
        assert container.checkpoint is None
    else:
        assert container.checkpoint is not None
        assert container.checkpoint.name == place.name(used)
    assert len(container.damaged) == (lost in {"damaged", "file"})
    assert place.bytes_of(place.new) == {
        f"s{number}": (120, False, b"".join(b"<%d>" % each * 10 for each in range(4)))
        for number in range(SEGMENTS)
    }


def files_of(place: CatalogPlace, manifest: Path) -> frozenset[str]:
    name = place.name(manifest)
    return decode_metadata_manifest(manifest.read_bytes(), name).objects


def test_the_new_store_has_a_catalog_of_its_own(place: CatalogPlace) -> None:
    place.forget_copies()
    old = {place.name(path) for path in (place.bucket / "metadata").rglob("*")}
    manifests = place.manifests()
    said = command("restore", place.url, place.new, "--json")
    assert said.code == 0, said
    assert said.json()["containers"][0]["checkpoint"]["name"] == place.name(manifests[-1])

    async def use() -> None:
        async with place.open(place.new, **SNAPSHOTS) as store:
            await store.append("s0", b"more")
            await store.flush()
            await store.checkpoint()

    run(use())
    (new,) = set(place.manifests()) - set(manifests)
    assert files_of(place, new).isdisjoint(old)
    assert not [kind for kind in kinds(check(place.new)) if kind[0] == "harmful"]
    assert place.bytes_of(place.new)["s0"][2].endswith(b"more")
