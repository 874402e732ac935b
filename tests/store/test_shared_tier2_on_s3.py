"""A second store on a prefix, on a real S3 server: refused, or meant; and a marker that was
deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recovery.harness.services.s3_servers import S3Proxy, credentials
from recovery.harness.services.shared import shared_server
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.contracts.errors import ConfigError
from tests.cli.shell import segmentstore
from tests.store.harness import open_lazy, read_all, read_store_id, run
from tests.support.suites import slow
from tier2.object_names import is_of_store, marker_name
from tier2.unique_ids import store_tag

BUCKET = "shared"


class Place:
    """A prefix of its own, as its users and as a person with the server's own client see it."""

    def __init__(self, prefix: str) -> None:
        server = shared_server(S3Proxy)
        server.make_bucket(BUCKET)
        self.url = server.location(BUCKET, prefix)
        self._client: Any = server.client()
        self._prefix = prefix + "/"

    def names(self) -> set[str]:
        found = self._client.list_objects_v2(Bucket=BUCKET, Prefix=self._prefix).get("Contents", [])
        return {entry["Key"].removeprefix(self._prefix) for entry in found}

    def delete(self, *names: str) -> None:
        for name in names:
            self._client.delete_object(Bucket=BUCKET, Key=self._prefix + name)

    def of(self, store_id: str) -> set[str]:
        return {name for name in self.names() if is_of_store(name, store_tag(store_id))}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for variable, value in credentials().items():
        monkeypatch.setenv(variable, value)
    return Place(tmp_path.name)


async def fill(location: Path, data: bytes, **options: Any) -> None:
    async with open_lazy(location, **options) as store:
        await store.create_segment("a")
        await store.append("a", data)
        await store.flush()


@slow(2)
def test_a_second_store_is_refused_or_meant_and_both_can_be_distinguished(
    place: Place, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    run(fill(one, b"of the first " * 20, tier2=place.url))
    before = place.names()
    with pytest.raises(
        ConfigError,
        match=f"store {read_store_id(one)} keeps its objects there.*shared_tier2 = true",
    ):
        run(fill(two, b"", tier2=place.url))
    assert not two.exists()
    assert place.names() == before

    run(fill(two, b"of the second " * 20, tier2=place.url, shared_tier2=True))
    assert "shared_tier2 = true" in (two / "store.toml").read_text()
    ids = {location: read_store_id(location) for location in (one, two)}
    for mine, other in ((one, two), (two, one)):
        shown = segmentstore("gc", mine, "--dry-run", "--json").json()
        assert (shown["items"], shown["problems"]) == ([], [])
        (note,) = shown["notes"]
        assert ids[other] in note
        assert "other-store" in segmentstore("verify", mine).out.decode()

    refused = segmentstore("restore", place.url, tmp_path / "new")
    assert (refused.code, all(each in refused.err for each in ids.values())) == (
        ExitCode.USAGE,
        True,
    )
    for location, data in ((one, b"of the first " * 20), (two, b"of the second " * 20)):
        new = tmp_path / f"new-{location.name}"
        shown = segmentstore("restore", place.url, new, "--store-id", ids[location], "--json")
        assert (shown.code, shown.json()["others_objects"] > 0) == (ExitCode.DONE, True)
        assert segmentstore("cat", new, "a").out == data
    unknown = segmentstore(
        "restore", place.url, tmp_path / "no", "--store-id", "0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10"
    )
    assert unknown.code == ExitCode.REFUSED


def test_where_sharing_is_meant_each_store_is_swept(place: Place, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for location in (one, two):
        run(fill(location, b"bytes " * 30, tier2=place.url, shared_tier2=True))

    async def sweep() -> list[str]:
        async with open_lazy(one, orphan_sweep_interval_s=0.0) as store:
            report = await store.collect_garbage()
            assert report.problems == ()
            assert await read_all(store, "a") == b"bytes " * 30
            return store.stats()["health"]

    theirs = place.of(read_store_id(two))
    assert theirs
    assert run(sweep()) == []
    assert place.of(read_store_id(two)) == theirs


def test_a_store_that_is_not_known_there_is_not_opened_beside_another(
    place: Place, tmp_path: Path
) -> None:
    """A user deleted all that it had, and then another store was made there."""
    one, two = tmp_path / "one", tmp_path / "two"
    run(fill(one, b"bytes " * 30, tier2=place.url))
    place.delete(*place.names())
    run(fill(two, b"bytes " * 30, tier2=place.url))
    with pytest.raises(ConfigError, match="shared_tier2"):
        run(_nothing(one))
    run(_nothing(one, shared_tier2=True))
    assert marker_name(read_store_id(one)) in place.names()


async def _nothing(location: Path, **options: Any) -> list[str]:
    async with open_lazy(location, **options) as store:
        return store.stats()["health"]


def test_a_marker_that_is_missing_is_put_back(place: Place, tmp_path: Path) -> None:
    location = tmp_path / "s"
    run(fill(location, b"bytes " * 30, tier2=place.url))
    marker = marker_name(read_store_id(location))
    assert run(_nothing(location)) == []
    place.delete(marker)
    (said,) = run(_nothing(location))
    assert "the marker of this store was missing" in said
    assert marker in place.names()
    assert run(_nothing(location)) == []

    async def live() -> list[str]:
        async with open_lazy(location, orphan_sweep_interval_s=0.0) as store:
            place.delete(marker)
            await store.collect_garbage()
            return store.stats()["health"]

    assert "the marker of this store was missing" in run(live())[0]
    assert marker in place.names()

    # Commands that open the store for a moment say it too: that opening shows its health nowhere.
    place.delete(marker)
    shown = segmentstore("verify", location)
    assert (shown.code, "marker-missing" in shown.out.decode()) == (ExitCode.DONE, True)
    (note,) = segmentstore("gc", location, "--json").json()["notes"]
    assert "the marker of this store was missing" in note
    assert "nothing found" in segmentstore("verify", location).out.decode()
