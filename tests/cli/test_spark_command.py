"""`segmentstore spark`: a store's folder becomes its Tier-2 URL, a stopped store has its catalog
exported and a stand-in.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import pytest

import segmentstore as engine
from segmentstore import blocking
from segmentstore.cli import temporary_owner
from segmentstore.cli.temporary_owner import TemporaryOwner
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from tests.cli.shell import segmentstore
from tier2.catalog.catalog_snapshots import newest_snapshots
from tier2.locations import open_object_storage
from tier2.mailbox.mailbox import put_message, wait_for_answers
from tier2.mailbox.messages import ExportRequest
from tier2.object_storage import ObjectStorage
from tier2.spark import commands

JOB = "0123456789abcdef"
T = TypeVar("T")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    assert segmentstore("append", folder, "a/b", stdin=b"one\ntwo\n").code == 0
    return folder


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """What verbs would be run with; none is run."""
    calls: list[argparse.Namespace] = []

    def execute(arguments: argparse.Namespace) -> int:
        calls.append(arguments)
        return 0

    monkeypatch.setattr(commands, "execute", execute)
    return calls


def with_tier2(store: Path, work: Callable[[ObjectStorage], Coroutine[None, None, T]]) -> T:
    async def opened() -> T:
        storage = open_object_storage((store / "tier2").as_uri(), Runtime())
        try:
            return await work(storage)
        finally:
            await storage.close()

    return asyncio.run(opened())


def test_a_stopped_stores_catalog_is_exported_and_its_url_goes_to_the_verb(
    store: Path, seen: list[argparse.Namespace]
) -> None:
    assert segmentstore("spark", "reconcile", store).code == 0
    [arguments] = seen
    assert arguments.tier2_url == (store / "tier2").as_uri()
    assert arguments.stopped
    [snapshot] = with_tier2(store, newest_snapshots).values()
    assert snapshot.store_id == arguments.store_id
    assert snapshot.containers == 1


def test_a_store_that_is_open_is_left_to_its_owner(
    store: Path, seen: list[argparse.Namespace]
) -> None:
    with blocking.open(str(store)):
        assert segmentstore("spark", "compact", store).code == 0
    [arguments] = seen
    assert not arguments.stopped
    assert not with_tier2(store, newest_snapshots)


def test_a_url_goes_to_the_verb_as_it_is(seen: list[argparse.Namespace]) -> None:
    assert (
        segmentstore(
            "spark", "--master", "local[1]", "reconcile", "s3://bucket/prefix", "--json"
        ).code
        == 0
    )
    assert (seen[0].tier2_url, seen[0].master, seen[0].json) == (
        "s3://bucket/prefix",
        "local[1]",
        True,
    )


def test_what_is_no_store_could_not_be_reported_and_is_no_finding(
    tmp_path: Path, seen: list[argparse.Namespace]
) -> None:
    shown = segmentstore("spark", "reconcile", tmp_path / "nothing")
    assert shown.code == 2
    assert "no such folder" in shown.err
    assert not seen


def test_objects_in_the_memory_of_a_process_are_its_own(
    tmp_path: Path, seen: list[argparse.Namespace]
) -> None:
    blocking.open(str(tmp_path / "store"), tier2="memory://test-spark-command").close()
    shown = segmentstore("spark", "reconcile", tmp_path / "store")
    assert shown.code == 2
    assert "no job can see them" in shown.err
    assert not seen


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name)
    )
    shown = segmentstore("spark", "reconcile", "s3://bucket")
    assert shown.code == 2
    assert "segmentstore[spark]" in shown.err


def test_help_is_the_jobs_own() -> None:
    shown = segmentstore("spark", "--help")
    assert shown.code == 0
    assert b"segmentstore spark" in shown.out
    assert b"reconcile" in shown.out


def test_the_stand_in_opens_the_store_when_it_is_asked_and_closes_it_at_the_end(
    store: Path,
) -> None:
    url = (store / "tier2").as_uri()

    async def ask(storage: ObjectStorage) -> list[str]:
        request = ExportRequest(0, JOB, "export")
        await put_message(storage, Runtime(), request)
        answers = await wait_for_answers(storage, [request.key], 60.0, 0.05)
        return [answer.verdict for answer in answers.values()]

    with TemporaryOwner(str(store), url, range(1)) as owner:
        # No job has asked for anything yet: the folder is free.
        with blocking.open(str(store)):
            pass
        assert with_tier2(store, ask) == ["exported"]
    assert owner.failure is None
    with blocking.open(str(store)) as opened:
        assert opened.read("a/b", 0, 100) == b"one\ntwo\n"


def test_a_stand_in_that_cannot_open_the_store_says_so(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TierUnavailableError("tier1", "no log")

    async def ask(storage: ObjectStorage) -> None:
        await put_message(storage, Runtime(), ExportRequest(0, JOB, "export"))

    with_tier2(store, ask)
    monkeypatch.setattr(engine, "open", fail, raising=False)
    with TemporaryOwner(str(store), (store / "tier2").as_uri(), range(1)) as owner:
        owner._thread.join(60)
    assert owner.failure is not None
    assert "no log" in str(owner.failure)


def test_whatever_a_stand_in_dies_of_the_command_says(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    async def ask(storage: ObjectStorage) -> None:
        await put_message(storage, Runtime(), ExportRequest(0, JOB, "export"))

    def execute(_: argparse.Namespace) -> int:
        # A job whose owner dies of what is no error of ours.
        monkeypatch.setattr(engine, "open", fail, raising=False)
        with_tier2(store, ask)
        [owner] = [thread for thread in threading.enumerate() if thread.name == "stand-in"]
        owner.join(60)
        return 2

    monkeypatch.setattr(commands, "execute", execute)
    shown = segmentstore("spark", "compact", store)
    assert shown.code == 2
    assert f"no process could answer for {store}: can't start new thread" in shown.err


def test_a_stand_in_without_a_loop_says_so_and_no_caller_waits(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> asyncio.AbstractEventLoop:
        raise OSError("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(temporary_owner, "new_event_loop", fail)
        with TemporaryOwner(str(store), (store / "tier2").as_uri(), range(1)) as owner:
            pass
    assert "too many open files" in str(owner.failure)
