"""MetadataNode: a small piece of shared state that is changed by compare-and-set alone: a ZooKeeper
node.

Proved by tests/contracts/metadata_node_contract.py. Rules:

- versions count up by one with each write of a node's lifetime; the first is 0;
- `write` happens only if the version is still the one given: of two who write at the same version
  one wins;
- a node that is held (`hold`) is there as long as its holder's session. It is deleted when that has
  ended: at once with `close`, a while after the death of the process. A living holder that lost its
  session gets the node back in the next one, with the data it gave last;
- a change of a watched node is reported after it, never missed: also one made while there was no
  connection, or no session. Several changes may be one call, and calls may be spurious;
- candidates lead in the order in which they asked. Leadership ends with the session, which a client
  that is stopped or cut off notices late: for a while two may believe that they lead. What a leader
  decides it writes with `write`, at the version that it read, and never on its belief alone;
- a `NodeUnavailableError` of `create` or `write` leaves open whether it happened: a caller that
  needs to know reads again, and must be able to recognise its own bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple


class NodeConflictError(Exception):
    """The node is not (or no longer) in the version given, or exists already; nothing was
    changed.
    """

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path


class NodeUnavailableError(Exception):
    """The service did not answer in time. A change may have happened or not."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.detail = detail


class NodeRefusedError(Exception):
    """The service refuses it: credentials or access rights. Trying again does not help."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.detail = detail


class NodeContent(NamedTuple):
    """What a node holds."""

    data: bytes
    version: int


class NodeWatch(ABC):
    """A watch of one node. It stands until it is cancelled, or its client closed."""

    @abstractmethod
    def cancel(self) -> None:
        """End it; no call comes behind this one. Idempotent."""


class MetadataNodes(ABC):
    """A tree of nodes with one client's session. Paths begin with "/". On one event loop."""

    @abstractmethod
    async def read(self, path: str) -> NodeContent | None:
        """None if there is no such node.

        Linearizable: sees every change that was acknowledged to any client before.
        """

    @abstractmethod
    async def create(self, path: str, data: bytes, *, parents: bool = True) -> int:
        """Make a node; its version, 0. Raises NodeConflictError if it is there.

        With `parents` those are made as needed, empty; without it, NodeConflictError if the one
        above is not there.
        """

    @abstractmethod
    async def write(self, path: str, data: bytes, version: int) -> int:
        """Change a node that is in this version; the version it is in then.

        Raises NodeConflictError, also if it is missing.
        """

    @abstractmethod
    async def delete(self, path: str, version: int) -> None:
        """Remove a node that is in this version and has no children.

        Raises NodeConflictError; nothing happens if it is missing.
        """

    @abstractmethod
    async def children(self, path: str) -> Sequence[str]:
        """Names (not paths) of a node's children, sorted; none if there is no such node."""

    @abstractmethod
    async def hold(self, path: str, data: bytes) -> None:
        """Have a node as long as our sessions last, parents as needed.

        No other client ever creates `path`. A node there of an earlier session, of this process or
        of one before it, is replaced.

        Again with other data, it is written in place: one change in the service. Again with the
        same, nothing is changed, also after a NodeUnavailableError. After any error the node is
        wanted all the same: the next session has it with the newest data.
        """

    @abstractmethod
    async def release(self, path: str) -> None:
        """Remove a node that is held, and hold it no more; nothing happens if it is missing."""

    @abstractmethod
    def watch(self, path: str, changed: Callable[[], object]) -> NodeWatch:
        """Have `changed` called after each change of this node: it is created, written or deleted,
        or a child of it comes or goes. What a child holds is reported by a watch of the child.

        It is called on this loop, in a turn of its own. The first call comes once the watch stands,
        so that a read behind each call misses nothing; later ones also with each new connection.
        What it raises goes to the loop's exception handler. A change costs up to two small reads
        for each node that is watched, and so does a new connection.

        Raises NodeUnavailableError if the client is closed. A service that is away, or refuses the
        client, is asked again, and only delays the calls.
        """

    @abstractmethod
    async def lead(
        self, path: str, identity: str, ended: Callable[[], object] | None = None
    ) -> None:
        """Return when this client leads the election at `path`, behind those that asked before.

        `identity` is for people: it is the content of the candidate's node, a child of `path`.
        `ended` is called once, on this loop, when the leadership ends otherwise than by `resign` or
        `close`. Either the session has ended, or the connection is lost, and whether the session
        lives is unknown. Then call this again, or `resign`: a session that lived has kept its
        place.

        Cancelled, it withdraws. A service that is away is waited for. Raises NodeRefusedError;
        NodeUnavailableError if the client is closed or resigns meanwhile; ValueError for a second
        call while one waits, and for another identity than the one before without `resign`.
        """

    @abstractmethod
    def leads(self, path: str) -> bool:
        """Whether `lead` has returned and its leadership has not ended, as far as is known here."""

    @abstractmethod
    async def resign(self, path: str) -> None:
        """Lead no more, and be no candidate; nothing happens if we are none.

        `leads` is False at once. Returns when others can lead, as late as the service answers.
        Cancelled, it goes on by itself. Raises NodeUnavailableError if the client is closed first.
        """

    async def address(self) -> str:
        """From which this client speaks to the service, for people; empty if that is not known."""
        return ""

    @abstractmethod
    async def close(self) -> None:
        """End the session. Idempotent."""

    # Where nothing outlives the event loop, nothing is to do.
    def abandon(self) -> None:  # noqa: B027
        """End the session of an owner whose event loop is closed; it is not used again.

        Blocks as `close` does; on any thread. Idempotent.
        """

    def health(self) -> str | None:
        """What is wrong with the session, a sentence for people; None when all is well."""
        return None
