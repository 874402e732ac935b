"""Two stores that keep their objects in one folder, by mistake: it may cost room, never data."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

import segmentstore
from segmentstore.contracts.errors import SegmentExistsError
from segmentstore.contracts.reports import GarbageReport
from segmentstore.service import SegmentStore
from tests.cli.shell import segmentstore as command
from tests.store.harness import TINY, open_tiny, read_all, read_store_id, run
from tier2.object_names import is_of_store, marker_name, object_name
from tier2.unique_ids import store_tag

APPENDS = 30


class Pair:
    """Two stores on one Tier 2; the second says that it is meant.

    `settings` are what it needs else to be opened.
    """

    def __init__(self, one: Path, two: Path, place: Path, **settings: Any) -> None:
        self.locations = (one, two)
        self.place = place
        self._settings: tuple[dict[str, Any], dict[str, Any]] = (
            {},
            {**settings, "shared_tier2": True},
        )

    async def open(self, number: int, **more: object) -> SegmentStore:
        return await open_tiny(self.locations[number], **{**self._settings[number], **more})

    def store_id(self, number: int) -> str:
        return read_store_id(self.locations[number])

    def objects(self, number: int) -> set[str]:
        """Names of the objects of one store's."""
        tag = store_tag(self.store_id(number))
        return {name for name in self.names() if is_of_store(name, tag)}

    def names(self) -> set[str]:
        found = (Path(folder, name) for folder, _, names in os.walk(self.place) for name in names)
        return {path.relative_to(self.place).as_posix() for path in found}


def named_by_url(tmp_path: Path) -> Pair:
    """One store's own folder, and another one that names it."""
    place = tmp_path / "one" / "tier2"
    return Pair(tmp_path / "one", tmp_path / "two", place, tier2=place.as_uri())


def linked(tmp_path: Path) -> Pair:
    """Both own folders are links to one volume."""
    place = tmp_path / "volume"
    place.mkdir()
    for name in ("one", "two"):
        # The folders become stores first: a creation needs an empty folder.
        run(_make(tmp_path / name))
        os.symlink(place, tmp_path / name / "tier2")
    return Pair(tmp_path / "one", tmp_path / "two", place)


async def _make(location: Path) -> None:
    async with segmentstore.open(str(location), **{**TINY, "flush_age_s": 1000.0}):
        pass
    if (location / "tier2").exists():
        os.rename(location / "tier2", location.parent / f"{location.name}-before")


PAIRS = [named_by_url, linked]


def data_of(number: int) -> bytes:
    return b"".join(b"%d/%05d " % (number, each) * 8 for each in range(APPENDS))


async def fill(store: SegmentStore, number: int) -> None:
    with contextlib.suppress(SegmentExistsError):
        await store.create_segment("a")
    for each in range(APPENDS):
        await store.append("a", b"%d/%05d " % (number, each) * 8)
    await store.flush()


@pytest.mark.parametrize("pair_of", PAIRS)
def test_each_store_sweeps_and_the_other_one_loses_nothing(tmp_path: Path, pair_of: Any) -> None:
    pair = pair_of(tmp_path)

    async def live(number: int) -> None:
        async with await pair.open(number) as store:
            await fill(store, number)

    async def sweep(number: int) -> None:
        # Of a later epoch than all that the other one has: to it each of those objects is of a dead
        # owner.
        for _ in range(3):
            async with await pair.open(number) as store:
                theirs = pair.objects(1 - number)
                assert theirs
                report = await store.collect_garbage()
                assert await read_all(store, "a") == data_of(number)
                assert pair.objects(1 - number) == theirs, report

    for number in (0, 1):
        run(live(number))
    for number in (0, 1, 0, 1):
        run(sweep(number))
    assert {marker_name(pair.store_id(number)) for number in (0, 1)} <= pair.names()


@pytest.mark.parametrize("pair_of", PAIRS)
def test_the_tag_alone_is_enough(tmp_path: Path, pair_of: Any) -> None:
    """A store that an older version runs has no marker: what it does not carry the tag of is left
    alone all the same.
    """
    pair = pair_of(tmp_path)

    async def live(number: int) -> None:
        async with await pair.open(number) as store:
            await fill(store, number)

    async def sweep() -> None:
        for _ in range(3):
            async with await pair.open(0) as store:
                os.unlink(pair.place / marker_name(pair.store_id(1)))
                report = await store.collect_garbage()
                assert any("of unknown owner" in problem for problem in report.problems)
                assert not any("nothing is searched" in problem for problem in report.problems)
            (pair.place / marker_name(pair.store_id(1))).write_bytes(b"back")

    async def read(number: int) -> None:
        async with await pair.open(number) as store:
            assert await read_all(store, "a") == data_of(number)

    for number in (0, 1):
        run(live(number))
    theirs = pair.objects(1)
    run(sweep())
    assert pair.objects(1) == theirs
    for number in (0, 1):
        run(read(number))


def test_orphans_go_that_carry_the_tag_and_others_are_named(tmp_path: Path) -> None:
    location, place = tmp_path / "s", tmp_path / "s" / "tier2"

    async def live() -> None:
        async with await open_tiny(location) as store:
            await fill(store, 0)

    async def sweep() -> GarbageReport:
        async with await open_tiny(location) as store:
            report = await store.collect_garbage()
            await store.collect_garbage()
            return report

    run(live())
    tag = store_tag(Pair(location, location, place).store_id(0))
    made = [path.relative_to(place).as_posix() for path in place.rglob("flush-*")]
    assert made
    assert all(is_of_store(name, tag) for name in made)
    own, unknown = (
        object_name(0, 1, "flush", unique_id) for unique_id in (tag + bytes(8), bytes(range(16)))
    )
    for name in (own, unknown):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"left over")
    shown = command("gc", location, "--dry-run")
    assert "1 objects (9 bytes" in shown.out.decode()
    report = run(sweep())
    assert not (place / own).exists()
    assert (place / unknown).exists()
    assert [
        problem for problem in report.problems if unknown in problem and "unknown owner" in problem
    ]
    shown = command("verify", location)
    assert shown.code == 0
    assert "unknown-owner" in shown.out.decode()


def test_health_says_that_a_place_is_shared(tmp_path: Path) -> None:
    pair = named_by_url(tmp_path)

    async def live(number: int) -> object:
        async with await pair.open(number) as store:
            await fill(store, number)
            await store.collect_garbage()
            return store.stats()["health"]

    assert run(live(0)) == []
    assert run(live(1)) == [], "it is meant"
    assert f"also has objects of store {pair.store_id(1)}" in str(run(live(0)))
