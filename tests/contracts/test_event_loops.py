"""The loops that the engine makes for itself."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing

import pytest

from segmentstore.contracts import event_loops, forks

_KIND = """
import asyncio
from segmentstore.contracts import event_loops
async def work():
    print(type(asyncio.get_running_loop()).__mro__[1].__module__)
event_loops.run(work())
"""


def kind_of_loop(options: Sequence[str] = (), **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, *options, "-c", _KIND],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()


def test_uvloop_is_used_where_it_is_installed() -> None:
    assert kind_of_loop() == "uvloop"


@pytest.mark.parametrize(
    ("options", "environment"), [(["-X", "dev"], {}), ([], {"PYTHONASYNCIODEBUG": "1"})]
)
def test_the_debug_mode_of_asyncio_has_its_own_loop(
    options: list[str], environment: dict[str, str]
) -> None:
    assert kind_of_loop(options, **environment).startswith("asyncio")


def test_without_uvloop_it_is_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loops, "has_uvloop", lambda: False)
    loop = asyncio.SelectorEventLoop()
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: loop)
    with closing(loop):
        assert event_loops.new_event_loop() is loop


def test_the_clock_goes_on_within_a_turn() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        until = time.monotonic() + 1e-6
        while time.monotonic() < until:
            pass
        assert began < loop.time() < began + 60
        due = loop.time() + 0.001
        called = loop.create_future()
        loop.call_at(due, called.set_result, None)
        await called
        assert loop.time() >= due - 0.001

    with asyncio.Runner(loop_factory=event_loops.new_uvloop) as runner:
        runner.run(work())


def test_signals_are_pythons_again_when_the_loop_has_ended() -> None:
    before = signal.getsignal(signal.SIGINT)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGUSR2):
            loop.add_signal_handler(number, loop.stop)

    try:
        with asyncio.Runner(loop_factory=event_loops.new_uvloop) as runner:
            runner.run(work())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_released_descriptor_is_the_parents_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        kept = ours.dup()
        forks.release_descriptor(ours.fileno())
        with pytest.raises(OSError, match="socket"):
            ours.send(b"x")
        with kept:
            kept.send(b"y")
        assert theirs.recv(2) == b"y"
        # No process has the connection any more.
        assert theirs.recv(2) == b""
