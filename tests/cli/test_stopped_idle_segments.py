"""Commands on a stopped store most of whose segments are in the catalog alone: each shows all."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from segmentstore import AttributeUpdate, SegmentInfo, SegmentStore, UpdateType
from segmentstore.cli.stopped_store import StoppedStore
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.runtime import Runtime
from segmentstore.read_only_view import open_view
from tests.cli.shell import segmentstore
from tests.store.harness import WorldDisk, attribute, open_lazy, read_all, run
from tests.store.test_catalog_export import tables_of
from tests.support.suites import slow
from tier2.catalog.catalog_snapshots import manifest_named

SEGMENTS = 40
FEW: dict[str, Any] = {"containers": 2, "active_segments_max": 12}
ENVIRONMENT = {"SEGMENTSTORE_ACTIVE_SEGMENTS_MAX": "4"}
"""Of what comes later: fewer."""


async def fill(store: SegmentStore) -> dict[str, SegmentInfo]:
    """Segments of all kinds, most of them idle; and operations behind the log's first checkpoint,
    on some of those.
    """
    for number in range(SEGMENTS):
        await store.create_segment(f"s{number:02}")
        await store.append(f"s{number:02}", b"%d;" % number * (number + 1))
        if number % 7 == 0:
            update = AttributeUpdate(attribute(number), UpdateType.REPLACE, number)
            await store.update_attributes(f"s{number:02}", [update])
    await store.flush()
    await store.checkpoint()
    await store.seal("s03")
    await store.truncate("s04", 3)
    await store.delete("s05")
    await store.append("s06", b"more")
    home = store._containers[0]
    names = (f"s{number:02}" for number in range(10, SEGMENTS))
    target, source = [name for name in names if store._home(name) is home][:2]
    await store.merge(target, source)
    await store.checkpoint()
    # What follows is in the log alone: more than a smaller bound allows to be in memory.
    processor: Any = home._processor
    processor.checkpoint_soon = lambda **_: None
    for name in [f"s{number}" for number in range(20, 40) if store._home(f"s{number}") is home][:8]:
        update = AttributeUpdate(attribute(1), UpdateType.REPLACE, 5)
        await store.update_attributes(name, [update])
    assert all(container.metadata.idle > 4 for container in store._containers)
    return {info.name: info async for info in store.list_segments()}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in ENVIRONMENT.items():
        monkeypatch.setenv(name, text)
    return tmp_path / "s"


def made(location: Path) -> dict[str, SegmentInfo]:
    """As a crash leaves the store: its log has all that is behind the first checkpoint."""

    async def main() -> dict[str, SegmentInfo]:
        live, disk = location.with_suffix(".live"), WorldDisk()
        async with open_lazy(live, runtime=Runtime(disk=disk), **FEW) as store:
            infos = await fill(store)
            disk.crash_copy(live, location)
            return infos

    return run(main())


def test_what_a_stopped_store_has_is_loaded_whole(place: Path) -> None:
    infos = made(place)
    with StoppedStore(str(place)) as stopped:
        containers = asyncio.run(stopped.all_metadata())
    assert [metadata.idle for metadata in containers] == [0, 0]
    for metadata in containers:
        assert_metadata_valid(metadata)
    lengths = {
        segment.name: segment.length
        for metadata in containers
        for segment in metadata.segments.values()
        if segment.merged_into is None
    }
    assert lengths == {info.name: info.length for info in infos.values()}


@slow(4)
def test_every_command_shows_all_segments(place: Path) -> None:
    infos = made(place)
    assert segmentstore("verify", place, "--deep").code == 0
    blocks = segmentstore("objects", place, "--json").json_lines()
    names = {block["segment"].partition(" ")[0] for block in blocks if block["segment"]}
    assert names >= {name for name, info in infos.items() if info.storage_length}
    assert segmentstore("objects", place, "s20", "--json").json_lines()
    assert segmentstore("log", place, "--operations").code == 0
    assert segmentstore("gc", place, "--dry-run").code == 0
    assert segmentstore("scrub", place).code == 0
    listed = segmentstore("ls", place, "--json").json_lines()
    assert [each["name"] for each in listed] == sorted(infos)
    assert [each["length"] for each in listed] == [infos[name].length for name in sorted(infos)]
    for name in ("s00", "s06", "s30"):
        shown = segmentstore("info", place, name, "--json").json()
        assert shown["length"] == infos[name].length
    assert segmentstore("attrs", place, "s14", "--json").json() == {str(attribute(14)): 14}
    assert segmentstore("info", place, "--json").json()["health"] == []
    assert segmentstore("gc", place).code == 0
    assert segmentstore("doctor", place).code == 0
    assert segmentstore("verify", place, "--deep").code == 0


def test_an_export_of_the_stopped_store_is_that_of_the_open_one(place: Path) -> None:
    made(place)
    shown = segmentstore("catalog", "export", place, "--json").json()
    assert shown["problems"] == []
    stopped = [each["manifest"] for each in shown["snapshots"]]

    async def main() -> None:
        async with open_lazy(place, **FEW) as store:
            assert all(container.metadata.idle for container in store._containers)
            live = await store.export_catalog()
            storage = store._parts.storage
            for name, each in zip(stopped, live, strict=True):
                assert await tables_of(storage, await manifest_named(storage, name)) == (
                    await tables_of(storage, await manifest_named(storage, each.manifest))
                )

    run(main())


@pytest.mark.parametrize("catalog", ["there", "lost"])
def test_a_view_shows_all_segments(place: Path, catalog: str) -> None:
    infos = made(place)
    if catalog == "lost":
        shutil.rmtree(place / "catalog")

    async def main() -> None:
        async with await open_view(str(place), ENVIRONMENT, Runtime()) as view:
            assert {info.name: info async for info in view.list_segments()} == infos
            for name, info in infos.items():
                assert await view.get_info(name) == info
                data = await read_all(view, name, info.start_offset)
                assert len(data) == info.length - info.start_offset

    run(main())
