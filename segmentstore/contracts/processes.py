"""The identity of a process, so that others can know whether it still runs: for people, and for the
presence of owners.

Nothing that must be right depends on it: what keeps two owners apart is the log's fence.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import signal
from typing import Final, NamedTuple, Protocol

from segmentstore.contracts import forks

_HOST_CHARACTERS_MAX: Final = 255
_PID_NAMESPACE: Final = "/proc/self/ns/pid"
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_PARENT_DEATH_SIGNAL: Final = 1
"""Linux's number of this option of prctl."""
_STARTED: Final = 19
"""Place of the start time in /proc/<pid>/stat, counted from the state behind the name."""


class ProcessIdentity(NamedTuple):
    """One process."""

    host: str
    """The machine's name, for people."""
    pid: int
    place: str
    """Where its number means it: another one on each machine, after each boot, and in each
    namespace of numbers.
    """
    started: str
    """When it was started, in the words of its machine: numbers are given again.

    Empty if that is not known.
    """


class Processes(Protocol):
    """The processes of this machine."""

    def me(self) -> ProcessIdentity:
        """The calling process."""

    def is_alive(self, identity: ProcessIdentity) -> bool | None:
        """Whether a process still runs; None if that cannot be known from here."""


class SystemProcesses:
    """The operating system's. Reads two or three small files of /proc."""

    def me(self) -> ProcessIdentity:
        pid = forks.process_id
        host = os.uname().nodename[:_HOST_CHARACTERS_MAX]
        state = _state(pid)
        return ProcessIdentity(host, pid, _place(), state[_STARTED] if state is not None else "")

    def is_alive(self, identity: ProcessIdentity) -> bool | None:
        if identity.place != _place() or not identity.place:
            return None
        try:
            os.kill(identity.pid, 0)
        except ProcessLookupError:
            return False
        except (PermissionError, OverflowError):
            pass  # PermissionError: it is there, of another user
        state = _state(identity.pid)
        if state is None:
            return None
        if state[0] in {"Z", "X"}:
            return False
        return not identity.started or state[_STARTED] == identity.started


def end_with_parent(parent: int) -> None:
    """Have the system kill this process by SIGKILL when `parent`, the process that started it,
    ends, in whatever way; at once if it has ended already.

    Children of this process do not inherit that. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _place() -> str:
    """Empty where it cannot be known."""
    try:
        parts = (pathlib.Path(_BOOT_ID).read_text(), str(pathlib.Path(_PID_NAMESPACE).readlink()))
    except OSError:
        return ""
    return hashlib.blake2b("/".join(parts).encode(), digest_size=16).hexdigest()


def _state(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the state on; the name before it may hold blanks and
    brackets.
    """
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > _STARTED else None
