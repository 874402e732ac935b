"""A whole store on BookKeeper (in memory): its identity, the processes that may join it, what a
lost root or log is.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from durablelog.bookkeeper.memory_nodes import MemoryNodes
from durablelog.bookkeeper.store_node import decode_identity, encode_identity
from durablelog.durable_data_log_factory import StoreIdentity
from segmentstore.contracts.errors import (
    ConfigError,
    DataCorruptionError,
    StoreInUseError,
    TierUnavailableError,
)
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store
from segmentstore.store_file import parse_store_file
from tests.store.bookkeeper_world import ROOT, URL, BookKeeperWorld, name_in
from tests.store.harness import read_all, run


def identity_of(world: BookKeeperWorld) -> StoreIdentity:
    content = world.tree.content(ROOT)
    assert content is not None
    return decode_identity(ROOT, content.data)


def settings_of(folder: Path) -> dict[str, object]:
    file = parse_store_file((folder / "store.toml").read_text(encoding="utf-8"))
    return {"store_id": file.store_id, **file.settings}


def test_what_was_acknowledged_is_there_after_reopening(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        data = b""
        for life in range(4):
            store = await world.open(tmp_path / "s", containers=2)
            if not life:
                await store.create_segment("a")
            assert await read_all(store, "a") == data
            for number in range(60):
                await store.append("a", b"%d.%d " % (life, number))
                data += b"%d.%d " % (life, number)
            if life == 2:
                await store.flush()
                await store.checkpoint()
            assert store.stats()["health"] == []
            await store.close()
        assert world.all_closed()

    run(main())


def fixed_in(identity: StoreIdentity) -> dict[str, object]:
    """What the folder of a store that shares with no other says."""
    fields = identity._asdict()
    assert not fields.pop("shared_tier2")
    return {**fields, "tier1": URL}


def test_the_first_opener_makes_the_root_node_and_the_folder_follows_it(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        await (await world.open(tmp_path / "s", containers=3)).close()
        identity = identity_of(world)
        assert identity == StoreIdentity(identity.store_id, 3, (tmp_path / "s" / "tier2").as_uri())
        assert settings_of(tmp_path / "s") == fixed_in(identity)
        assert sorted(world.tree.names_under(f"{ROOT}/containers")) == ["0", "1", "2"]

    run(main())


def test_another_folder_joins_and_takes_what_was_fixed_from_the_node(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        first = await world.open(tmp_path / "one", containers=3)
        await first.create_segment("a")
        await first.append("a", b"hello")
        await first.close()
        second = await world.open(tmp_path / "two")
        assert second.config.containers == 3
        assert second.config.tier2 == (tmp_path / "one" / "tier2").as_uri()
        assert await read_all(second, "a") == b"hello"
        await second.append("a", b" world")
        await second.flush()
        await second.close()
        assert settings_of(tmp_path / "two") == settings_of(tmp_path / "one")
        # Either folder is as good as the other, and an empty tier2 says nothing.
        third = await world.open(tmp_path / "one", tier2="", environment={"SEGMENTSTORE_TIER2": ""})
        assert await read_all(third, "a") == b"hello world"
        await third.close()
        assert len({settings_of(tmp_path / name)["store_id"] for name in ("one", "two")}) == 1

    run(main())


@pytest.mark.parametrize(
    ("options", "setting"),
    [({"containers": 2}, "containers"), ({"tier2": "memory://elsewhere"}, "tier2")],
)
def test_options_that_contradict_the_node_are_refused_and_leave_no_store(
    tmp_path: Path, options: dict[str, Any], setting: str
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        await (await world.open(tmp_path / "one", containers=3)).close()
        before = world.tree.content(ROOT)
        for folder in ("two", "one"):
            with pytest.raises(ConfigError) as caught:
                await world.open(tmp_path / folder, **options)
            assert caught.value.setting == setting
        environment = {f"SEGMENTSTORE_{setting.upper()}": str(options[setting])}
        with pytest.raises(ConfigError):
            await world.open(tmp_path / "two", environment=environment)
        assert not (tmp_path / "two" / "store.toml").exists()
        assert world.tree.content(ROOT) == before
        assert world.all_closed()
        await (await world.open(tmp_path / "two")).close()

    run(main())


def test_a_folder_of_another_store_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = BookKeeperWorld(), BookKeeperWorld()
        await (await one.open(tmp_path / "one")).close()
        await (await two.open(tmp_path / "two")).close()
        with pytest.raises(ConfigError) as caught:
            await two.open(tmp_path / "one")
        assert caught.value.setting == "store.toml"
        assert identity_of(one).store_id in caught.value.reason
        assert identity_of(two).store_id in caught.value.reason

    run(main())


@pytest.mark.parametrize("setting", ["containers", "tier2"])
def test_a_store_toml_that_says_otherwise_than_the_node_is_refused(
    tmp_path: Path, setting: str
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        await (await world.open(tmp_path / "s", containers=3)).close()
        path = tmp_path / "s" / "store.toml"
        text = path.read_text(encoding="utf-8")
        text = (
            text.replace("containers = 3", "containers = 4")
            if setting == "containers"
            else text.replace("/tier2", "/x")
        )
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            await world.open(tmp_path / "s")
        assert caught.value.setting == setting

    run(main())


def test_a_root_node_that_is_missing_is_not_created_again_by_a_folder_that_knew_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        await (await world.open(tmp_path / "s")).close()
        lost = BookKeeperWorld()
        with pytest.raises(DataCorruptionError) as caught:
            await lost.open(tmp_path / "s")
        assert ROOT in caught.value.where
        assert lost.tree.content(ROOT) is None

    run(main())


def test_a_root_node_of_something_else_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        for data in (
            b"hello",
            b"{}",
            b'{"version": 2, "store_id": "", "containers": 1, "tier2": "x"}',
            b"[1]",
        ):
            world = BookKeeperWorld()
            world.tree.put(ROOT, data)
            with pytest.raises(DataCorruptionError):
                await world.open(tmp_path / "s")
            assert not (tmp_path / "s" / "store.toml").exists()
            content = world.tree.content(ROOT)
            assert content is not None
            assert content.data == data

    run(main())


def test_an_empty_root_node_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        world.tree.put(ROOT, b"")
        await (await world.open(tmp_path / "s")).close()
        assert identity_of(world).store_id == settings_of(tmp_path / "s")["store_id"]

    run(main())


@pytest.mark.parametrize("happens", [True, False])
def test_a_lost_reply_to_the_making_of_the_root_node_is_recognised(
    tmp_path: Path, happens: bool
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        world.tree.fail("create", happens=happens)
        await (await world.open(tmp_path / "s")).close()
        content = world.tree.content(ROOT)
        assert content is not None
        assert content.version == 0

    run(main())


def test_of_several_that_make_the_store_at_once_one_does_and_the_others_join(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        folders = [tmp_path / str(number) for number in range(3)]
        stores = await asyncio.gather(
            *[
                world.open(folder, containers=3, serve=str(number), tier2="memory://shared-by-all")
                for number, folder in enumerate(folders)
            ]
        )
        assert len({store.stats()["store_id"] for store in stores}) == 1
        for number, store in enumerate(stores):
            name = name_in(number, 3)
            await store.create_segment(name)
            await store.append(name, b"x")
            assert [info.name async for info in store.list_segments()] == [name]
        for store in stores:
            await store.close()
        assert len({settings_of(folder)["store_id"] for folder in folders}) == 1

    run(main())


def test_a_store_with_a_tier2_that_cannot_be_one_is_not_created(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        (tmp_path / "file").write_text("no folder", encoding="utf-8")
        bad = (tmp_path / "file" / "tier2").as_uri()
        with pytest.raises((ConfigError, TierUnavailableError)):
            await world.open(tmp_path / "s", tier2=bad)
        assert world.tree.content(ROOT) is None
        assert not (tmp_path / "s" / "store.toml").exists()
        assert world.all_closed()
        await (await world.open(tmp_path / "s")).close()

    run(main())


def test_a_log_that_is_missing_while_tier2_has_a_copy_is_refused_to_a_new_folder_too(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        store = await world.open(tmp_path / "one")
        await store.create_segment("a")
        await store.append("a", b"x" * 500)
        await store.flush()
        await store.checkpoint()
        await store.close()
        path = f"{ROOT}/containers/0"
        content = world.tree.content(path)
        assert content is not None
        world.tree.remove(path, content.version)
        for folder in ("one", "two"):
            with pytest.raises(DataCorruptionError) as caught:
                await world.open(tmp_path / folder)
            assert "the log is lost" in caught.value.detail

    run(main())


def test_a_folder_is_open_in_one_process(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        store = await world.open(tmp_path / "s")
        with pytest.raises(StoreInUseError):
            await world.open(tmp_path / "s")
        await store.create_segment("a")
        await store.close()

    run(main())


def test_services_that_do_not_answer_are_unavailable_and_everything_is_released(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        world.tree.outage = True
        with pytest.raises(TierUnavailableError) as caught:
            await world.open(tmp_path / "s")
        assert caught.value.tier == "tier1"
        assert not (tmp_path / "s" / "store.toml").exists()
        assert world.all_closed()
        world.tree.outage = False
        store = await world.open(tmp_path / "s")
        world.tree.outage = True
        health = store.stats()["health"]
        assert isinstance(health, list)
        assert any(finding.startswith("tier1: ") for finding in health)
        world.tree.outage = False
        await store.close()

    run(main())


def test_no_rights_in_zookeeper_are_the_operators_move(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        world.tree.refuse("read")
        with pytest.raises(ConfigError) as caught:
            await world.open(tmp_path / "s")
        assert caught.value.setting == "tier1"

    run(main())


@pytest.mark.parametrize(
    "tier1",
    [
        "bookkeeper://zoo",
        "bookkeeper://user:pass@zoo/x",
        "bookkeeper:",
        "ledgers",
        "bookkeeper://zoo/x?a=b",
    ],
)
def test_a_tier1_that_means_nothing_is_refused_before_anything_is_created(
    tmp_path: Path, tier1: str
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        with pytest.raises(ConfigError) as caught:
            await world.open(tmp_path / "s", tier1=tier1)
        assert caught.value.setting == "tier1"
        assert not (tmp_path / "s").exists()
        assert not world.clients

    run(main())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("?zookeeper_auth_file={missing}", "zookeeper_auth_file"),
        ("?zookeeper_auth_file={empty}", "zookeeper_auth_file"),
        ("?zookeeper_auth_file={half}", "user:password"),
        ("?acl=creator", "wants credentials"),
    ],
)
def test_secrets_that_are_not_there_are_named_and_never_shown(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "empty").write_text("", encoding="utf-8")
    (tmp_path / "half").write_text("hushhush\n", encoding="utf-8")
    paths = {name: tmp_path / name for name in ("missing", "empty", "half")}
    tier1 = "bookkeeper://127.0.0.1:1/x" + text.format(**paths)

    async def main() -> None:
        from durablelog.bookkeeper.bookkeeper_clients import open_nodes
        from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation

        with pytest.raises(ConfigError) as caught:
            await open_nodes(BookKeeperLocation.parse(tier1), {}, Runtime())
        assert said in caught.value.reason
        assert "hushhush" not in str(caught.value)

    run(main())


def test_a_wrong_zookeeper_credential_in_the_environment_is_not_shown(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError) as caught:
            await open_store(
                str(tmp_path / "s"),
                {"tier1": "bookkeeper://127.0.0.1:1/x?gateway=127.0.0.1:1"},
                {"SEGMENTSTORE_ZOOKEEPER_AUTH": "hushhush"},
                Runtime(),
            )
        assert "hushhush" not in str(caught.value)

    run(main())


def test_the_node_is_json_that_people_can_read() -> None:
    identity = StoreIdentity("0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10", 4, "s3://bucket/prefix")
    data = encode_identity(identity)
    fields = {"version": 1, **identity._asdict()}
    assert json.loads(encode_identity(identity._replace(shared_tier2=True))) == {
        **fields,
        "shared_tier2": True,
    }
    del fields["shared_tier2"]
    assert json.loads(data) == fields
    assert decode_identity("/x", data) == identity
    assert decode_identity("/x", data[:-1] + b', "more": 1}') == identity


def test_a_store_in_a_folder_loads_neither_kazoo_nor_py4j(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, segmentstore\n"
        "async def main():\n"
        "    async with segmentstore.open(sys.argv[1]) as store:\n"
        "        await store.create_segment('a')\n"
        "asyncio.run(main())\n"
        "print(sorted({'kazoo', 'py4j', 'durablelog.bookkeeper.bookkeeper_log'} & "
        "set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == "[]"


def test_a_session_that_ends_between_the_node_and_the_folder_is_joined_by_the_next(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        nodes = MemoryNodes(world.tree)
        identity = StoreIdentity(
            "0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10", 2, (tmp_path / "t").as_uri()
        )
        await nodes.create(ROOT, encode_identity(identity))
        store = await world.open(tmp_path / "s")
        assert store.config.containers == 2
        assert settings_of(tmp_path / "s") == fixed_in(identity)
        await store.close()

    run(main())
