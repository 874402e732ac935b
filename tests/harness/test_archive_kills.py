"""Stores whose logs are archived on real S3 servers are killed; what is restored of them later is
what clients saw then. The checks of it are checked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import segmentstore
from recovery.harness.history import History, Observation, SeenSegment
from recovery.harness.kills.archive_audit import ArchiveSeen, audit_archive
from recovery.harness.kills.archive_kills import SETTINGS, kill_archiving, on_bookkeeper
from recovery.harness.kills.past_points import check_point, differences, draw_points
from recovery.harness.observer import observe
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.fault_messages import Head
from recovery.harness.services.fault_proxy import FaultProxy
from recovery.harness.services.fault_rules import Rule, Stall
from recovery.harness.services.s3_servers import S3Proxy, S3Server, VersityGateway, credentials
from recovery.harness.services.server import HOST
from recovery.harness.services.shared import shared_server
from segmentstore.contracts.byte_sizes import MIB
from tests.store.harness import until
from tests.support.suites import size, slow
from tier2.request_statistics import Operation

CYCLES = size("HARNESS_ARCHIVE_KILLS", 4, 8)
POINTS = size("HARNESS_ARCHIVE_POINTS", 1, 4)
SEED = "archive-kills"


@pytest.fixture(autouse=True)
def _with_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)


SERVERS = [S3Proxy, *([VersityGateway] if VersityGateway.available() else [])]


@pytest.fixture(params=SERVERS, ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest) -> S3Server:
    kind: type[S3Server] = request.param
    return shared_server(kind)


@slow(30)
@pytest.mark.timeout(600)
def test_what_kills_leave_of_a_log_in_files_is_restored(server: S3Server, tmp_path: Path) -> None:
    result = kill_archiving(tmp_path, "", server, SEED, CYCLES, POINTS)
    assert result.findings == [], result.text()
    assert (result.points, result.archive.parts > CYCLES) == (POINTS, True), result.text()


@slow(40)
@pytest.mark.timeout(600)
def test_what_kills_leave_of_a_log_on_bookkeeper_is_restored(
    server: S3Server, shared_bookkeeper: BookKeeperCluster, tmp_path: Path
) -> None:
    shared_bookkeeper.start()
    with on_bookkeeper(shared_bookkeeper, f"/{uuid.uuid4().hex}") as tier1:
        result = kill_archiving(tmp_path, tier1, server, SEED, CYCLES, POINTS)
    assert result.findings == [], result.text()
    assert (result.points, result.archive.parts > CYCLES) == (POINTS, True), result.text()


# --- kills in the middle of an upload in pieces ---------------------------------------------------


class Archiving:
    """A store with log files of two blocks, and the way to its archive."""

    def __init__(self, folder: Path, server: S3Server, proxy: FaultProxy) -> None:
        self.folder = folder / "store"
        self.server = server
        self.proxy = proxy
        self.bucket = f"cut-{uuid.uuid4().hex}"
        server.make_bucket(self.bucket)
        self.url = server.location(self.bucket)
        # First files may be left early, for prepared ones: some part has two blocks all the same.
        self.content = random.Random(1).randbytes(30 * MIB)

    async def fill(self) -> None:
        async with segmentstore.open(self.folder, containers=1, log_file_bytes=9 * MIB) as store:
            await store.create_segment("x")
            for begin in range(0, len(self.content), MIB):
                await store.append("x", self.content[begin : begin + MIB])

    def archive_run(self, url: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "segmentstore", "archive", "run", str(self.folder)],
            env=self.environment(url),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def environment(self, url: str) -> dict[str, str]:
        blocks = {"SEGMENTSTORE_ARCHIVE_BLOCK_BYTES": str(5 * MIB)}
        return {**os.environ, **blocks, "SEGMENTSTORE_ARCHIVE": url}

    async def cut(self, rule: Rule, uploads: int, indices: int | None) -> None:
        """Kill an owner whose request is held back, when so many unfinished uploads, and indices,
        are on the server.
        """

        def is_cut() -> bool:
            if not rule.taken:
                return False
            left = self.left()
            return left[0] == uploads and indices in {None, left[1]}

        run = self.archive_run(self.url.replace(str(self.server.port), str(self.proxy.port)))
        try:
            await until(is_cut)
        finally:
            run.send_signal(signal.SIGKILL)
            assert run.wait() == -signal.SIGKILL
        self.proxy.heal()

    def left(self) -> tuple[int, int]:
        """Unfinished uploads, and indices."""
        client = self.server.client()
        try:
            uploads = client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
            objects = client.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        finally:
            client.close()
        return len(uploads), sum(each["Key"].endswith("-index") for each in objects)

    async def audit(self) -> ArchiveSeen:
        return await audit_archive(str(self.folder), self.url, self.environment(self.url), {})


@pytest.fixture(params=SERVERS[1:], ids=lambda kind: kind.name)
def archiving(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archiving]:
    server: S3Server = shared_server(request.param)
    with FaultProxy(HOST, server.port) as proxy:
        yield Archiving(tmp_path, server, proxy)


CUTS: list[tuple[Operation, bool, int, int | None]] = [
    ("begin_upload", True, 1, None),
    ("put_part", False, 1, None),
    ("put_part", True, 1, None),
    ("complete_upload", False, 1, None),
    ("complete_upload", True, 0, None),
    ("put", False, 0, 0),
    ("put", True, 0, 1),
]
"""Requests, whether the server has done it, and the unfinished uploads and indices that it has
then. The only puts that are held back are those of indices.
"""


@slow(8)
@pytest.mark.parametrize(("operation", "after_effect", "uploads", "indices"), CUTS)
def test_an_upload_that_a_kill_cuts_is_cleaned_up(
    archiving: Archiving,
    operation: Operation,
    after_effect: bool,
    uploads: int,
    indices: int | None,
) -> None:
    def is_meant(head: Head) -> bool:
        return operation != "put" or "-index" in head.target

    async def main() -> None:
        await archiving.fill()
        rule = archiving.proxy.fault(Stall(after_effect), operation, when=is_meant)
        await archiving.cut(rule, uploads, indices)
        assert (await archiving.audit()).findings != []
        assert archiving.archive_run(archiving.url).wait() == 0
        seen = await archiving.audit()
        assert (seen.findings, seen.parts > 0) == ([], True)
        assert archiving.left() == (0, seen.parts)

    asyncio.run(main())


# --- the checks are checked -----------------------------------------------------------------------


async def archived_store(folder: Path, archive: Path) -> tuple[Observation, Observation]:
    """A store that is archived and closed; what was seen of it in the middle, and at the end."""
    settings = {**SETTINGS, "archive": archive}
    async with segmentstore.open(folder, **settings) as store:
        looks = []
        for number in range(2):
            await store.create_segment(f"{number}")
            for append in range(60):
                await store.append("0", b"%05d" % append * 100)
            look = await observe(store, History(), 0)
            sequence = store.stats()["containers"][0]["sequence_number"]
            looks.append(dataclasses.replace(look, sequence_numbers={0: sequence}))
        await store.offload_prefix()
    return looks[0], looks[1]


def test_what_an_archive_lacks_and_what_a_restore_changes_is_found(tmp_path: Path) -> None:
    location, archive = tmp_path / "store", tmp_path / "archive"
    first, last = asyncio.run(archived_store(location, archive))
    environment = {**os.environ, "SEGMENTSTORE_ARCHIVE": archive.as_uri()}

    def audited(*noted: int) -> list[str]:
        seen = audit_archive(str(location), archive.as_uri(), environment, {0: noted})
        return asyncio.run(seen).findings

    assert audited(*first.sequence_numbers.values(), *last.sequence_numbers.values()) == []
    assert audited(1 << 40) == [f"container 0: operations [{1 << 40}] are missing"]
    ((_, moment),) = draw_points([first], 1, SEED)
    changed = dataclasses.replace(first.segments["0"], content=first.segments["0"].content[:-1])
    wrong = dataclasses.replace(first, segments={"0": changed})
    (found,) = check_point(location, environment, wrong, moment, tmp_path / "restored")
    assert found.startswith(f"restored at {moment}, content of '0' is b'00000")
    indices = sorted(archive.glob("*-index"))
    indices[0].rename(archive / f"{uuid.uuid4()}-ledger-1-index")
    findings = audited()
    for text in ("LedgerNotFoundError", "which belongs to no part", f"lacks {indices[0].name}"):
        assert any(text in each for each in findings), findings


def test_each_difference_of_a_restored_store_is_found() -> None:
    segment = SeenSegment("a", 2, 0, 1, 3, 0, False, {}, b"12")
    seen = Observation(1, 2, 0, {"a": segment})

    def found(**changes: object) -> list[str]:
        changed = dataclasses.replace(segment, **changes)  # type: ignore[arg-type]
        return list(differences(seen, dataclasses.replace(seen, segments={"a": changed})))

    assert found() == found(segment_id=3) == found(storage_length=2) == []
    for name, value in (
        ("start_offset", 0),
        ("length", 4),
        ("sealed", True),
        ("attributes", {uuid.UUID(int=1): 1}),
        ("content", b"13"),
        ("entries", ()),
    ):
        assert [each.split()[0] for each in found(**{name: value})] == [name]
    nothing = dataclasses.replace(seen, segments={})
    assert list(differences(seen, nothing)) == ["'a' is missing, and was there then"]
    assert list(differences(nothing, seen)) == ["'a' is there, and was not then"]
