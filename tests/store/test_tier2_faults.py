"""Stores under load while Tier 2 fails in every way a network, a provider or a disk has. Writers
are slowed at most, what was acknowledged is there with the right bytes, health says what was wrong
and then nothing, and nothing leaks for good.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import segmentstore
from recovery.harness.services.fault_messages import Head
from recovery.harness.services.fault_rules import (
    EXPIRED_TOKEN,
    INTERNAL_ERROR,
    INTERNAL_ERROR_AFTER_EFFECT,
    SLOW_DOWN,
    CutUpload,
    DropReply,
    DropRequest,
    Fault,
    FlipBit,
    Late,
    Status,
    Truncate,
    Twice,
)
from recovery.harness.services.s3_servers import S3Proxy
from recovery.harness.services.shared import shared_server
from segmentstore import SegmentStore
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.reports import GarbageReport
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import TINY, WorldDisk, read_all, until
from tests.support.eager_loop import SPEED, run_eagerly
from tests.support.faulty_s3 import FaultyS3, faulty_s3, own_part
from tests.support.folders import files_below
from tests.support.suites import share, size, sized, slow
from tier2.object_names import ENGINE_PREFIXES, PROBE_PREFIX, parse_object_name
from tier2.request_statistics import Operation

DAMAGED = size("DAMAGED_REPLIES", 1, 3)
SETTINGS: Mapping[str, Any] = {
    **TINY,
    "containers": 2,
    "log_file_bytes": 64 * 1024,
    "frame_bytes_max": 4096,
    "checkpoint_operations": 500,
    "checkpoint_bytes": 32 * 1024,
    "flush_bytes": 1500,
    "flush_age_s": 0.02 * SPEED,
    "object_bytes": 4000,
    "upload_bytes_max": 16_000,
    "unflushed_target_bytes": 6000,
    "cache_bytes_max": 1 << 20,
    "piece_bytes": 512,
    "fetched_bytes_max": 2048,
}
SEGMENTS = 3
RECORD = 50
PHASE = 40
"""Records that each writer appends before the trouble, and again after it."""
FAILURES = 4
"""Uploads that must fail before an outage ends: with growing pauses between them that is a minute
of the loop's time.
"""


@pytest.fixture(scope="module")
def service() -> Iterator[FaultyS3]:
    with faulty_s3(shared_server(S3Proxy)) as world:
        yield world


@pytest.fixture
def s3(service: FaultyS3) -> Iterator[FaultyS3]:
    with own_part(service) as world:
        yield world


def record(segment: int, number: int) -> bytes:
    return b"%02d:%06d;" % (segment, number) * (RECORD // 10)


def content(segment: int, count: int) -> bytes:
    return b"".join(record(segment, number) for number in range(count))


class Load:
    """A writer and a reader for each of a few segments, until asked to stop.

    An append that fails fails the test.
    """

    def __init__(self, store: SegmentStore) -> None:
        self.acknowledged = [0] * SEGMENTS
        self.reads = 0
        self._store = store
        self._stopping = False

    async def around(self, trouble: Callable[[], Awaitable[None]]) -> None:
        """Run it while `trouble` comes and goes, and a little longer."""
        for segment in range(SEGMENTS):
            await self._store.create_segment(f"s{segment}")
        tasks = [
            asyncio.ensure_future(each(segment))
            for each in (self._write, self._read)
            for segment in range(SEGMENTS)
        ]
        try:
            await self._written(PHASE)
            await trouble()
            await self._written(PHASE)
        finally:
            self._stopping = True
            await asyncio.gather(*tasks)

    async def _written(self, more: int) -> None:
        goal = [count + more for count in self.acknowledged]
        await until(
            lambda: all(
                count >= wanted for count, wanted in zip(self.acknowledged, goal, strict=True)
            )
        )

    async def _write(self, segment: int) -> None:
        while not self._stopping:
            number = self.acknowledged[segment]
            assert (
                await self._store.append(f"s{segment}", record(segment, number)) == number * RECORD
            )
            self.acknowledged[segment] = number + 1
            await asyncio.sleep(0.001 * SPEED)

    async def _read(self, segment: int) -> None:
        source = random.Random(segment)
        while not self._stopping:
            await asyncio.sleep(0.003 * SPEED)
            offset = source.randrange(self.acknowledged[segment] * RECORD + 1)
            try:
                got = await self._store.read(f"s{segment}", offset, 400, wait=0)
            except TierUnavailableError:
                # What is neither in memory nor in the cache cannot be read now: said so, and no
                # more.
                continue
            self.reads += 1
            wanted = content(segment, self.acknowledged[segment] + 1)
            assert got == wanted[offset : offset + len(got)]

    async def check(self, store: SegmentStore) -> None:
        """Everything acknowledged is there, byte by byte, and nothing else."""
        for segment, count in enumerate(self.acknowledged):
            assert await read_all(store, f"s{segment}") == content(segment, count)


def health(store: SegmentStore) -> str:
    findings = store.stats()["health"]
    assert isinstance(findings, list)
    return "\n".join(findings)


def upload_failures(store: SegmentStore) -> int:
    return sum(container._writer.statistics().upload_failures for container in store._containers)


def data_objects(names: Iterable[str]) -> set[str]:
    """Without the engine's own: markers of stores, a few copies of checkpoints, and snapshots of
    the metadata, which a long run has. Probes that were cut off are deleted after a day.
    """
    data = {name for name in names if not name.startswith(ENGINE_PREFIXES)}
    assert [name for name in data if parse_object_name(name) is None] == []
    return data


def known_objects(store: SegmentStore) -> set[str]:
    return {
        name
        for each in store._containers
        for name in (*each.metadata.objects, *each.metadata.garbage)
    }


async def settle(store: SegmentStore) -> None:
    await store.flush()
    await until(lambda: health(store) == "")


async def collect(s3: FaultyS3, store: SegmentStore) -> GarbageReport:
    """What no metadata name is found and deleted, in the bucket and among the uploads in parts; the
    rest stays.
    """
    report = await store.collect_garbage()
    assert report.problems == ()
    assert data_objects(s3.names()) == known_objects(store)
    # A probe whose abort was refused goes after a day, as `data_objects` has it.
    assert [name for name in s3.uploads() if not name.startswith(PROBE_PREFIX)] == []
    return report


def through_trouble(
    folder: Path,
    s3: FaultyS3,
    trouble: Callable[[SegmentStore], Awaitable[None]],
    **options: object,
) -> None:
    """A life of a store with the trouble in it, and a second life that must find everything in Tier
    2.
    """
    settings: dict[str, Any] = {**SETTINGS, "tier2": f"{s3.url}&multipart_bytes=2500", **options}

    async def main() -> None:
        async with segmentstore.open(folder / "store", **settings) as store:
            load = Load(store)
            await load.around(partial(trouble, store))
            s3.proxy.release_late()
            await settle(store)
            await load.check(store)
        shutil.rmtree(folder / "store" / "cache")
        async with segmentstore.open(folder / "store", **settings) as store:
            await load.check(store)
            await settle(store)
            await collect(s3, store)
        assert load.reads

    run_eagerly(main())


# --- the provider does not answer, or not with what was asked for ---------------------------------

BURSTS: dict[str, tuple[Fault, str]] = {
    "503": (SLOW_DOWN, "SlowDown"),
    "500": (INTERNAL_ERROR, "InternalError"),
    "expired credentials": (EXPIRED_TOKEN, "ExpiredToken"),
    "no permission": (Status(403, "AccessDenied"), "permission"),
    "bucket deleted": (Status(404, "NoSuchBucket"), "does not exist"),
}


@pytest.mark.parametrize(("fault", "words"), share(BURSTS.values(), 5, 15), ids=BURSTS)
def test_a_provider_that_refuses_everything_for_long_only_holds_the_flushes(
    tmp_path: Path, s3: FaultyS3, fault: Fault, words: str
) -> None:
    async def trouble(store: SegmentStore) -> None:
        before = upload_failures(store)
        s3.proxy.fault(fault, times=None)
        await until(lambda: words in health(store))
        await until(lambda: upload_failures(store) >= before + FAILURES)
        assert "tier2 s3://" in health(store)
        s3.proxy.heal()

    through_trouble(tmp_path, s3, trouble)


@slow(2)
def test_a_bucket_that_is_missing_and_comes_back(tmp_path: Path, s3: FaultyS3) -> None:
    async def trouble(store: SegmentStore) -> None:
        for _ in range(2):
            before = upload_failures(store)
            s3.proxy.refuse()
            await until(lambda: upload_failures(store) >= before + FAILURES)  # noqa: B023
            assert "tier2" in health(store)
            s3.proxy.accept()
            await until(lambda: health(store) == "")

    through_trouble(tmp_path, s3, trouble)


MAKING: list[Operation] = ["put", "begin_upload", "put_part", "complete_upload", "head"]
DOUBTS: dict[str, Fault] = {
    "cut before": DropRequest(),
    "cut during": CutUpload(),
    "reply lost": DropReply(),
    "twice": Twice(),
    "late": Late(0.05),
    "500 after effect": INTERNAL_ERROR_AFTER_EFFECT,
    "bit changed on the way up": FlipBit("request"),
}


@pytest.mark.parametrize("fault", share(DOUBTS.values(), 7, 10), ids=DOUBTS)
def test_every_other_request_of_an_upload_going_wrong_loses_and_doubles_nothing(
    tmp_path: Path, s3: FaultyS3, fault: Fault
) -> None:
    async def trouble(store: SegmentStore) -> None:
        rules = [
            s3.proxy.fault(fault, operation, skip=number)
            for operation in MAKING
            for number in range(3)
        ]
        await until(lambda: rules[0].taken == 1 and rules[9].taken == 1)
        await until(lambda: sum(rule.taken for rule in rules) >= 8)
        s3.proxy.heal(rules)

    through_trouble(tmp_path, s3, trouble)


@sized(8)
@pytest.mark.parametrize(
    "fault",
    share([Truncate(), Truncate(lying=True), FlipBit("reply")], 3, 8),
    ids=["short", "lying", "bit"],
)
def test_replies_that_are_damaged_on_the_way_never_reach_a_reader(
    tmp_path: Path, s3: FaultyS3, fault: Fault
) -> None:
    struck: set[str] = set()

    def is_first_of_its_object(head: Head) -> bool:
        """A block that comes damaged twice is corrupt, and is said to be."""
        is_first = head.target not in struck
        struck.add(head.target)
        return is_first

    async def trouble(_: SegmentStore) -> None:
        rule = s3.proxy.fault(fault, "get", times=DAMAGED, when=is_first_of_its_object)
        await until(lambda: rule.taken == DAMAGED)

    through_trouble(tmp_path, s3, trouble, cache_bytes_max=16 * 1024)


@slow(26)
def test_a_server_that_is_killed_and_restarted(tmp_path: Path) -> None:
    with (
        S3Proxy(tmp_path / "server") as server,
        faulty_s3(server) as service,
        own_part(service) as world,
    ):

        async def trouble(store: SegmentStore) -> None:
            before = upload_failures(store)
            world.was_killed = True
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, server.kill)
            await until(lambda: upload_failures(store) >= before + FAILURES)
            await loop.run_in_executor(None, server.start)

        through_trouble(tmp_path, world, trouble)


@slow(3)
def test_a_process_that_dies_in_the_middle_of_an_outage_leaves_only_what_a_listing_finds(
    tmp_path: Path, s3: FaultyS3
) -> None:
    """The replies of all uploads are lost and then the store closes: objects may be there that
    no operation names.
    """
    settings = {**SETTINGS, "tier2": f"{s3.url}&multipart_bytes=2500"}

    async def main() -> None:
        async with segmentstore.open(tmp_path / "store", **settings) as store:
            load = Load(store)

            async def trouble() -> None:
                s3.proxy.fault(DropReply(), "put", "complete_upload", times=None)
                s3.proxy.fault(DropRequest(), "head", "get", "abort_upload", times=None)
                await until(lambda: upload_failures(store) >= FAILURES)

            await load.around(trouble)
        s3.proxy.heal()
        async with segmentstore.open(tmp_path / "store", **settings) as again:
            await load.check(again)
            await settle(again)
            await load.check(again)
            assert (await collect(s3, again)).count("deleted") >= 1

    run_eagerly(main())


# --- the file adapter -----------------------------------------------------------------------------


@pytest.mark.parametrize("call", share(["pwrite", "open", "sync", "link"], 3, 5))
def test_a_tier2_disk_that_is_full_holds_the_flushes_until_there_is_room(
    tmp_path: Path, call: str
) -> None:
    disk = WorldDisk()
    folder = f"{os.sep}tier2{os.sep}"

    def full(reached: str, path: str) -> OSError | None:
        return (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            if reached == call and folder in path
            else None
        )

    async def main() -> None:
        async with segmentstore.open(
            tmp_path / "store", runtime=Runtime(disk=disk), **SETTINGS
        ) as store:
            load = Load(store)

            async def trouble() -> None:
                disk.trap = full
                await until(lambda: upload_failures(store) >= FAILURES)
                assert "ENOSPC" in health(store)
                disk.heal()

            await load.around(trouble)
            await settle(store)
            await load.check(store)
            root = tmp_path / "store" / "tier2"
            there = [str(path.relative_to(root)) for path in files_below(root)]
            assert data_objects(
                name for name in there if not name.startswith("~")
            ) == known_objects(store)
        async with segmentstore.open(
            tmp_path / "store", runtime=Runtime(disk=disk), **SETTINGS
        ) as again:
            await load.check(again)

    run_eagerly(main())
