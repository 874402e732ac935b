"""The password of the ledgers, given by a file or by the environment: the wrong one is named, and
costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from durablelog.bookkeeper.bookkeeper_clients import BookKeeperClients, ledger_password
from durablelog.bookkeeper.bookkeeper_location import PASSWORD_VARIABLE, BookKeeperLocation
from durablelog.bookkeeper.log_metadata import LogMetadata, decode_record
from durablelog.bookkeeper.memory_nodes import MemoryNodes
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tests.store.bookkeeper_world import ROOT, URL, BookKeeperWorld, ClosedOnce, name_in
from tests.store.harness import read_all, run

RIGHT, WRONG = "open sesame", "open barley"


class GuardedWorld(BookKeeperWorld):
    """Its clients have the password that the settings give."""

    async def bookkeeper(
        self, location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
    ) -> BookKeeperClients:
        password = await ledger_password(location, environment, runtime)
        self.clients.append(
            BookKeeperClients(ClosedOnce(self.cluster, password=password), MemoryNodes(self.tree))
        )
        return self.clients[-1]

    def records(self) -> list[LogMetadata]:
        found = []
        for name in self.tree.names_under(f"{ROOT}/containers"):
            content = self.tree.content(f"{ROOT}/containers/{name}")
            assert content is not None
            # What every opening changes, whatever comes of it.
            found.append(
                replace(
                    decode_record(content.data, name), epoch=0, written_by="", change=0, owner=None
                )
            )
        return found

    def ledgers(self) -> dict[int, tuple[bool, list[bytes]]]:
        return {
            number: (ledger.closed, list(ledger.entries))
            for number, ledger in self.cluster.ledgers.items()
        }


@pytest.mark.parametrize("wrong", [WRONG, None])
@pytest.mark.parametrize("by", ["file", "variable"])
def test_a_wrong_password_names_where_it_comes_from_and_the_right_one_finds_everything(
    tmp_path: Path, by: str, wrong: str | None
) -> None:
    file = tmp_path / "password"

    def given(password: str | None) -> dict[str, Any]:
        if by == "variable":
            return {"environment": {PASSWORD_VARIABLE: password} if password is not None else {}}
        file.write_text(f"{password}\n", encoding="utf-8")
        # Without a file in the URL the variable counts, which is not set.
        return {"tier1": f"{URL}&password_file={file}" if password is not None else URL}

    async def main() -> None:
        world = GuardedWorld()
        names = name_in(0, 2), name_in(1, 2)
        async with await world.open(tmp_path / "one", containers=2, **given(RIGHT)) as store:
            for name in names:
                await store.create_segment(name)
                for number in range(100):
                    await store.append(name, b"%d " % number)
        records, ledgers = world.records(), world.ledgers()
        assert len(ledgers) > 2, "they rolled"
        with pytest.raises(ConfigError) as caught:
            await world.open(tmp_path / "two", **given(wrong))
        assert caught.value.setting == "tier1"
        assert "-102 UnauthorizedAccess" in caught.value.reason
        assert "password" in caught.value.reason
        assert (str(file) if by == "file" and wrong else PASSWORD_VARIABLE) in caught.value.reason
        assert RIGHT not in str(caught.value)
        assert WRONG not in str(caught.value)
        assert (world.records(), world.ledgers()) == (records, ledgers), (
            "nothing was fenced, made or deleted"
        )
        # A folder keeps the URL that it was first opened with.
        for folder in ("three" if by == "file" and not wrong else "two", "one"):
            async with await world.open(tmp_path / folder, **given(RIGHT)) as store:
                for name in names:
                    assert await read_all(store, name) == b"".join(
                        b"%d " % number for number in range(100)
                    )
                assert store.stats()["health"] == []
        assert world.all_closed()

    run(main())
