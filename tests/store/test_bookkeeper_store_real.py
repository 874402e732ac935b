"""A whole store on a real cluster through the real gateway: the way of every day, and a second
owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import segmentstore
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore import SegmentStore
from segmentstore.contracts.errors import AppendOutcomeUnknownError, ConfigError, NotPrimaryError
from tests.cli import shell
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.store.bookkeeper_world import name_in
from tests.store.harness import LAZY, read_all, run, until


@pytest.fixture(scope="module")
def cluster(shared_bookkeeper: BookKeeperCluster) -> Iterator[BookKeeperCluster]:
    shared_bookkeeper.start()
    with kept_gateway():
        yield shared_bookkeeper


def open_store(folder: Path, url: str, **options: object) -> segmentstore.opening.OpeningStore:
    return segmentstore.open(str(folder), **{**LAZY, "tier1": url, **options})


def test_append_flush_truncate_and_reopen(cluster: BookKeeperCluster, tmp_path: Path) -> None:
    async def main() -> None:
        url = cluster.url("/every-day") + "?ledger_bytes=4KiB"
        data = b""
        for life in range(3):
            async with open_store(tmp_path / "s", url) as store:
                if not life:
                    await store.create_segment("a")
                assert await read_all(store, "a") == data
                pieces = [b"%d.%d " % (life, number) for number in range(200)]
                await asyncio.gather(*[store.append("a", piece) for piece in pieces])
                data += b"".join(pieces)
                if life == 1:
                    await store.flush()
                    await store.checkpoint()
                assert await read_all(store, "a") == data
                # A Java process may be silent for some seconds on a busy machine.
                await until(lambda: store.stats()["health"] == [])

    run(main())


def test_owners_in_other_folders_read_the_metadata_from_tier2(
    cluster: BookKeeperCluster, tmp_path: Path
) -> None:
    """Of checkpoints by reference; the catalog in the first folder is an old one at last."""

    async def main() -> None:
        url = cluster.url("/snapshots") + "?ledger_bytes=4KiB"
        options = {
            "tier2": (tmp_path / "objects").as_uri(),
            "inline_checkpoint_bytes_max": 0,
            "containers": 2,
        }
        expected: dict[str, bytes] = {}
        for number, folder in enumerate(("a", "a", "b", "a")):
            async with open_store(tmp_path / folder, url, **options) as store:
                assert {name: await read_all(store, name) for name in expected} == expected
                stats = store.stats()["containers"].values()
                downloaded = [each["snapshots"]["downloaded"] for each in stats]
                assert downloaded == [number >= 2] * 2
                name = f"s{number}"
                await store.create_segment(name)
                expected[name] = b""
                for each in expected:
                    await store.append(each, b"<%d>" % number)
                    expected[each] += b"<%d>" % number
                await store.flush()
                await store.checkpoint()
            assert (tmp_path / folder / "catalog").exists()

    run(main())


def test_a_second_owner_wins_and_the_containers_of_the_first_that_it_did_not_take_go_on(
    cluster: BookKeeperCluster, tmp_path: Path
) -> None:
    async def main() -> None:
        url = cluster.url("/two-owners")
        lost, kept = name_in(0, 2), name_in(1, 2)
        async with open_store(tmp_path / "old", url, containers=2) as old:
            for name in (lost, kept):
                await old.create_segment(name)
                await old.append(name, b"before ")
            async with open_store(tmp_path / "new", url, serve="0", take_over=True) as new:
                outcomes = await asyncio.gather(
                    *[old.append(lost, b"stale ") for _ in range(5)], return_exceptions=True
                )
                assert {type(each) for each in outcomes} <= {
                    NotPrimaryError,
                    AppendOutcomeUnknownError,
                }
                assert await old.append(kept, b"after") == len(b"before ")
                assert await read_all(new, lost) == b"before "
                assert await new.append(lost, b"new") == len(b"before ")
                with pytest.raises(NotPrimaryError):
                    await new.get_info(kept)

    run(main())


def test_acl_and_passwords_from_files_and_from_the_environment(
    cluster: BookKeeperCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (
        ("ledgers", "a ledger's password"),
        ("zookeeper", "store:zoo-secret"),
        ("wrong", "store:guess"),
    ):
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    bare = cluster.url("/guarded") + "?acl=creator"
    named = f"{bare}&password_file={tmp_path}/ledgers&zookeeper_auth_file={tmp_path}/zookeeper"

    async def use(folder: str, url: str, expected: bytes, piece: bytes) -> None:
        async with open_store(tmp_path / folder, url) as store:
            if not expected:
                await store.create_segment("a")
            assert await read_all(store, "a") == expected
            await store.append("a", piece)

    run(use("one", named, b"", b"1"))
    monkeypatch.setenv("SEGMENTSTORE_BOOKKEEPER_PASSWORD", "a ledger's password")
    monkeypatch.setenv("SEGMENTSTORE_ZOOKEEPER_AUTH", "store:zoo-secret")
    run(use("two", bare, b"1", b"2"))
    monkeypatch.delenv("SEGMENTSTORE_ZOOKEEPER_AUTH")
    for folder, url in (("three", bare), ("four", f"{bare}&zookeeper_auth_file={tmp_path}/wrong")):
        with pytest.raises(ConfigError) as caught:
            run(use(folder, url, b"12", b"3"))
        assert caught.value.setting == "tier1"
        assert "guess" not in str(caught.value)
    assert not (tmp_path / "four" / "store.toml").exists()


def test_ledgers_of_another_password_are_refused_by_where_the_password_comes_from(
    cluster: BookKeeperCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = "SEGMENTSTORE_BOOKKEEPER_PASSWORD"
    for name, text in (("right", "open-sesame"), ("wrong", "open-barley")):
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    bare = cluster.url("/locked")
    right, wrong = (f"{bare}?password_file={tmp_path}/{name}" for name in ("right", "wrong"))

    async def use(folder: str, url: str, expected: bytes, piece: bytes) -> None:
        async with open_store(tmp_path / folder, url) as store:
            if not expected:
                await store.create_segment("a")
            assert await read_all(store, "a") == expected
            await store.append("a", piece)

    run(use("one", right, b"", b"1"))
    for number, (url, source) in enumerate(
        [(wrong, f"password_file, {tmp_path}/wrong"), (bare, variable)]
    ):
        for given in ("", "open-barley"):
            monkeypatch.setenv(variable, given)
            with pytest.raises(ConfigError) as caught:
                run(use(f"refused-{number}", url, b"1", b"2"))
            assert caught.value.setting == "tier1"
            assert "UnauthorizedAccess" in str(caught.value)
            assert source in str(caught.value)
            assert "sesame" not in str(caught.value)
            assert "barley" not in str(caught.value)
    run(use("one", right, b"1", b"2"))
    monkeypatch.setenv(variable, "open-sesame")
    run(use("two", bare, b"12", b"3"))


def test_zookeeper_killed_and_restarted_under_load_costs_no_append(
    cluster: BookKeeperCluster, tmp_path: Path
) -> None:
    async def main() -> None:
        async with open_store(
            tmp_path / "s", cluster.url("/outage") + "?ledger_bytes=4KiB"
        ) as store:
            await store.create_segment("a")
            stop = False
            offsets: list[int] = []

            async def append() -> None:
                while not stop:
                    offsets.append(await store.append("a", b"x" * 50))

            appending = asyncio.ensure_future(append())
            await until_appended(offsets, 20)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, cluster.kill_zookeeper)
            await loop.run_in_executor(None, cluster.start_zookeeper)
            await until_appended(offsets, len(offsets) + 100)
            stop = True
            await appending
            assert offsets == [50 * number for number in range(len(offsets))]
            assert len(await read_all(store, "a")) == 50 * len(offsets)
            assert containers(store) == ["running"]

    run(main())


def test_the_reading_commands_take_nothing_from_an_owner_that_works(
    cluster: BookKeeperCluster, tmp_path: Path
) -> None:
    url = cluster.url("/looked-at")

    def look(*arguments: object, says: str = "read-only view as of now") -> bytes:
        done = shell.segmentstore(*arguments)
        assert done.code == 0, done.err
        assert says in done.err
        return done.out

    through = partial(look, says="going through it")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with open_store(tmp_path / "owner", url) as owner:
            await owner.create_segment("a")
            await owner.append("a", b"flushed " * 100)
            await owner.flush()
            await owner.append("a", b"in the log")
            expected = await read_all(owner, "a")
            # The last bytes are asked to bookies within a moment after the append.
            while (
                seen := await loop.run_in_executor(None, look, "cat", tmp_path / "elsewhere", "a")
            ) != expected:
                assert expected.startswith(seen)
            assert expected == await loop.run_in_executor(
                None, through, "cat", tmp_path / "owner", "a"
            )
            for read, folder in ((through, "owner"), (look, "elsewhere")):
                for command in (("ls",), ("info",), ("info", "a"), ("attrs", "a")):
                    await loop.run_in_executor(
                        None, read, command[0], tmp_path / folder, *command[1:]
                    )
            for follower in ("cat", "tail"):
                followed = await loop.run_in_executor(
                    None, shell.segmentstore, follower, "-f", tmp_path / "elsewhere", "a"
                )
                assert (followed.code, "`segmentstore serve` does" in followed.err) == (5, True)
            assert not (tmp_path / "elsewhere").exists()
            await owner.append("a", b", and it is the owner still")
            assert containers(owner) == ["running"]
        seen = await loop.run_in_executor(None, look, "cat", tmp_path / "owner", "a")
        assert seen == expected + b", and it is the owner still"

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEGMENTSTORE_TIER1", url)
        run(main())


async def until_appended(offsets: list[int], count: int) -> None:
    while len(offsets) < count:  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.01)


def containers(store: SegmentStore) -> list[str]:
    numbers = store.stats()["containers"]
    assert isinstance(numbers, dict)
    return [str(each["state"]) for each in numbers.values()]
