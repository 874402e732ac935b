"""Presence of owners: a process that opens a log announces itself, and asks before it takes the log
from a living owner.

Safety does not rest on this: a process that claims the record fences all before it. Rules of this
file:

- an owner holds a node that goes with its session with ZooKeeper, from before its claim until its
  log is closed. Nothing is written to show that it is alive;
- an owner whose node is missing, or that is known to be dead on this very machine, is followed
  without asking. So is the one before in our own folder: we have the folder's lock, so it has lost
  it;
- one that is known to be alive here is not: ContainerOwnedError at once. Of one that cannot be seen
  from here (another machine) the end of the session is waited for first: it may have died a moment
  ago;
- an owner that said nothing of itself (a version before this) is followed.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final

from durablelog.bookkeeper.log_metadata import LogMetadata
from durablelog.bookkeeper.log_owner import (
    LogOwner,
    OwnerNode,
    decode_owner_node,
    encode_owner_node,
    owner_path,
)
from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeConflictError,
    NodeRefusedError,
    NodeUnavailableError,
)
from durablelog.bookkeeper.waiting import FIRST_S
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import ConfigError, ContainerOwnedError
from segmentstore.contracts.runtime import Runtime

_log = logging.getLogger(__name__)

SESSIONS_WAITED: Final = 1.5
"""How long the end of another owner's session is waited for, in session timeouts; and EXTRA_S more:
servers count in ticks.
"""
EXTRA_S: Final = 2.0
SESSION_TIMEOUT_S_MAX: Final = 600.0
"""Longest that is believed of another's node."""
_CHECK_S: Final = 1.0
_LEAVE_S: Final = 2.0


class OwnerPresence:
    """Of one opening of a store, for all of its logs.

    `owners` is the node below which living owners have theirs, `location` the store's URL for
    messages, `folder` the `folder_name` of the store's folder, whose lock is ours. `take_over`: do
    not ask.
    """

    def __init__(
        self,
        nodes: MetadataNodes,
        owners: str,
        runtime: Runtime,
        *,
        location: str,
        folder: str,
        session_timeout_s: float,
        take_over: bool,
    ) -> None:
        self._nodes = nodes
        self._owners = owners
        self._runtime = runtime
        self._location = location
        self._folder = folder
        self._session_timeout_s = session_timeout_s
        self._take_over = take_over

    async def ask(self, record: LogMetadata) -> None:
        """Return when the owner of the record may be followed.

        Raises ContainerOwnedError, ConfigError, NodeUnavailableError.

        Takes as long as the session of an owner elsewhere that does not end, and half of that more.
        """
        if self._take_over or record.owner is None:
            return
        loop = asyncio.get_running_loop()
        begun, backoff = loop.time(), Backoff(self._runtime.random, min_s=FIRST_S, max_s=_CHECK_S)
        path = owner_path(self._owners, record.container_id, record.written_by)
        while (content := await self._read(path)) is not None:
            there = decode_owner_node(content)
            if there is not None and self._is_followed(there):
                return
            waited_s = loop.time() - begun
            session_s = min(
                there.session_timeout_s if there is not None else 0.0, SESSION_TIMEOUT_S_MAX
            )
            most_s = max(session_s, self._session_timeout_s) * SESSIONS_WAITED + EXTRA_S
            if there is not None and self._runtime.processes.is_alive(there.process):
                raise self._owned(record, record.owner)
            if waited_s >= most_s:
                raise self._owned(
                    record, record.owner, f"its session did not end within {waited_s:.0f} s"
                )
            if not waited_s:
                text = (
                    "container %d of %s: %s may live: waiting up to %.0f s for the end of "
                    "its session"
                )
                _log.warning(text, record.container_id, self._location, record.owner, most_s)
            await asyncio.sleep(backoff.next_s())

    async def announce(self, container_id: int, tag: str) -> LogOwner:
        """Be visible as alive, from now on, as the owner whose record is written by this tag; our
        identity.

        Raises NodeUnavailableError: again, it is done once; ConfigError.
        """
        me = self._runtime.processes.me()
        since = datetime.fromtimestamp(self._runtime.clock.time_ms() // 1000, UTC).isoformat()
        owner = LogOwner(me.host, me.pid, await self._nodes.address(), since)
        node = OwnerNode(owner, me.place, me.started, self._folder, self._session_timeout_s)
        try:
            await self._nodes.hold(
                owner_path(self._owners, container_id, tag), encode_owner_node(node)
            )
        except NodeRefusedError as error:
            raise ConfigError("tier1", str(error)) from error
        return owner

    async def leave(self, container_id: int, tag: str) -> None:
        """Be seen no more. What does not succeed soon ends with the session."""
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._nodes.release(owner_path(self._owners, container_id, tag))
        except (NodeUnavailableError, NodeRefusedError, NodeConflictError, TimeoutError):
            pass

    def _is_followed(self, there: OwnerNode) -> bool:
        me, processes = self._runtime.processes.me(), self._runtime.processes
        if processes.is_alive(there.process) is False:
            return True
        return bool(me.place) and (there.place, there.folder) == (me.place, self._folder)

    async def _read(self, path: str) -> bytes | None:
        try:
            content = await self._nodes.read(path)
        except NodeRefusedError as error:
            raise ConfigError("tier1", str(error)) from error
        return content.data if content is not None else None

    def _owned(self, record: LogMetadata, owner: LogOwner, detail: str = "") -> ContainerOwnedError:
        return ContainerOwnedError(
            self._location, record.container_id, **owner._asdict(), detail=detail
        )
