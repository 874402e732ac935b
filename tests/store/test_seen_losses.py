"""Loss that a read has seen is in health and in the metrics, also after reopening, until it is
over. On a real S3 server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recovery.harness.services.s3_servers import S3Proxy, credentials
from recovery.harness.services.shared import shared_server
from recovery.loss_file import FILE_NAME
from segmentstore import DataCorruptionError, SegmentStore
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import WorldDisk, open_lazy, read_all, read_store_id, run, until
from tests.support.folders import files_below
from tier2.object_names import marker_name, parse_object_name

BUCKET = "seen"
DATA = bytes(range(200))


class Server:
    """The objects of one store on S3, as a person with another client changes them."""

    def __init__(self, prefix: str) -> None:
        server = shared_server(S3Proxy)
        server.make_bucket(BUCKET)
        self.url = server.location(BUCKET, prefix)
        self._client: Any = server.client()
        self._prefix = prefix + "/"

    def names(self) -> list[str]:
        found = self._client.list_objects_v2(Bucket=BUCKET, Prefix=self._prefix).get("Contents", [])
        return [entry["Key"].removeprefix(self._prefix) for entry in found]

    def objects(self) -> dict[str, bytes]:
        return {
            name: self.get(name) for name in self.names() if parse_object_name(name) is not None
        }

    def get(self, name: str) -> bytes:
        body: bytes = self._client.get_object(Bucket=BUCKET, Key=self._prefix + name)["Body"].read()
        return body

    def put(self, name: str, data: bytes) -> None:
        self._client.put_object(Bucket=BUCKET, Key=self._prefix + name, Body=data)

    def delete(self, name: str) -> None:
        self._client.delete_object(Bucket=BUCKET, Key=self._prefix + name)


class Folder:
    """The same of a store in its own folder."""

    def __init__(self, location: Path) -> None:
        self._root = location / "tier2"

    def objects(self) -> dict[str, bytes]:
        names = [path.relative_to(self._root).as_posix() for path in files_below(self._root)]
        return {
            name: (self._root / name).read_bytes()
            for name in names
            if parse_object_name(name) is not None
        }

    def put(self, name: str, data: bytes) -> None:
        (self._root / name).parent.mkdir(parents=True, exist_ok=True)
        (self._root / name).write_bytes(data)

    def delete(self, name: str) -> None:
        (self._root / name).unlink()


async def fill(location: Path, *names: str, **options: Any) -> None:
    async with open_lazy(location, **options) as store:
        for name in names or ("a",):
            await store.create_segment(name)
            await store.append(name, DATA)
        await store.flush()
        await store.checkpoint()


async def find_lost(store: SegmentStore, name: str = "a", offset: int = 0) -> None:
    with pytest.raises(DataCorruptionError):
        await read_all(store, name, offset)


def told(store: SegmentStore) -> list[str]:
    return [finding for finding in store.stats()["health"] if "lost or damaged" in finding]


def lost_objects(store: SegmentStore) -> int:
    (line,) = [
        line
        for line in store.metrics_text().decode().splitlines()
        if line.startswith("segmentstore_lost_objects ")
    ]
    assert float(line.split()[1]) == store.stats()["losses"]["objects"]
    return store.stats()["losses"]["objects"]


def test_on_s3_a_lost_object_is_reported_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in credentials().items():
        monkeypatch.setenv(variable, value)
    server, location = Server(tmp_path.name), tmp_path / "s"
    run(fill(location, tier2=server.url))
    ((name, whole),) = server.objects().items()
    marker = marker_name(read_store_id(location))

    async def lose() -> None:
        async with open_lazy(location) as store:
            assert (told(store), lost_objects(store)) == ([], 0)
            server.delete(name)
            server.delete(marker)
            await find_lost(store)
            (finding,) = told(store)
            assert all(part in finding for part in (name, "segment 'a' offsets 0 to", "it is gone"))
            assert lost_objects(store) == 1
            # The loss makes the owner check whether more is missing.
            await until(lambda: marker in server.names())

    async def reopen(*, back: bool) -> None:
        async with open_lazy(location) as store:
            (finding,) = told(store)
            assert name in finding
            assert lost_objects(store) == 1
            if back:
                server.put(name, whole)
                assert await read_all(store, "a") == DATA
                assert (told(store), lost_objects(store)) == ([], 0)

    async def well() -> None:
        async with open_lazy(location) as store:
            assert store.stats()["health"] == []

    run(lose())
    run(reopen(back=False))
    run(reopen(back=True))
    run(well())


@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
def test_each_kind_of_loss_is_known_again(tmp_path: Path, damage: str) -> None:
    location = tmp_path / "s"
    run(fill(location))
    place = Folder(location)
    ((name, whole),) = place.objects().items()
    if damage == "gone":
        place.delete(name)
    else:
        place.put(name, whole[:-1] if damage == "short" else whole[:-1] + bytes([whole[-1] ^ 1]))

    async def main() -> None:
        async with open_lazy(location) as store:
            assert told(store) == []
            await find_lost(store)
            assert name in told(store)[0]
        async with open_lazy(location) as store:
            assert name in told(store)[0]

    run(main())


def test_it_is_found_whole_again_without_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.loss_keeper.FIRST_RECHECK_S", 0.0)
    monkeypatch.setattr("recovery.loss_keeper.RECHECK_S", 0.0)
    monkeypatch.setattr("recovery.loss_keeper.SAVE_AFTER_S", 0.0)
    location = tmp_path / "s"
    run(fill(location))
    place = Folder(location)
    ((name, whole),) = place.objects().items()
    place.delete(name)

    async def main() -> None:
        async with open_lazy(location) as store:
            await find_lost(store)
            assert told(store)
            place.put(name, whole)
            await until(lambda: not told(store))
        async with open_lazy(location) as store:
            assert told(store) == []

    run(main())


@pytest.mark.parametrize("way", ["truncate", "delete", "merge"])
def test_what_is_no_longer_needed_is_forgotten(tmp_path: Path, way: str) -> None:
    location = tmp_path / "s"
    run(fill(location, "a", "b", deletion_lag_s=1000.0))
    place = Folder(location)
    for name in place.objects():
        place.delete(name)

    async def main() -> None:
        async with open_lazy(location, deletion_lag_s=1000.0) as store:
            await find_lost(store, "a")
            await find_lost(store, "b")
            before = store.stats()["losses"]["places"]
            assert before >= 2
            if way == "truncate":
                await store.truncate("a", len(DATA))
            elif way == "delete":
                await store.delete("a")
            else:
                await store.merge("b", "a")
                await store.flush()
            after = store.stats()["losses"]["places"]
            assert after == before if way == "merge" else after < before
            assert "segment 'a'" not in "".join(told(store))

    run(main())


def test_a_tier_that_is_away_is_no_loss(tmp_path: Path) -> None:
    location, disk = tmp_path / "s", WorldDisk()
    run(fill(location))

    async def main() -> None:
        async with open_lazy(location, runtime=Runtime(disk=disk)) as store:
            disk.tier2_away()
            with pytest.raises(TierUnavailableError):
                await read_all(store, "a")
            assert (told(store), store.stats()["losses"]["seen"]) == ([], 0)
            disk.heal()

    run(main())


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2}', "\xff"])
def test_a_file_that_is_not_understood_is_begun_anew(tmp_path: Path, text: str) -> None:
    location = tmp_path / "s"
    run(fill(location))
    (location / FILE_NAME).write_text(text, encoding="utf-8")
    ((name, _),) = (place := Folder(location)).objects().items()
    place.delete(name)

    async def main() -> None:
        for known in (False, True):
            async with open_lazy(location, runtime=Runtime()) as store:
                assert bool(told(store)) == known
                await find_lost(store)

    run(main())
