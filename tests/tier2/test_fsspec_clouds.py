"""Object storage through fsspec on servers that speak as Google's and Microsoft's do: the contract,
and a store on each.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any, ClassVar

import fsspec  # type: ignore[import-untyped]
import pytest

import segmentstore
from recovery.harness.services.cloud_servers import Azurite, CloudServer, FakeGcs
from recovery.harness.services.shared import shared_server
from segmentstore.contracts.runtime import Runtime
from tests.contracts.object_storage_contract import PAGE_OBJECTS
from tests.store.harness import TINY, run
from tests.support.suites import slow
from tests.tier2.test_fsspec_object_storage import FsspecContract
from tier2.fsspec_object_storage import FsspecObjectStorage
from tier2.object_storage import ObjectStorage

pytestmark = slow(1)

SPACES = itertools.count()
KINDS: list[type[CloudServer]] = [FakeGcs, Azurite] if shutil.which("go") else [Azurite]


def new_space(server: CloudServer) -> str:
    """A bucket or container of its own."""
    name = f"space-{next(SPACES)}"
    if isinstance(server, FakeGcs):
        server.make_bucket(name)
    else:
        assert isinstance(server, Azurite)
        server.make_container(name)
    return name


class CloudContract(FsspecContract):
    # Their packages gather what is written in buffers of their own.
    parts_held_max = 4
    kind: ClassVar[type[CloudServer]]
    space: str

    @pytest.fixture(autouse=True)
    def _server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        server = shared_server(self.kind)
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        _configure(server, monkeypatch)
        self.space = new_space(server)

    def make(self, folder: Path) -> ObjectStorage:
        url = shared_server(self.kind).location(self.space, "some/prefix")
        return FsspecObjectStorage(url, Runtime(), page_objects=PAGE_OBJECTS)

    def raw(self, storage: ObjectStorage) -> dict[str, bytes]:
        scheme = shared_server(self.kind).location(self.space).partition(":")[0]
        fs: Any = fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False)
        below = f"{self.space}/some/prefix/"
        return {
            path.removeprefix(below): fs.cat_file(path)
            for path in fs.find(below)
            if not path.startswith(f"{below}~")
        }


def _configure(server: CloudServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec reads its own variables when it is imported."""
    if isinstance(server, FakeGcs):
        monkeypatch.setitem(
            fsspec.config.conf, "gs", {"token": server.environment()["FSSPEC_GS_TOKEN"]}
        )


if FakeGcs in KINDS:

    class TestFsspecGcs(CloudContract):
        kind: ClassVar[type[CloudServer]] = FakeGcs


class TestFsspecAzure(CloudContract):
    kind: ClassVar[type[CloudServer]] = Azurite


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_keeps_its_objects_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[CloudServer]
) -> None:
    server = shared_server(kind)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    _configure(server, monkeypatch)
    url = server.location(new_space(server), "store")

    async def main() -> None:
        async with segmentstore.open(tmp_path / "s", tier2=url, **TINY) as store:
            await store.create_segment("x")
            await store.append("x", b"kept there")
            await store.flush()
            assert store.stats()["tier2"]["bytes_sent"] > 0
        async with segmentstore.open(tmp_path / "s", **TINY) as store:
            assert await store.read("x", 0, max_length=100) == b"kept there"
            assert store.stats()["health"] == []

    run(main())
