"""The identity of a process, and whether it is alive, on the real system."""

from __future__ import annotations

import os
import subprocess
import sys

from segmentstore.contracts.processes import ProcessIdentity, SystemProcesses

ME = (
    "from segmentstore.contracts.processes import SystemProcesses; "
    "print(repr(tuple(SystemProcesses().me())))"
)


def test_a_process_knows_itself_and_others_of_its_machine_dead_or_alive() -> None:
    processes = SystemProcesses()
    me = processes.me()
    assert (me.host, me.pid) == (os.uname().nodename, os.getpid())
    assert me.place
    assert me.started
    assert processes.is_alive(me) is True
    assert processes.me() == me
    command = [sys.executable, "-c", f"{ME}; import sys; sys.stdout.flush(); sys.stdin.read()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        host, pid, place, started = eval(child.stdout.readline())
        there = ProcessIdentity(host, pid, place, started)
        assert (there.pid, there.place) == (child.pid, me.place)
        assert processes.is_alive(there) is True
        assert processes.is_alive(there._replace(started="1")) is False
        assert processes.is_alive(there._replace(place="another machine")) is None
        assert processes.is_alive(there._replace(place="")) is None
        child.kill()
        # A zombie first: its parent has not waited for it.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert processes.is_alive(there) is False
        child.wait()
        assert processes.is_alive(there) is False


def test_another_process_that_is_not_ours_to_signal_is_alive() -> None:
    processes = SystemProcesses()
    assert processes.is_alive(processes.me()._replace(pid=1, started="")) is True
