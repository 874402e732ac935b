"""The URL of a store on BookKeeper may change: what names the store stays, how it is kept and
reached is set by the opening process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from durablelog.bookkeeper.bookkeeper_location import check_may_follow
from durablelog.bookkeeper.ledger_store import Replication
from segmentstore.contracts.errors import ConfigError, DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store
from segmentstore.service import SegmentStore
from segmentstore.store_file import FILE_NAME, parse_store_file
from tests.store.bookkeeper_world import ROOT, URL, BookKeeperWorld
from tests.store.harness import LAZY, read_all, run

CHANGED = (
    f"bookkeeper://other:2281,third:2181{ROOT}"
    "?ensemble=2&write_quorum=2&ack_quorum=2&ledger_bytes=8KiB"
)


def kept(folder: Path) -> tuple[str, Any]:
    text = (folder / FILE_NAME).read_text(encoding="utf-8")
    return text, parse_store_file(text).settings["tier1"]


def test_a_store_opened_by_another_url_keeps_it_and_nothing_else_changes(tmp_path: Path) -> None:
    async def main() -> None:
        world, folder = BookKeeperWorld(), tmp_path / "s"
        async with await world.open(folder) as store:
            await store.create_segment("a")
            await store.append("a", b"first ")
        with (folder / FILE_NAME).open("a", encoding="utf-8") as file:
            file.write("# by hand\nflush_age_s = 7.5\n")
        before, url = kept(folder)
        assert url == URL
        async with await world.open(folder, tier1=CHANGED) as store:
            await store.append("a", b"second")
            assert await read_all(store, "a") == b"first second"
            assert world.cluster.ledgers[max(world.cluster.ledgers)].replication == Replication(
                2, 2, 2
            )
        after, url = kept(folder)
        assert url == CHANGED
        assert after == before.replace(URL, CHANGED)
        assert sorted(path.name for path in folder.glob(f"{FILE_NAME}*")) == [FILE_NAME]
        # From here on it is what the store is opened by.
        again = SegmentStore(
            await open_store(str(folder), {**LAZY, "take_over": True}, {}, Runtime(), world)
        )
        assert again.config.tier1 == CHANGED
        assert await read_all(again, "a") == b"first second"
        await again.close()

    run(main())


def test_another_store_behind_the_url_is_refused_and_the_old_one_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        world, other = BookKeeperWorld(), BookKeeperWorld()
        await (await world.open(tmp_path / "s")).close()
        await (await other.open(tmp_path / "t")).close()
        before = kept(tmp_path / "s")
        with pytest.raises(ConfigError, match="the folder is of store"):
            await other.open(tmp_path / "s", tier1=CHANGED)
        with pytest.raises(DataCorruptionError, match="nothing was changed"):
            await BookKeeperWorld().open(tmp_path / "s", tier1=CHANGED)
        assert kept(tmp_path / "s") == before
        await (await world.open(tmp_path / "s")).close()

    run(main())


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (URL.replace(ROOT, ROOT + "x"), "the path cannot change"),
        (URL + "&ledgers=/elsewhere", "the key 'ledgers' cannot change"),
        ("file", "but the store was made with"),
    ],
)
def test_what_names_the_store_cannot_change(tmp_path: Path, wanted: str, says: str) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        await (await world.open(tmp_path / "s")).close()
        before = kept(tmp_path / "s")
        with pytest.raises(ConfigError, match=says) as failure:
            await world.open(tmp_path / "s", tier1=wanted)
        assert failure.value.setting == "tier1"
        assert kept(tmp_path / "s") == before

    run(main())


def test_a_file_whose_line_cannot_be_found_is_left_to_a_person(tmp_path: Path) -> None:
    async def main() -> None:
        world, folder = BookKeeperWorld(), tmp_path / "s"
        await (await world.open(folder)).close()
        text, _ = kept(folder)
        (folder / FILE_NAME).write_text(text.replace("tier1 =", '"tier1" ='), encoding="utf-8")
        with pytest.raises(ConfigError, match="write there by hand tier1 = "):
            await world.open(folder, tier1=CHANGED)
        assert kept(folder)[1] == URL
        await (await world.open(folder)).close()

    run(main())


def test_all_but_the_place_may_change() -> None:
    check_may_follow(
        "bookkeeper://a:2181/x/y",
        "bookkeeper://b,c/x/y?ledgers=/ledgers&degraded=2/2/2&password_file=/p&acl=creator",
    )
