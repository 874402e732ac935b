"""Opening: what is made, what is refused, which setting wins."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import segmentstore
from segmentstore import (
    ConfigError,
    DataCorruptionError,
    InvalidArgumentError,
    NotAStoreError,
    StoreInUseError,
    TierUnavailableError,
)
from segmentstore.config import StoreConfig
from segmentstore.contracts.disk import OsDisk, OsLock
from segmentstore.contracts.runtime import Runtime
from segmentstore.service import SegmentStore
from segmentstore.store_folder import (
    keep_store_file,
    new_store_id,
    read_store_file,
    unmake_store_file,
    write_store_file,
)
from tests.store.harness import WorldDisk, open_tiny, read_all, run
from tier2.object_names import metadata_manifest_name
from tier2.unique_ids import store_tag

ROOT = Path(__file__).resolve().parent.parent.parent


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


async def make(location: Path, **options: Any) -> None:
    async with segmentstore.open(location, **options):
        pass


class DiskWithAMaker(OsDisk):
    """As soon as a folder is found to have no `store.toml`, another process creates one there."""

    def __init__(self, maker: Callable[[], object]) -> None:
        self.makers = [maker]

    def exists(self, path: str) -> bool:
        found = super().exists(path)
        if not found and os.path.basename(path) == "store.toml" and self.makers:
            self.makers.pop()()
        return found


class DiskWhereItIsTakenBack(OsDisk):
    """A process that finds `store.toml` finds it deleted then."""

    def exists(self, path: str) -> bool:
        found = super().exists(path)
        if found and os.path.basename(path) == "store.toml":
            self.unlink(path)
        return found


class TidyDisk(OsDisk):
    """What is about to get its name is missing."""

    def link(self, source: str, target: str) -> None:
        self.unlink(source)
        super().link(source, target)


class TestCreating:
    @pytest.mark.parametrize("kind", ["absent", "empty", "deep", "path object"])
    def test_what_is_not_there_is_created(self, tmp_path: Path, kind: str) -> None:
        async def main() -> None:
            location = tmp_path / ("a/b/c" if kind == "deep" else "s")
            if kind == "empty":
                location.mkdir()
            async with segmentstore.open(
                location if kind == "path object" else str(location)
            ) as store:
                await store.create_segment("x")
            document = tomllib.loads((location / "store.toml").read_text())
            assert document["version"] == 1
            assert (document["containers"], document["tier1"], document["tier2"]) == (1, "file", "")

        run(main())

    def test_awaited_or_entered(self, tmp_path: Path) -> None:
        async def main() -> None:
            opening = segmentstore.open(tmp_path / "s")
            assert not (tmp_path / "s").exists()
            store = await opening
            await store.create_segment("x")
            await store.close()
            await store.close()
            async with segmentstore.open(tmp_path / "s") as again:
                assert (await again.get_info("x")).length == 0

        run(main())

    def test_the_same_store_has_the_same_id(self, tmp_path: Path) -> None:
        async def main() -> None:
            ids = []
            for name in ("a", "a", "b"):
                async with segmentstore.open(tmp_path / name) as store:
                    ids.append(store.stats()["store_id"])
            assert ids[0] == ids[1] != ids[2]

        run(main())

    def test_a_creation_cut_short_is_continued(self, tmp_path: Path) -> None:
        async def main() -> None:
            (tmp_path / "s").mkdir()
            (tmp_path / "s" / "lock").touch()
            (tmp_path / "s" / "store.toml.1d.new").write_text("half a f")
            await make(tmp_path / "s")
            assert not [name for name in os.listdir(tmp_path / "s") if name.endswith(".new")]

        run(main())

    @pytest.mark.parametrize("there", [False, True], ids=["absent", "empty"])
    @pytest.mark.parametrize("trouble", ["refused tier2", "full disk"])
    def test_a_making_that_fails_leaves_nothing(
        self, tmp_path: Path, trouble: str, *, there: bool
    ) -> None:
        location = tmp_path / "a" / "b"
        if there:
            location.mkdir(parents=True)
        disk = WorldDisk()
        if trouble == "full disk":
            disk.trap = lambda call, path: (
                OSError("no") if call == "sync" and "store.toml" in path else None
            )
        with pytest.raises(TierUnavailableError):
            run(make(location, tier2="file:///proc/segmentstore", runtime=Runtime(disk=disk)))
        assert list(tmp_path.rglob("*")) == ([tmp_path / "a", location] if there else [])

    def test_a_lock_that_was_removed_meanwhile_is_none(self, tmp_path: Path) -> None:
        """Its holder gave the folder up between our opening of the file and our locking of it."""
        path = tmp_path / "lock"
        disk = OsDisk()
        take, holder = OsLock.take, disk.lock(str(path))

        def late(lock: OsLock, where: str) -> None:
            OsLock.take = take  # type: ignore[method-assign]
            path.unlink()
            holder.close()
            take(lock, where)

        OsLock.take = late  # type: ignore[assignment, method-assign]
        ours = disk.lock(str(path))
        assert ours.is_at(str(path))
        with pytest.raises(BlockingIOError):
            disk.lock(str(path))
        ours.close()

    def test_of_two_makers_the_first_one_s_file_stays(self, tmp_path: Path) -> None:
        """A process that was stopped with its locks given up for it may come second, and goes by
        what it finds.
        """
        ids = [new_store_id(Runtime()) for _ in range(2)]
        found = [
            write_store_file(str(tmp_path), each, StoreConfig(), Runtime(), each) for each in ids
        ]
        assert [file.store_id for file in found] == [ids[0], ids[0]]
        assert os.listdir(tmp_path) == ["store.toml"]

    def test_a_store_that_another_makes_between_two_checks_of_the_folder_is_one(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            loop, makers = asyncio.get_running_loop(), contextlib.AsyncExitStack()

            async def make_it() -> SegmentStore:
                return await makers.enter_async_context(segmentstore.open(tmp_path / "s"))

            disk = DiskWithAMaker(
                lambda: asyncio.run_coroutine_threadsafe(make_it(), loop).result()
            )
            async with makers:
                with pytest.raises(StoreInUseError):
                    await segmentstore.open(tmp_path / "s", runtime=Runtime(disk=disk))
                assert not disk.makers

        run(main())

    def test_a_store_file_taken_back_is_put_back_if_a_process_has_begun_to_use_it(
        self, tmp_path: Path
    ) -> None:
        """Its creator may have lost the lock without knowing."""
        arguments = (str(tmp_path), new_store_id(Runtime()), StoreConfig(), Runtime())
        made = write_store_file(*arguments, "tag")
        unmake_store_file(*arguments)
        assert read_store_file(str(tmp_path), Runtime()) is None
        assert os.listdir(tmp_path) == []
        write_store_file(*arguments, "tag")
        (tmp_path / "cache").mkdir()
        unmake_store_file(*arguments)
        assert read_store_file(str(tmp_path), Runtime()) == made
        (tmp_path / "store.toml").unlink()
        keep_store_file(*arguments)
        assert read_store_file(str(tmp_path), Runtime()) == made

    def test_a_store_that_is_withdrawn_between_two_checks_is_none(self, tmp_path: Path) -> None:
        arguments = (str(tmp_path), new_store_id(Runtime()), StoreConfig(), Runtime())
        write_store_file(*arguments, "tag")
        assert read_store_file(str(tmp_path), Runtime(disk=DiskWhereItIsTakenBack())) is None
        assert os.listdir(tmp_path) == []

    def test_a_maker_whose_file_another_one_tidied_up_learns_that_the_store_is_in_use(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(StoreInUseError):
            write_store_file(
                str(tmp_path),
                new_store_id(Runtime()),
                StoreConfig(),
                Runtime(disk=TidyDisk()),
                "tag",
            )

    @pytest.mark.parametrize("location", [None, 5, b"bytes"])
    def test_a_location_is_a_path(self, location: str) -> None:
        with pytest.raises(InvalidArgumentError):
            _ = segmentstore.open(location)


class TestNotAStore:
    def test_a_folder_with_something_else_is_left_as_it_was(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("three years")
        before = tree(tmp_path)
        with pytest.raises(NotAStoreError) as caught:
            run(make(tmp_path))
        assert str(caught.value.location) == str(tmp_path)
        assert "thesis.txt" in str(caught.value)
        assert tree(tmp_path) == before

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(NotAStoreError):
            run(make(tmp_path / "file"))

    def test_a_place_that_cannot_be_created(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises((TierUnavailableError, NotAStoreError)):
            run(make(tmp_path / "file" / "below"))

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "not toml [",
            "version = 2\n",
            'version = 1\nstore_id = "no"\n',
            'version = 1\nstore_id = "00000000-0000-4000-8000-000000000000"\n',
        ],
    )
    def test_a_damaged_store_file(self, tmp_path: Path, text: str) -> None:
        run(make(tmp_path / "s"))
        (tmp_path / "s" / "store.toml").write_text(text)
        before = tree(tmp_path / "s")
        with pytest.raises(ConfigError):
            run(make(tmp_path / "s"))
        assert tree(tmp_path / "s") == before

    def test_a_store_file_that_is_no_text(self, tmp_path: Path) -> None:
        run(make(tmp_path / "s"))
        (tmp_path / "s" / "store.toml").write_bytes(b"\xff\xfe")
        with pytest.raises(ConfigError):
            run(make(tmp_path / "s"))


class TestInUse:
    def test_a_second_opening_is_refused_until_the_first_is_closed(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with segmentstore.open(tmp_path / "s") as store:
                await store.create_segment("x")
                with pytest.raises(StoreInUseError) as caught:
                    await segmentstore.open(tmp_path / "s")
                assert str(caught.value.location) == str(tmp_path / "s")
                await store.append("x", b"undisturbed")
            async with segmentstore.open(tmp_path / "s") as store:
                assert await read_all(store, "x") == b"undisturbed"

        run(main())

    def test_another_process(self, tmp_path: Path) -> None:
        program = (
            "import asyncio, sys, segmentstore\n"
            "async def main():\n"
            "    try:\n"
            "        await segmentstore.open(sys.argv[1])\n"
            "    except segmentstore.StoreInUseError:\n"
            "        return 4\n"
            "    return 0\n"
            "sys.exit(asyncio.run(main()))\n"
        )

        def second() -> int:
            return subprocess.run(
                [sys.executable, "-c", program, str(tmp_path / "s")],
                cwd=ROOT,
                check=False,
                timeout=60,
            ).returncode

        async def main() -> None:
            async with segmentstore.open(tmp_path / "s"):
                assert second() == 4
            assert second() == 0

        run(main())

    def test_an_opening_that_failed_leaves_nothing_locked(self, tmp_path: Path) -> None:
        async def main() -> None:
            disk = WorldDisk()
            disk.trap = lambda call, path: OSError("no") if f"{os.sep}log{os.sep}" in path else None
            with pytest.raises(TierUnavailableError) as caught:
                await open_tiny(tmp_path / "s", runtime=Runtime(disk=disk))
            assert caught.value.tier == "tier1"
            disk.heal()
            async with open_tiny(tmp_path / "s", runtime=Runtime(disk=disk)) as store:
                await store.create_segment("x")

        run(main())


class TestSettings:
    def test_option_over_environment_over_file_over_default(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def flush_bytes(**options: Any) -> int:
            async with segmentstore.open(tmp_path / "s", **options) as store:
                return store.config.writer.flush_bytes

        default = run(flush_bytes())
        assert default == 64 * 1024 * 1024
        with (tmp_path / "s" / "store.toml").open("a") as file:
            file.write("flush_bytes = 111\n")
        assert run(flush_bytes()) == 111
        monkeypatch.setenv("SEGMENTSTORE_FLUSH_BYTES", "222")
        assert run(flush_bytes()) == 222
        assert run(flush_bytes(flush_bytes=333)) == 333
        monkeypatch.delenv("SEGMENTSTORE_FLUSH_BYTES")
        assert run(flush_bytes()) == 111

    def test_fixed_settings_stay(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run(make(tmp_path / "s", containers=2))
        run(make(tmp_path / "s"))
        run(make(tmp_path / "s", containers=2, tier1="file"))
        for name, value in (
            ("containers", 3),
            ("tier1", "memory"),
            ("tier2", "memory://elsewhere"),
        ):
            with pytest.raises(ConfigError) as caught:
                run(make(tmp_path / "s", **{name: value}))
            assert caught.value.setting == name
        monkeypatch.setenv("SEGMENTSTORE_CONTAINERS", "4")
        with pytest.raises(ConfigError):
            run(make(tmp_path / "s"))
        run(make(tmp_path / "t"))
        assert tomllib.loads((tmp_path / "t" / "store.toml").read_text())["containers"] == 4

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("no_such_setting", 1),
            ("containers", 0),
            ("containers", "2"),
            ("containers", True),
            ("containers", 1.0),
            ("tier1", "floppy"),
            ("tier1", 1),
            ("tier2", "nowhere://host/x"),
            ("tier2", "just a word"),
            ("flush_bytes", 0),
            ("flush_bytes", -5),
            ("flush_age_s", -1.0),
            ("flush_age_s", "soon"),
            ("frame_bytes_max", 63),
            ("frame_bytes_max", 1024 * 1024),
            ("log_file_bytes", 8191),
            ("fetched_bytes_max", 1),
            ("append_bytes_max", 2**40),
        ],
    )
    def test_settings_that_are_none(self, tmp_path: Path, name: str, value: object) -> None:
        with pytest.raises(ConfigError) as caught:
            run(make(tmp_path / "s", **{name: value}))
        assert caught.value.setting == name
        assert name in str(caught.value)
        run(make(tmp_path / "s"))

    def test_a_malformed_environment_names_the_variable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SEGMENTSTORE_FLUSH_AGE_S", "soon")
        with pytest.raises(ConfigError) as caught:
            run(make(tmp_path / "s"))
        assert caught.value.setting == "SEGMENTSTORE_FLUSH_AGE_S"

    def test_whole_numbers_are_seconds_too(self, tmp_path: Path) -> None:
        run(make(tmp_path / "s", flush_age_s=5))

    def test_a_setting_of_an_existing_store_that_contradicts_is_refused_and_nothing_is_changed(
        self, tmp_path: Path
    ) -> None:
        run(make(tmp_path / "s"))
        before = tree(tmp_path / "s")
        with pytest.raises(ConfigError):
            run(make(tmp_path / "s", log_file_bytes=8192))
        assert tree(tmp_path / "s") == before


class TestTiers:
    def test_memory_everywhere_leaves_no_data(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s", tier1="memory", tier2="memory://") as store:
                await store.create_segment("x")
                await store.append("x", b"gone soon" * 50)
                await store.flush()
                await store.checkpoint()
                assert await read_all(store, "x") == b"gone soon" * 50
            assert not (tmp_path / "s" / "log").exists()
            assert not (tmp_path / "s" / "tier2").exists()
            async with open_tiny(tmp_path / "s") as store:
                assert [info async for info in store.list_segments()] == []

        run(main())

    def test_objects_elsewhere(self, tmp_path: Path) -> None:
        async def main() -> None:
            url = (tmp_path / "else where").as_uri()
            async with open_tiny(tmp_path / "s", tier2=url) as store:
                await store.create_segment("x")
                await store.append("x", b"data")
                await store.flush()
            assert not (tmp_path / "s" / "tier2").exists()
            assert any(path.is_file() for path in (tmp_path / "else where").rglob("*"))
            async with open_tiny(tmp_path / "s") as store:
                assert await read_all(store, "x") == b"data"

        run(main())

    @pytest.mark.parametrize("copied", [False, True])
    def test_a_log_in_files_is_not_hidden_by_a_line_that_says_memory(
        self, tmp_path: Path, copied: bool
    ) -> None:
        """Opened with an empty log, the store would in time delete its objects as orphans."""
        location = tmp_path / "s"
        run(make(location))
        if not copied:
            shutil.rmtree(location / "tier2" / "checkpoints")
        path = location / "store.toml"
        text = path.read_text()
        path.write_text(text.replace('tier1 = "file"', 'tier1 = "memory"'))
        before = {name: data for name, data in tree(location).items() if name != "lock"}
        with pytest.raises(ConfigError, match=r"log is in memory, and .*/s/log has the log"):
            run(make(location))
        assert {name: data for name, data in tree(location).items() if name != "lock"} == before
        path.write_text(text)
        run(make(location))

    def test_a_store_in_memory_that_left_a_copy_of_its_metadata_is_not_opened_empty(
        self, tmp_path: Path
    ) -> None:
        """Such a line may be written by hand into the store.toml of a store on BookKeeper, too."""
        location = tmp_path / "s"
        run(make(location, tier1="memory"))
        assert (location / "tier2" / "checkpoints").exists()
        with pytest.raises(DataCorruptionError, match=r"the log is lost.* docs/restore\.md"):
            run(make(location))

    @pytest.mark.parametrize("elsewhere", [True, False])
    @pytest.mark.parametrize("lost", ["log", "log/1"])
    def test_a_store_that_lost_a_log_is_refused_and_nothing_in_tier2_is_touched(
        self, tmp_path: Path, lost: str, elsewhere: bool
    ) -> None:
        """Opened with an empty log, it would in time delete what `restore` needs."""
        location = tmp_path / "s"
        tier2 = tmp_path / "elsewhere" if elsewhere else location / "tier2"
        options: dict[str, Any] = {"tier2": tier2.as_uri()} if elsewhere else {}
        run(make(location, containers=2, **options))
        shutil.rmtree(location / lost)
        # The other container begins well, and writes a copy of its metadata.
        aside = ("probe", "stores", "checkpoints/00000000")
        before = {name: data for name, data in tree(tier2).items() if not name.startswith(aside)}
        for _ in range(2):
            with pytest.raises(DataCorruptionError, match="the log is lost"):
                run(make(location))
        assert {
            name: data for name, data in tree(tier2).items() if not name.startswith(aside)
        } == before

    @pytest.mark.parametrize("whose", ["own", "other"])
    def test_a_metadata_snapshot_of_the_store_alone_shows_that_a_log_was_lost(
        self, tmp_path: Path, whose: str
    ) -> None:
        location = tmp_path / "s"
        run(make(location))
        store_id = tomllib.loads((location / "store.toml").read_text())["store_id"]
        shutil.rmtree(location / "log")
        for name in ("tier2/checkpoints", "tier2/data", "tier2/blocks"):
            shutil.rmtree(location / name, ignore_errors=True)
        tag = store_tag(store_id if whose == "own" else "00000000-0000-0000-0000-000000000001")
        name = metadata_manifest_name(0, 1, 5, tag + bytes(8))
        path = location / "tier2" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"a manifest")
        if whose == "own":
            with pytest.raises(DataCorruptionError, match=f"the log is lost, and tier2 has {name}"):
                run(make(location))
        else:
            run(make(location))
        assert path.read_bytes() == b"a manifest"

    def test_a_making_that_was_cut_off_before_the_last_log_goes_on(self, tmp_path: Path) -> None:
        location = tmp_path / "s"
        run(make(location, containers=2))
        shutil.rmtree(location / "log" / "1")
        shutil.rmtree(location / "tier2" / "checkpoints" / "00000001")
        run(make(location))

    def test_a_moved_store_finds_its_own_objects(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.append("x", b"data" * 100)
                await store.flush()
                await store.checkpoint()
            (tmp_path / "s").rename(tmp_path / "t")
            async with open_tiny(tmp_path / "t") as store:
                assert await read_all(store, "x") == b"data" * 100

        run(main())
