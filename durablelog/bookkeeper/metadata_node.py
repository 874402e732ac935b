"""MetadataNode: a small piece of shared state that is changed by compare-and-set alone: a ZooKeeper
node.

Proved by tests/contracts/metadata_node_contract.py. Rules:

- versions count up by one with each write of a node's lifetime; the first is 0;
- `write` happens only if the version is still the one given: of two who write at the same version
  one wins;
- a node that is held (`hold`) is there as long as its holder's session. It is deleted when that has
  ended: at once with `close`, a while after the death of the process. A living holder that lost its
  session gets the node back in the next one;
- a `NodeUnavailableError` of `create` or `write` leaves open whether it happened: a caller that
  needs to know reads again, and must be able to recognise its own bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
    """The service does not let us: credentials or access rights. Trying again does not help."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.detail = detail


class NodeContent(NamedTuple):
    """What a node holds."""

    data: bytes
    version: int


class MetadataNodes(ABC):
    """A tree of nodes with one client's session. Paths begin with "/". On one event loop."""

    @abstractmethod
    async def read(self, path: str) -> NodeContent | None:
        """None if there is no such node.

        Linearizable: sees every change that was acknowledged to anybody before.
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
        """Have a node as long as our sessions lasts, parents as needed.

        `path` is ours alone: nobody else ever makes it.

        Again after a NodeUnavailableError: it is made once.
        """

    @abstractmethod
    async def release(self, path: str) -> None:
        """Remove a node that is held, and hold it no more; nothing happens if it is missing."""

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
