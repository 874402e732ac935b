"""Each way to run: Spark Connect, spark-submit with the archive, a standalone cluster that loses
executors while the owner of the store changes; and Ctrl-C.

Real processes, a minute or so each. Executors whose code has to come from elsewhere run an
interpreter that knows the installed packages but not this tree (`bare_python`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import segmentstore as engine
from recovery.harness.services.fault_messages import Head
from recovery.harness.services.fault_proxy import FaultProxy
from recovery.harness.services.fault_rules import Stall
from recovery.harness.services.s3_servers import REGION, S3Proxy, credentials
from recovery.harness.services.server import HOST
from recovery.harness.services.shared import shared_server
from recovery.harness.services.spark_cluster import (
    SparkCluster,
    SparkConnectServer,
    driver_environment,
    spark_home,
)
from segmentstore import blocking
from segmentstore.contracts.runtime import Runtime
from tests.cli.shell import segmentstore
from tests.support.folders import files_below
from tests.support.suites import slow
from tests.tier2.spark.driver_process import Driver, module, wait_for_ends
from tests.tier2.spark.read_program import COPY
from tier2.locations import open_object_storage
from tier2.mailbox.mailbox import MailboxEntry, list_job
from tier2.object_names import parse_object_name
from tier2.spark.common.archive import ARCHIVE_NAME, LAUNCHER_NAME, build_archive, write_launcher

pytestmark = [pytest.mark.timeout(600), pytest.mark.cluster]

SEGMENTS = 8
ROUNDS = 6
"""A flush after each: so many small chunks of each segment, one more than makes a group."""
PIECE_BYTES = 8 * 1024
JOB = "00000000000000aa"
COMPACT = (
    "--older-than",
    "0",
    "--job-id",
    JOB,
    "--max-file-group-size-bytes",
    str(ROUNDS * PIECE_BYTES),
    "--json",
)
"""A group for each segment, so that there is something to do for every core, and several times."""
EXECUTORS = {f"spark.executorEnv.{name}": value for name, value in credentials().items()}
"""Executors have the environment of their workers, which know nothing of the S3 server."""


def verb(*words: object, environment: dict[str, str], cwd: Path) -> Driver:
    return module("tier2.spark", *words, environment=environment, cwd=cwd)


def text(segment: int, number: int) -> bytes:
    return random.Random(100 * segment + number).randbytes(PIECE_BYTES)


CONTENTS = {
    f"logs/{index}": b"".join(text(index, number) for number in range(ROUNDS))
    for index in range(SEGMENTS)
}
"""Of every store here, by segment."""


def fill(store: blocking.SegmentStore) -> None:
    """Segments of many small chunks."""
    for name in CONTENTS:
        store.create_segment(name)
    for number in range(ROUNDS):
        for index, name in enumerate(CONTENTS):
            store.append(name, text(index, number))
        store.flush()


def check_contents(store: blocking.SegmentStore) -> None:
    """All bytes are there and right, read by the owner."""
    for name, data in CONTENTS.items():
        assert store.read(name, 0, len(data)) == data, name


@pytest.fixture(scope="module")
def stopped_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in a folder that no process has open, its catalog exported."""
    folder = tmp_path_factory.mktemp("stopped") / "store"
    with blocking.open(str(folder), containers=2, consolidation=False) as store:
        fill(store)
    assert segmentstore("catalog", "export", folder).code == 0
    return folder


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with all installed packages but this project's, which is known by a .pth file
    that -S leaves unread.
    """
    path = tmp_path_factory.mktemp("bare") / "python"
    installed = sysconfig.get_paths()["purelib"]
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{installed}" exec {sys.executable} -S "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    lonely = subprocess.run(
        [path, "-c", "import pyarrow, tier2"], cwd="/", capture_output=True, text=True, check=False
    )
    assert "No module named 'tier2'" in lonely.stderr
    return str(path)


def url_of(store: Path) -> str:
    return (store / "tier2").as_uri()


# --- Connect, spark-submit ------------------------------------------------------------------------


@slow(45)
@pytest.mark.spark_versions("connect")
def test_by_spark_connect_verbs_and_the_source_run_and_bring_their_code_along(
    stopped_store: Path, bare_python: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    subprocess.run(["cp", "-r", stopped_store, store], check=True)
    with SparkConnectServer(tmp_path / "server", python=bare_python) as server:
        environment = driver_environment(server.url)
        words = ("reconcile", url_of(store), "--stopped", "--check", "bodies", "--json")
        with verb(*words, environment=environment, cwd=tmp_path) as driver:
            summary = json.loads(driver.end())
        assert re.search(r"reconcile: [0-9,]+ of [0-9,]+ tasks", driver.told())
        assert summary["findings"] == []
        assert summary["looked_into"] == summary["objects"] > 0
        # By the command line of the store, which commits in the place of its owner.
        compacting = ("spark", "compact", store, *COMPACT)
        with module("segmentstore", *compacting, environment=environment, cwd=tmp_path) as driver:
            check_report(json.loads(driver.end()))
        assert re.search(r"compact: [0-9,]+ of [0-9,]+ tasks", driver.told())
        with blocking.open(store) as opened:
            check_contents(opened)
            opened.export_catalog()
            reading = (url_of(store), store)
            with module(
                "tests.tier2.spark.read_program", *reading, environment=environment, cwd=tmp_path
            ) as driver:
                read = json.loads(driver.end())
            assert read == {name: sha256(data).hexdigest() for name, data in CONTENTS.items()}
            assert b"".join(opened.reader(COPY)) == b"".join(CONTENTS.values())


@slow(35)
def test_spark_submit_takes_everything_from_its_archive_and_hands_the_exit_code_on(
    stopped_store: Path, bare_python: str, tmp_path: Path
) -> None:
    spoiled = tmp_path / "spoiled"
    subprocess.run(["cp", "-r", stopped_store / "tier2", spoiled], check=True)
    objects = [
        path for path in spoiled.rglob("*") if path.is_file() and is_ours(path.relative_to(spoiled))
    ]
    objects[0].unlink()
    archive = build_archive(tmp_path / ARCHIVE_NAME)
    launcher = write_launcher(tmp_path / LAUNCHER_NAME)
    settings = (
        "spark.ui.enabled=false",
        "spark.driver.host=127.0.0.1",
        "spark.driver.bindAddress=127.0.0.1",
    )
    command = (
        str(spark_home() / "bin" / "spark-submit"),
        *("--master", "local[2,4]", *(part for each in settings for part in ("--conf", each))),
        *("--py-files", str(archive), str(launcher)),
        *("reconcile", spoiled.as_uri(), "--stopped", "--json"),
    )
    environment = driver_environment("local", python=bare_python)
    # What says the master is the command line above.
    del environment["PYSPARK_SUBMIT_ARGS"]
    with Driver(*command, environment=environment, cwd=tmp_path) as driver:
        summary = json.loads(driver.end(code=1))
    assert [(each["kind"], each["count"]) for each in summary["findings"]] == [("missing", 1)]


def is_ours(path: Path) -> bool:
    return parse_object_name(path.as_posix()) is not None


# --- a cluster that loses what it has -------------------------------------------------------------


class Shop:
    """A store that is open, with its Tier 2 on a server, and a way there on which things happen."""

    def __init__(self, folder: Path, server: S3Proxy, bucket: str, proxy: FaultProxy) -> None:
        self.proxy = proxy
        direct = server.location(bucket)
        self.url = direct.replace(str(server.port), str(proxy.port))
        """Of its Tier 2, by the proxy."""
        self._folder = folder
        self._direct = direct
        self.open()
        fill(self.store)

    def open(self) -> None:
        """Another owner, of another epoch, if the store was closed before."""
        self.store = blocking.open(
            self._folder,
            tier2=self._direct,
            containers=2,
            consolidation=False,
            mailbox_poll_interval_s=0.5,
        )

    def proposals(self) -> list[str]:
        """Proposals of the job, to all containers."""
        return [entry.key.message_id for entry in self._entries()]

    def unanswered(self) -> list[str]:
        """Those of them that no owner has answered."""
        return [entry.key.message_id for entry in self._entries() if entry.answer is None]

    def created_objects(self) -> list[str]:
        """Objects that attempts of the job have put."""
        return asyncio.run(self._created())

    def _entries(self) -> list[MailboxEntry]:
        async def listed() -> list[MailboxEntry]:
            storage = open_object_storage(self._direct, Runtime())
            try:
                return [
                    entry
                    for container in range(2)
                    for entry in await list_job(storage, container, JOB)
                ]
            finally:
                await storage.close()

        return [
            entry
            for entry in asyncio.run(listed())
            if not entry.key.message_id.startswith("export-")
        ]

    async def _created(self) -> list[str]:
        storage = open_object_storage(self._direct, Runtime())
        try:
            names = [stored.name async for page in storage.list("") for stored in page]
        finally:
            await storage.close()
        return [
            name
            for name in names
            if (parsed := parse_object_name(name)) is not None and parsed.job_id == JOB
        ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    server = shared_server(S3Proxy)
    bucket = f"ways-{random.Random(str(tmp_path)).getrandbits(32):08x}"
    server.make_bucket(bucket)
    with FaultProxy(HOST, server.port) as proxy:
        made = Shop(tmp_path / "store", server, bucket, proxy)
        assert REGION in made.url
        try:
            yield made
        finally:
            made.store.close()


def compact(shop: Shop, *, environment: dict[str, str], cwd: Path) -> Driver:
    return verb("compact", shop.url, *COMPACT, environment=environment, cwd=cwd)


def is_of_a_block(head: Head) -> bool:
    """A request for an object of segments' bytes: not for a snapshot, nor for a message."""
    return "/flush-" in head.target


def is_of_a_new_object(head: Head) -> bool:
    return f"/compaction-{JOB}-" in head.target


def check_report(report: dict[str, Any]) -> None:
    assert report["groups"] == {"committed": SEGMENTS}, report


@slow(60)
def test_tasks_that_die_with_their_executors_are_tried_again_and_answered_by_another_owner(
    cluster: SparkCluster, shop: Shop, bare_python: str, tmp_path: Path
) -> None:
    stalled = shop.proxy.fault(Stall(), "get", times=None, when=is_of_a_block)
    # New executors get the code again.
    environment = driver_environment(cluster.url, EXECUTORS, python=bare_python)
    with compact(shop, environment=environment, cwd=tmp_path) as driver:
        driver.wait_for(lambda: stalled.taken)
        # Tasks that hand the groups out may have ended before; what is drawn last is of those that
        # are stalled.
        driver.wait_for(lambda: re.search(r"[0-9,]+ of [0-9,]+ tasks, 2 running *$", driver.told()))
        shop.store.close()
        assert sum(worker.kill_executors() for worker in cluster.workers) == 2
        shop.proxy.heal()
        # What is done again has no owner to be proposed to, until another one finds it.
        driver.wait_for(shop.unanswered, interval_s=1)
        shop.open()
        check_report(json.loads(driver.end()))
    assert len(shop.proposals()) == SEGMENTS
    assert not shop.unanswered()
    check_contents(shop.store)


@slow(40)
def test_speculation_leaves_one_proposal_for_each_group_and_garbage_that_is_known_by_its_name(
    cluster: SparkCluster, shop: Shop, tmp_path: Path
) -> None:
    settings = EXECUTORS | {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.minTaskRuntime": "500ms",
    }
    # It has put its object and never receives the answer. All the other tasks end; then it is begun
    # a second time, elsewhere.
    stalled = shop.proxy.fault(Stall(after_effect=True), "put", when=is_of_a_new_object)
    with compact(
        shop, environment=driver_environment(cluster.url, settings), cwd=tmp_path
    ) as driver:
        driver.wait_for(lambda: stalled.taken)
        shop.store.close()
        shop.open()
        check_report(json.loads(driver.end()))
    assert stalled.taken == 1
    proposals = Counter(shop.proposals())
    assert len(proposals) == SEGMENTS
    assert set(proposals.values()) == {1}
    assert len(shop.created_objects()) == SEGMENTS + 1
    check_contents(shop.store)


# --- all of it on one machine ---------------------------------------------------------------------


@slow(40)
def test_the_demo_holds_on_files_of_ones_own(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(4):
        (files / f"{number}.txt").write_bytes(
            b"".join(b"%d line\n" % line for line in range(100 * number, 1000))
        )
    environment = driver_environment("local[2,4]")
    command = (
        sys.executable,
        "-m",
        "segmentstore.cli.spark_demo",
        str(files),
        "--folder",
        str(tmp_path / "demo"),
    )
    with Driver(*command, environment=environment, cwd=tmp_path) as driver:
        out = driver.end()
    # Four files of 1,000 lines and fewer, read before and after the compaction.
    assert out.count("3,400 lines of ") == 2, out
    assert "all of it held" in out
    assert "missing" in out
    assert "orphan" in out


# --- Ctrl-C ---------------------------------------------------------------------------------------


@slow(40)
def test_ctrl_c_cancels_the_query_and_ends_with_130(shop: Shop, tmp_path: Path) -> None:
    stalled = shop.proxy.fault(Stall(), "get", times=None, when=is_of_a_block)
    environment = driver_environment("local[2,4]")
    with compact(shop, environment=environment, cwd=tmp_path) as driver:
        driver.wait_for(lambda: stalled.taken >= 2)
        started = driver.started()
        # To the process itself: a terminal would send it to all of the group, and the JVM does not
        # listen.
        os.kill(driver.process.pid, signal.SIGINT)
        driver.end(code=130)
        # Not always the last line: the JVM may log of its cancelled tasks behind it.
        assert "interrupted" in driver.told().splitlines()
        assert "Traceback" not in driver.told()
        # Its Python workers, too: they would put what is not stalled any more.
        wait_for_ends(started)
    shop.proxy.heal()
    assert not shop.proposals()
    # What was cancelled is done by another run of the same job.
    with compact(shop, environment=environment, cwd=tmp_path) as driver:
        check_report(json.loads(driver.end()))
    check_contents(shop.store)


@slow(15)
def test_ctrl_c_while_owners_are_waited_for_ends_it_at_once(tmp_path: Path) -> None:
    async def make() -> None:
        async with engine.open(str(tmp_path / "store")) as store:
            await store.create_segment("a")
            await store.append("a", b"one\n")

    asyncio.run(make())
    url = url_of(tmp_path / "store")
    with verb(
        "reconcile", url, environment=driver_environment("local[2,4]"), cwd=tmp_path
    ) as driver:
        mailbox = tmp_path / "store" / "tier2" / "mailbox"
        driver.wait_for(lambda: [path for path in files_below(mailbox) if path.suffix == ".json"])
        os.kill(driver.process.pid, signal.SIGINT)
        driver.end(code=130)
