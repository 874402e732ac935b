"""The supervisor of `serve --processes`, with small programs as its hosts and a gateway that is a
stand-in; and what the command refuses before it starts any.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.host_plans import HostPlan
from segmentstore.cli.host_supervisor import HostSupervisor
from segmentstore.contracts.runtime import Runtime
from tests.cli.shell import ROOT, segmentstore

DRAINS = """
trap 'echo drained >>"$0"; exit 0' TERM
echo serving
echo "$SECRET $OWN" >>"$0"
while :; do sleep 0.05; done
"""
"""A host: serves, then reports what it is given in a file, and drains by a signal."""


class StandInGateway:
    """Lasts until `end`."""

    environment: Mapping[str, str] = {"SECRET": "x"}

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._ending = asyncio.Event()

    async def start(self) -> None:
        self.calls.append("start")

    async def keep(self) -> None:
        await self._ending.wait()

    def end(self) -> None:
        self.calls.append("end")
        self._ending.set()


def plan(folder: Path, name: str, program: str) -> HostPlan:
    return HostPlan(name, ("/bin/sh", "-c", program, str(folder / name)), {"OWN": name})


def said(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def until_said(path: Path, text: str) -> None:
    async with asyncio.timeout(240):
        while True:
            if text in said(path):
                return
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("_terminal")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_hosts_run_until_a_signal_and_drain(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    async def main() -> None:
        gateway = StandInGateway()
        plans = [plan(tmp_path, name, DRAINS) for name in ("a-1", "a-2")]
        running = asyncio.ensure_future(HostSupervisor(plans, gateway, Runtime()).run())
        for name in ("a-1", "a-2"):
            await until_said(tmp_path / name, f"x {name}\n")
        assert gateway.calls == ["start"]
        os.kill(os.getpid(), number)
        assert await running == ExitCode.DONE
        assert gateway.calls == ["start", "end"]
        assert all(said(tmp_path / name).endswith("drained\n") for name in ("a-1", "a-2"))

    asyncio.run(main())
    assert capfd.readouterr().out == "serving\n" * 2


def test_the_end_of_a_terminal_is_ignored_behind_nohup(tmp_path: Path) -> None:
    async def main() -> None:
        supervisor = HostSupervisor([plan(tmp_path, "a-1", DRAINS)], StandInGateway(), Runtime())
        running = asyncio.ensure_future(supervisor.run())
        await until_said(tmp_path / "a-1", "x a-1\n")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        supervisor.end()
        assert await running == ExitCode.DONE

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_long_line_of_a_host_is_passed_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        long = DRAINS.replace("echo serving", "printf '%0200000d\\n' 7")
        supervisor = HostSupervisor([plan(tmp_path, "a-1", long)], StandInGateway(), Runtime())
        running = asyncio.ensure_future(supervisor.run())
        printed = ""
        while not printed.endswith("7\n"):
            await asyncio.sleep(0.01)
            printed += capfd.readouterr().out
        assert printed == "0" * 199_999 + "7\n"
        supervisor.end()
        assert await running == ExitCode.DONE

    asyncio.run(main())


def test_a_host_that_served_is_started_again(tmp_path: Path) -> None:
    async def main() -> None:
        plans = [
            plan(tmp_path, "a-1", "echo began >>$0; echo serving; exit 5"),
            plan(tmp_path, "a-2", DRAINS),
        ]
        supervisor = HostSupervisor(plans, StandInGateway(), Runtime())
        running = asyncio.ensure_future(supervisor.run())
        await until_said(tmp_path / "a-1", "began\n" * 2)
        await until_said(tmp_path / "a-2", "x a-2\n")
        supervisor.end()
        assert await running in (ExitCode.DONE, ExitCode.UNAVAILABLE)
        assert said(tmp_path / "a-2") == "x a-2\ndrained\n", "it was not disturbed"

    asyncio.run(main())


def test_the_exit_code_of_a_host_that_ends_as_it_is_signalled_is_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        for number in range(100):
            plans = [plan(tmp_path, f"a-{number}", "echo serving; echo began >>$0; exit 7")]
            supervisor = HostSupervisor(plans, StandInGateway(), Runtime())
            running = asyncio.ensure_future(supervisor.run())
            while not said(tmp_path / f"a-{number}"):  # noqa: ASYNC110 - at once, not soon
                await asyncio.sleep(0)
            supervisor.end()
            assert await running in (ExitCode.DONE, 7)

    asyncio.run(main())


def test_hosts_go_on_while_their_output_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # who writes all the same fails, and does not wait
    with os.fdopen(reading, "rb"), os.fdopen(writing, "w") as full:
        while select.select((), (writing,), (), 0)[1]:
            os.write(writing, b"x" * select.PIPE_BUF)
        monkeypatch.setattr(sys, "stderr", full)

        async def main() -> None:
            talks = "printf %0300000d 7 >&2; echo began >>$0; echo serving; exit 5"
            plans = [plan(tmp_path, "a-1", talks)]
            supervisor = HostSupervisor(plans, StandInGateway(), Runtime())
            running = asyncio.ensure_future(supervisor.run())
            await until_said(tmp_path / "a-1", "began\n" * 2)
            supervisor.end()
            assert await running in (ExitCode.DONE, 5)

        asyncio.run(main())


def test_what_hosts_say_comes_before_what_is_said_of_their_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        plans = [plan(tmp_path, "a-1", "echo why >&2; exit 2")]
        assert await HostSupervisor(plans, StandInGateway(), Runtime()).run() == ExitCode.USAGE

    asyncio.run(main())
    assert capfd.readouterr().err == "why\nsegmentstore: host a-1 ended with 2 before it served\n"


@pytest.mark.parametrize(("program", "code"), [("exit 2", 2), ("kill -KILL $$", 137)])
def test_a_host_that_never_served_ends_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], program: str, code: int
) -> None:
    async def main() -> None:
        late = "exec sleep 1000"
        plans = [plan(tmp_path, "a-1", late), plan(tmp_path, "a-2", program)]
        assert await HostSupervisor(plans, StandInGateway(), Runtime()).run() == code

    asyncio.run(main())
    assert "host a-2 ended with" in capfd.readouterr().err


@pytest.mark.parametrize("program", ["kill -TERM $$", "exit 0"])
def test_a_host_that_is_asked_to_end_before_it_serves_is_started_again(
    tmp_path: Path, program: str
) -> None:
    """Be it by the signal itself, or while it opened its store."""

    async def main() -> None:
        plans = [
            plan(tmp_path, "a-1", f"test -e $0 || {{ echo began >>$0; {program}; }}; {DRAINS}"),
            plan(tmp_path, "a-2", DRAINS),
        ]
        supervisor = HostSupervisor(plans, StandInGateway(), Runtime())
        running = asyncio.ensure_future(supervisor.run())
        for name in ("a-1", "a-2"):
            await until_said(tmp_path / name, f"x {name}\n")
        supervisor.end()
        assert await running == ExitCode.DONE
        assert said(tmp_path / "a-1") == "began\nx a-1\ndrained\n"

    asyncio.run(main())


def test_lines_of_two_hosts_do_not_mix(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        parts = "for _ in 1 2 3 4 5 6 7 8 9; do printf %s $OWN$OWN; sleep 0.01; done; echo"
        talks = DRAINS.replace("echo serving", f"{parts}; {{ {parts}; }} >&2")
        plans = [plan(tmp_path, name, talks) for name in ("a-1", "a-2", "a-3")]
        supervisor = HostSupervisor(plans, StandInGateway(), Runtime())
        running = asyncio.ensure_future(supervisor.run())
        for each in plans:
            await until_said(tmp_path / each.host_id, "x")
        supervisor.end()
        assert await running == ExitCode.DONE

    asyncio.run(main())
    printed = capfd.readouterr()
    expected = [name * 18 for name in ("a-1", "a-2", "a-3")]
    assert sorted(printed.out.splitlines()) == sorted(printed.err.splitlines()) == expected


def test_a_host_that_cannot_be_started_ends_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        plans = [HostPlan("a-1", (str(tmp_path / "none"),), {})]
        code = await HostSupervisor(plans, StandInGateway(), Runtime()).run()
        assert code == ExitCode.UNAVAILABLE

    asyncio.run(main())
    assert "host a-1 cannot be started: " in capfd.readouterr().err


def test_the_code_is_that_of_a_host_that_does_not_drain(tmp_path: Path) -> None:
    async def main() -> None:
        fails = DRAINS.replace("exit 0", "exit 5")
        plans = [plan(tmp_path, "a-1", DRAINS), plan(tmp_path, "a-2", fails)]
        supervisor = HostSupervisor(plans, StandInGateway(), Runtime())
        running = asyncio.ensure_future(supervisor.run())
        for name in ("a-1", "a-2"):
            await until_said(tmp_path / name, "x")
        supervisor.end()
        supervisor.end()
        assert await running == ExitCode.UNAVAILABLE

    asyncio.run(main())


def test_a_process_ends_with_its_parent_however_that_ends() -> None:
    """Also one that asks too late, when another process is its parent."""
    child = (
        "import os, signal, sys\n"
        "from segmentstore.contracts.processes import end_with_parent\n"
        "end_with_parent(int(sys.argv[1]))\n"
        "print(os.getpid(), flush=True)\n"
        "signal.pause()\n"
    )
    parent = (
        "import os, signal, subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())])\n"
        "signal.pause()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent, child], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        watched = os.pidfd_open(int(process.stdout.readline()))
    process.kill()
    process.wait()
    try:
        assert select.select([watched], [], [], 60)[0]
    finally:
        os.close(watched)
    orphan = [sys.executable, "-c", child, "1" if os.getpid() != 1 else "2"]
    ended = subprocess.run(orphan, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, b"")


WIRE = ("--wire", "127.0.0.1:9090")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((*WIRE,), "it needs --host and --wire"),
        (("--host", "a"), "it needs --host and --wire"),
        (
            ("--host", "a", *WIRE, "--controller", "127.0.0.1:9091"),
            "the ports of --wire, of --controller",
        ),
        (("--host", "a", *WIRE), "SEGMENTSTORE_TIER1 names one"),
    ],
)
def test_what_is_missing_is_said_before_a_host_starts(
    tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    refused = segmentstore("serve", tmp_path / "s", "--processes", 2, "--create", *options)
    assert refused.code == ExitCode.USAGE
    assert why in " ".join(refused.err.replace("│", " ").split())
    assert not (tmp_path / "s").exists()


def test_a_store_has_no_hosts_in_it(tmp_path: Path) -> None:
    assert segmentstore("create", tmp_path / "s", "x").code == ExitCode.DONE
    refused = segmentstore("serve", tmp_path / "s", "--processes", 2, "--host", "a", *WIRE)
    assert (refused.code, "is a store itself" in refused.err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("store", "why"),
    [
        ("127.0.0.1:9", "it is a cluster"),
        ("zookeeper://127.0.0.1:1/one", "it is a cluster"),
        ("bookkeeper://127.0.0.1:1/one", "it is a folder of this machine"),
        ("a-file", "a-file is no folder"),
    ],
)
def test_hosts_have_folders_below_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").write_text("")
    refused = segmentstore("serve", store, "--processes", 2, "--create", "--host", "a", *WIRE)
    assert refused.code == ExitCode.USAGE, refused
    assert why in refused.err
    assert [each.name for each in tmp_path.iterdir()] == ["a-file"]
