"""What a cluster's ZooKeeper knows of its bookies, as seen from outside.

A bookie serves once it has registered itself. The registration of a killed one stays until its
session expires, and the next one at the same address waits for that. So a process that knows of the
death removes it.
"""

from __future__ import annotations

import logging
import socket
from types import TracebackType
from typing import Any, Final, Self

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from durablelog.bookkeeper.cluster.settings import AVAILABLE, COOKIES, HOST, LEDGERS_ROOT, READ_ONLY
from durablelog.bookkeeper.zookeeper_nodes import end_session

_CONNECT_S: Final = 30.0
_ASK_S: Final = 1.0
_LOG = logging.getLogger("segmentstore.bookkeeper.cluster")
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False

CHECK_ERRORS: Final = (KazooException, KazooTimeoutError)
"""ZooKeeper did not answer."""


def zookeeper_answers(port: int) -> bool:
    """Whether a ZooKeeper on this machine takes requests by now."""
    try:
        with socket.create_connection((HOST, port), timeout=_ASK_S) as asked:
            asked.settimeout(_ASK_S)
            asked.sendall(b"ruok")
            return asked.recv(16) == b"imok"
    except OSError:
        return False


class Registrations:
    """A session with ZooKeeper, for one check or a few. A context manager; raises CHECK_ERRORS."""

    def __init__(self, port: int, **arguments: Any) -> None:
        """`arguments` are more of kazoo's: how it authenticates."""
        self._client: Any = KazooClient(
            f"{HOST}:{port}", timeout=_CONNECT_S, logger=_LOG, **arguments
        )

    def __enter__(self) -> Self:
        try:
            self._client.start(timeout=_CONNECT_S)
        except BaseException:
            end_session(self._client)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        end_session(self._client)

    def formatted(self) -> bool:
        """Whether the cluster's tree of nodes is there, whole."""
        # Both are made in one transaction with the rest, but a killed format of older servers left
        # pieces.
        return all(
            self._client.exists(f"{LEDGERS_ROOT}/{name}") is not None
            for name in ("LAYOUT", "INSTANCEID")
        )

    def remove_unfinished(self) -> None:
        """Remove a tree that a killed format left. Not one in which a bookie has ever been."""
        if self._client.exists(LEDGERS_ROOT) is None:
            return
        try:
            used = bool(self._client.get_children(COOKIES))
        except NoNodeError:
            used = False
        if not used:
            self._client.delete(LEDGERS_ROOT, recursive=True)

    def writable(self) -> set[str]:
        """Bookies that take entries."""
        return {name for name in self._children(AVAILABLE) if name != "readonly"}

    def read_only(self) -> set[str]:
        """Bookies that serve what they have and take nothing: their disks are full."""
        return set(self._children(READ_ONLY))

    def forget(self, bookie: str) -> None:
        """Remove what a dead bookie left of its registration."""
        for parent in (AVAILABLE, READ_ONLY):
            self._delete(f"{parent}/{bookie}")

    def forget_cookie(self, bookie: str) -> None:
        """Let another bookie with empty disks take over this address."""
        self._delete(f"{COOKIES}/{bookie}")

    def _children(self, path: str) -> list[str]:
        try:
            return list(self._client.get_children(path))
        except NoNodeError:
            return []

    def _delete(self, path: str) -> None:
        try:
            self._client.delete(path)
        except NoNodeError:
            pass  # as it should be
