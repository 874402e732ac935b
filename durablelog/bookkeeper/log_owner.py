"""The owner of a log, according to its record and a node beside it.

Pure. Formats: docs/formats/bookkeeper-log.md.

The record names the owner for people. The node is there as long as the owner's session with
ZooKeeper lives: by it other processes see whether the owner is alive. Neither decides who may
write: that is the record's epoch.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, NamedTuple

from segmentstore.contracts.processes import ProcessIdentity

_TEXT_MAX: Final = 5000
_VERSION: Final = 1


class LogOwner(NamedTuple):
    """The process that opened the log last."""

    host: str
    pid: int
    address: str
    """From which it speaks to ZooKeeper; empty if that is not known."""
    since: str
    """When it was opened, by its own clock: ISO 8601, UTC."""

    def __str__(self) -> str:
        address = f" ({self.address})" if self.address else ""
        return f"process {self.pid} on {self.host or 'an unknown host'}{address} since {self.since}"


class OwnerNode(NamedTuple):
    """What the node of a living owner holds."""

    owner: LogOwner
    place: str
    """As `ProcessIdentity.place`."""
    started: str
    folder: str
    """Which folder its store is in, as `folder_name` says it."""
    session_timeout_s: float

    @property
    def process(self) -> ProcessIdentity:
        """The owner's process."""
        return ProcessIdentity(self.owner.host, self.owner.pid, self.place, self.started)


def owner_path(owners: str, container_id: int, tag: str) -> str:
    """The node of the owner whose record is `written_by` this tag."""
    return f"{owners}/{container_id}-{tag}"


def folder_name(path: str, device: int, inode: int) -> str:
    """One name for each folder of a machine.

    The path alone means another folder in each container, and in each folder made anew.
    """
    return f"{path} (device {device:x}, inode {inode:x})"


def encode_owner_node(node: OwnerNode) -> bytes:
    """The node's bytes."""
    fields: dict[str, object] = {"version": _VERSION, **node.owner._asdict()}
    fields |= {name: value for name, value in node._asdict().items() if name != "owner"}
    return json.dumps(fields, ensure_ascii=False).encode(errors="replace")


def decode_owner_node(data: bytes) -> OwnerNode | None:
    """What a node holds; None of one that cannot be read: its owner is alive all the same."""
    try:
        fields: Any = json.loads(data)
        texts = {
            name: fields[name]
            for name in ("host", "address", "since", "place", "started", "folder")
        }
        pid, session_timeout_s = fields["pid"], float(fields["session_timeout_s"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    # NaN and infinity are words of Python's JSON: no wait for such a session would ever end.
    if not math.isfinite(session_timeout_s):
        return None
    if type(pid) is not int or not all(
        isinstance(text, str) and len(text) <= _TEXT_MAX for text in texts.values()
    ):
        return None
    owner = LogOwner(texts["host"], pid, texts["address"], texts["since"])
    return OwnerNode(owner, texts["place"], texts["started"], texts["folder"], session_timeout_s)
