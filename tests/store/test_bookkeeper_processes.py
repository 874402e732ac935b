"""Processes of the operating system share one store on a real cluster: each its own containers, or
all of them the same one.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from durablelog.bookkeeper.gateway.gateway_settings import TOKEN_VARIABLE
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from tests.cli import shell
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.store.bookkeeper_world import name_in
from tests.store.harness import LAZY
from tests.support.suites import slow

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 240
"""Below the bound of a test."""


class Owner:
    """A child that carries out commands (owner_process.py)."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self._opening = (str(folder), {**LAZY, **options})
        command = [sys.executable, "-m", "tests.store.owner_process"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._process.stdout, self._process.stdin:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """As a crash ends it. It is there until its last system call has ended, which a disk may
        take long for; it is not waited for then.
        """
        self._process.kill()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def ask(self, name: str, *arguments: object) -> None:
        """Its answer is for `answer_of`, so that several can be asked at the same time."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, *arguments]) + "\n")

    def ask_to_open(self) -> None:
        self.ask("open", *self._opening)

    def answer_of(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], ANSWER_S)[0], "no answer"
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def do(self, name: str, *arguments: object) -> Any:
        """What it answers; an error fails the test."""
        self.ask(name, *arguments)
        return self.result()

    def result(self) -> Any:
        answer = self.answer_of()
        assert "ok" in answer, answer
        return answer["ok"]

    def error(self) -> str:
        answer = self.answer_of()
        assert "error" in answer, answer
        return str(answer["error"])


@pytest.fixture(scope="module")
def cluster(shared_bookkeeper: BookKeeperCluster) -> BookKeeperCluster:
    shared_bookkeeper.start()
    return shared_bookkeeper


@pytest.fixture
def options(
    cluster: BookKeeperCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """Of one store. Its owners share a gateway: what each has of its own, others show."""
    with kept_gateway() as gateway:
        monkeypatch.setenv(TOKEN_VARIABLE, gateway.token)
        query = f"?ledger_bytes=4KiB&gateway=127.0.0.1:{gateway.process.port}"
        tier2 = (tmp_path / "tier2").as_uri()
        # Most fight for a container on purpose.
        url = cluster.url(f"/{tmp_path.name}") + query
        yield {"tier1": url, "tier2": tier2, "containers": 2, "take_over": True}


def pieces(owner: int, turn: int) -> list[str]:
    return [f"{owner}.{turn}.{number} " for number in range(60)]


@slow(3)
def test_two_processes_serve_a_container_each(options: dict[str, Any], tmp_path: Path) -> None:
    names = [name_in(container_id, 2) for container_id in range(2)]
    with (
        Owner(tmp_path / "0", {**options, "serve": "0"}) as first,
        Owner(tmp_path / "1", {**options, "serve": "1"}) as second,
    ):
        owners = [first, second]
        for owner in owners:
            owner.ask_to_open()
        for owner in owners:
            owner.result()
        for owner, name in zip(owners, names, strict=True):
            owner.do("create", name)
        expected = ["", ""]
        for turn in range(5):
            for index, owner in enumerate(owners):
                owner.ask("append", names[index], *pieces(index, turn))
            for index, owner in enumerate(owners):
                offsets = owner.result()
                assert offsets[0] == len(expected[index])
                expected[index] += "".join(pieces(index, turn))
                assert owner.do("read", names[index]) == expected[index]
            owners[turn % 2].do("flush")
        for owner, name in zip(owners, reversed(names), strict=True):
            for call in ("append", "read"):
                owner.ask(call, name, *(["x"] if call == "append" else []))
                assert owner.error() == "ContainerNotServedError"
        for owner in owners:
            owner.do("close")
    with Owner(tmp_path / "both", options) as both:
        both.ask_to_open()
        both.result()
        assert [both.do("read", name) for name in names] == expected
        both.do("close")


def test_of_two_processes_that_want_the_same_container_one_wins(
    options: dict[str, Any], tmp_path: Path
) -> None:
    name = name_in(0, 2)
    with (
        Owner(tmp_path / "0", {**options, "serve": "0"}) as one,
        Owner(tmp_path / "1", {**options, "serve": "0"}) as other,
    ):
        owners = [one, other]
        one.ask_to_open()
        one.result()
        one.do("create", name)
        one.do("close")
        other.do("hello")
        expected = ""
        for turn in range(6):
            opened = open_both(*owners[:: 1 if turn % 2 else -1], at_once=turn < 4)
            for owner in opened:
                owner.ask("append", name, f"{turn} ")
            answers = [owner.answer_of() for owner in opened]
            (winner,) = [
                owner for owner, answer in zip(opened, answers, strict=True) if "ok" in answer
            ]
            errors = {answer["error"] for answer in answers if "error" in answer}
            assert errors <= {"NotPrimaryError", "AppendOutcomeUnknownError"}
            expected += f"{turn} "
            for owner in opened:
                if owner is not winner:
                    owner.ask("append", name, "too late ")
                    assert owner.error() == "NotPrimaryError"
            assert winner.do("read", name) == expected
            for owner in opened:
                owner.do("close")


def test_a_live_owner_is_left_alone_by_all_and_a_killed_one_is_followed_at_once(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name_in(0, 2)
    asking = {**options, "take_over": False}
    monkeypatch.setenv("SEGMENTSTORE_TIER1", options["tier1"])
    with Owner(tmp_path / "0", asking) as one, Owner(tmp_path / "1", asking) as other:
        one.ask_to_open()
        one.result()
        one.do("create", name)
        for command in (("create", "b"), ("append", "a"), ("gc",), ("rm", name)):
            refused = shell.segmentstore(command[0], tmp_path / "elsewhere", *command[1:])
            assert (
                refused.code,
                f"process {one.pid} on " in refused.err,
                "--take-over" in refused.err,
            ) == (
                4,
                True,
                True,
            )
        other.ask_to_open()
        assert other.error() == "ContainerOwnedError"
        assert one.do("append", name, "it is the owner still") == [0]
        listed = shell.segmentstore("log", tmp_path / "elsewhere", "--ledgers", "--json")
        owner = json.loads(listed.out.splitlines()[0])["owner"]
        assert (owner["pid"], owner["address"], bool(owner["host"] and owner["since"])) == (
            one.pid,
            "127.0.0.1",
            True,
        )
        one.kill()
        other.ask_to_open()  # at once: its session goes on, and its process is seen to be missing
        other.result()
        assert other.do("read", name) == "it is the owner still"
        taken = shell.segmentstore("create", tmp_path / "elsewhere", "b", "--take-over")
        assert taken.code == 0, taken.err
        other.ask("append", name, "too late")
        assert other.error() in {"NotPrimaryError", "AppendOutcomeUnknownError"}


def open_both(first: Owner, second: Owner, *, at_once: bool) -> list[Owner]:
    """The process that has the store open then; one that has not was notified that it is not the
    owner.

    At least one has.
    """
    opened = []
    first.ask_to_open()
    if not at_once:
        first.result()
        opened.append(first)
    second.ask_to_open()
    for owner in (first, second)[len(opened) :]:
        answer = owner.answer_of()
        if "ok" in answer:
            opened.append(owner)
        else:
            assert answer["error"] == "NotPrimaryError", answer
    assert opened if at_once else len(opened) == 2
    return opened
