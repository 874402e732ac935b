"""What Tier 2 has lost is counted, named, and has an exit code of its own, on a real S3 server."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from recovery.harness.services.s3_servers import S3Proxy, credentials
from recovery.harness.services.shared import shared_server
from segmentstore.cli.exit_codes import ExitCode
from tests.cli.shell import segmentstore
from tests.store.harness import open_lazy, run
from tests.support.suites import slow
from tier2.object_names import parse_object_name

BUCKET = "losses"
A, B, C = b"a" * 150, b"b" * 130, b"c" * 120


class Place:
    """A bucket that a store has left: `a` and `b` share an object, `a` goes on in another one."""

    def __init__(self, root: Path) -> None:
        server = shared_server(S3Proxy)
        server.make_bucket(BUCKET)
        self.url = server.location(BUCKET, root.name)
        self.client: Any = server.client()
        self._prefix = root.name + "/"
        run(self._fill(root / "store"))
        shutil.rmtree(root / "store")

    async def _fill(self, location: Path) -> None:
        async with open_lazy(
            location, tier2=self.url, flush_bytes=800, object_bytes=800, consolidation=False
        ) as store:
            for name in ("a", "b"):
                await store.create_segment(name)
            await store.append("a", A)
            await store.append("b", B)
            await store.flush()
            self.shared = self.objects()[0]
            await store.append("a", C)
            await store.flush()
            self.second = next(name for name in self.objects() if name != self.shared)

    def objects(self) -> list[str]:
        found = self.client.list_objects_v2(Bucket=BUCKET, Prefix=self._prefix).get("Contents", [])
        names = [entry["Key"].removeprefix(self._prefix) for entry in found]
        return [name for name in names if parse_object_name(name) is not None]

    def delete(self, name: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=self._prefix + name)

    def cut(self, name: str, count: int) -> None:
        whole = self.client.get_object(Bucket=BUCKET, Key=self._prefix + name)["Body"].read()
        self.client.put_object(Bucket=BUCKET, Key=self._prefix + name, Body=whole[:-count])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for variable, value in credentials().items():
        monkeypatch.setenv(variable, value)
    return Place(tmp_path)


def losses_of(report: Any) -> list[tuple[str, int, int, str]]:
    return [
        (each["segment"], each["start_offset"], each["end_offset"], each["object_name"])
        for each in report["losses"]
    ]


def test_a_bucket_that_is_whole_restores_with_0(place: Place, tmp_path: Path) -> None:
    shown = segmentstore("restore", place.url, tmp_path / "new")
    assert (shown.code, b"0 bytes known to be missing" in shown.out) == (ExitCode.DONE, True)


def test_an_object_that_was_deleted(place: Place, tmp_path: Path) -> None:
    place.delete(place.shared)
    shown = segmentstore("restore", place.url, tmp_path / "new")
    assert shown.code == ExitCode.LOSS
    text = " ".join(shown.out.decode().split())
    assert "280 bytes known to be missing (280 bytes lost in Tier 2, 0 bytes with the log)" in text
    for name, length in (("a", len(A)), ("b", len(B))):
        assert f"lost: segment '{name}' of container 0, offsets 0 to {length}" in text
    assert place.shared in text
    dry = segmentstore("restore", place.url, tmp_path / "dry", "--dry-run", "--json")
    assert dry.code == ExitCode.LOSS
    report = dry.json()
    assert losses_of(report) == [("a", 0, len(A), place.shared), ("b", 0, len(B), place.shared)]
    assert (report["lost_bytes"], report["unflushed_bytes"], report["has_loss"]) == (280, 0, True)


def test_of_an_object_that_was_cut_the_whole_blocks_are_used(place: Place, tmp_path: Path) -> None:
    place.cut(place.shared, 1)
    shown = segmentstore("restore", place.url, tmp_path / "new", "--json")
    assert shown.code == ExitCode.LOSS
    report = shown.json()
    ((name, start, end, lost_in),) = losses_of(report)
    assert (start, lost_in) == (0, place.shared)
    kept = {"a": A + C, "b": B}
    assert end == len({"a": A, "b": B}[name]), "the last block is lost, and no other"
    kept[name] = kept[name][end:]
    for each, data in kept.items():
        assert segmentstore("cat", tmp_path / "new", each).out == data
    assert segmentstore("verify", tmp_path / "new", "--deep").code == ExitCode.DONE


@slow(2)
def test_a_cut_object_that_no_copy_of_the_metadata_names(place: Place, tmp_path: Path) -> None:
    for entry in place.client.list_objects_v2(
        Bucket=BUCKET, Prefix=f"{tmp_path.name}/checkpoints/"
    )["Contents"]:
        place.client.delete_object(Bucket=BUCKET, Key=entry["Key"])
    place.cut(place.second, 5)
    shown = segmentstore("restore", place.url, tmp_path / "new", "--json")
    assert shown.code == ExitCode.LOSS
    assert losses_of(shown.json()) == [("a", len(A), len(A) + len(C), place.second)]
    assert segmentstore("cat", tmp_path / "new", "a").out == A
