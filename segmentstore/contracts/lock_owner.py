"""What a lock file says of the holder of the lock: for people alone.

The operating system decides which process has it.

Written by the owner once it has the lock, as well as that goes: on a full disk the file is empty,
and the lock is as good. Another host's clock, a crash or a hand may have made every word of it
untrue.
"""

from __future__ import annotations

import errno
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from segmentstore.contracts import forks

OWNER_BYTES_MAX: Final = 1024
_ANOTHER: Final = "another process has it open"
_SHOWN_MAX: Final = 200


class LockedError(BlockingIOError):
    """The lock is held; `owner` names the holder, as far as it is known."""

    def __init__(self, path: str, owner: str) -> None:
        super().__init__(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        self.owner = owner


def owner_of(error: BlockingIOError) -> str:
    """The holder of what could not be locked, as a sentence."""
    return error.owner if isinstance(error, LockedError) else _ANOTHER


def render_owner(since: float) -> bytes:
    """What this process writes; `since` is in seconds since 1970 UTC.

    Of the command no arguments: there may be secrets.
    """
    moment = datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
    fields = {"pid": forks.process_id, "host": _host(), "since": moment, "command": _command()}
    text = "".join(f"{name} {_printable(str(value))}\n" for name, value in fields.items())
    return text.encode(errors="replace")


def describe_owner(content: bytes, *, ours: bool) -> str:
    """A sentence of what is in the file. `ours`: it is this process that has the lock."""
    lines = content[:OWNER_BYTES_MAX].decode(errors="replace").splitlines()
    fields = {name: _printable(value) for name, _, value in (line.partition(" ") for line in lines)}
    since = f" since {fields['since']}" if fields.get("since") else ""
    if ours:
        return f"this process has it open{since}: close it there first"
    if not fields.get("pid", "").isdecimal():
        return _ANOTHER
    command = f" ({fields['command']})" if fields.get("command") else ""
    host = f" on {fields['host']}" if fields.get("host") else ""
    return f"process {fields['pid']}{command}{host} has it open{since}"


def _host() -> str:
    return os.uname().nodename


def _command() -> str:
    program = sys.argv[0] if sys.argv else ""
    return " ".join(Path(part).name for part in (sys.executable, program) if part)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)[:_SHOWN_MAX]
