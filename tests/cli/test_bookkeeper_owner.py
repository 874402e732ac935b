"""Reading commands on a store on BookKeeper (in memory): the owner in the folder is asked. Without
one, or if it does not serve what is wanted, a view is read.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from segmentstore import SegmentStore, read_only_view
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.contracts.runtime import Runtime
from segmentstore.local_endpoint import open_local_endpoint
from tests.cli.shell import Result, segmentstore
from tests.store.bookkeeper_world import BookKeeperWorld, name_in
from tests.store.harness import UNFLUSHED, run

NAMES = name_in(0, 2), name_in(1, 2)
THROUGH = "is open in another process: going through it"
VIEW = "read-only view as of now"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> BookKeeperWorld:
    """Views of the command line are of it, too."""
    world = BookKeeperWorld()
    open_view = partial(read_only_view.open_view, clients=world.bookkeeper)
    monkeypatch.setattr(read_only_view, "open_view", open_view)
    return world


async def opened(world: BookKeeperWorld, folder: Path, **options: object) -> SegmentStore:
    """A store that listens in its folder."""
    store = await world.open(folder, **{**UNFLUSHED, "containers": 2, **options})
    await open_local_endpoint(store, store._parts, Runtime(), None)
    return store


async def fill(world: BookKeeperWorld, folder: Path) -> None:
    async with await opened(world, folder) as store:
        for name in NAMES:
            await store.create_segment(name)
            await store.append(name, b"one\ntwo\n")


async def asked(*arguments: object) -> Result:
    return await asyncio.to_thread(segmentstore, *arguments)


def test_the_owner_in_the_folder_is_asked(tmp_path: Path, world: BookKeeperWorld) -> None:
    async def main() -> None:
        folder = tmp_path / "s"
        async with await opened(world, folder) as store:
            await store.create_segment("x")
            await store.append("x", b"one\ntwo\n")
            for command in (
                ("ls",),
                ("info",),
                ("info", "x"),
                ("cat", "x"),
                ("tail", "x"),
                ("attrs", "x"),
                ("stats",),
                ("top", "--count", 1),
                ("log",),
                ("log", "--operations"),
                ("objects",),
                ("gc", "--dry-run"),
            ):
                done = await asked(command[0], folder, *command[1:])
                assert (done.code, done.err.count(THROUGH)) == (ExitCode.DONE, 1), done.err
                assert VIEW not in done.err
                if command[0] in {"cat", "tail"}:
                    assert done.out == b"one\ntwo\n"
            await store.seal("x")
            for follower in ("cat", "tail"):
                done = await asked(follower, "-f", folder, "x")
                assert (done.code, done.out) == (ExitCode.DONE, b"one\ntwo\n")

    run(main())


def test_without_an_owner_a_view_is_read_and_nothing_can_be_followed(
    tmp_path: Path, world: BookKeeperWorld
) -> None:
    async def main() -> None:
        folder = tmp_path / "s"
        await fill(world, folder)
        done = await asked("cat", folder, NAMES[0])
        assert (done.code, done.out) == (ExitCode.DONE, b"one\ntwo\n")
        assert (THROUGH in done.err, VIEW in done.err) == (False, True)
        for command in (("cat", "-f", NAMES[0]), ("tail", "-f", NAMES[0]), ("top",)):
            refused = await asked(command[0], folder, *command[1:])
            assert refused.code == ExitCode.UNAVAILABLE
            assert "`segmentstore serve` does" in refused.err

    run(main())


def test_of_what_the_owner_does_not_serve_a_view_is_read(
    tmp_path: Path, world: BookKeeperWorld
) -> None:
    async def main() -> None:
        folder = tmp_path / "s"
        await fill(world, folder)
        async with await opened(world, folder, serve="0"):
            for name, is_viewed in zip(NAMES, (False, True), strict=True):
                done = await asked("cat", folder, name)
                assert (done.code, done.out) == (ExitCode.DONE, b"one\ntwo\n")
                assert (VIEW in done.err) == is_viewed
            listed = await asked("ls", folder, "--json")
            assert [each["name"] for each in listed.json_lines()] == sorted(NAMES)
            assert VIEW in listed.err
            logged = await asked("log", folder, "--json")
            assert {each["container"] for each in logged.json_lines()} == {0}
            assert "frames of 1 containers that this process does not serve" in logged.err
            refused = await asked("cat", "-f", folder, NAMES[1])
            assert refused.code == ExitCode.IN_USE
            assert "ask the process that serves it" in refused.err

    run(main())
