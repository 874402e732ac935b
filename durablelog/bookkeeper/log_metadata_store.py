"""Keeps a container's record: reads it, changes it by compare-and-set, and says whether it is still
ours.

The node decides ownership, and nothing else does. Rules of this file:

- what follows on each answer of the node is in failure_codes.py, NODE_REACTIONS;
- each write has bytes of its own (tag of the opening, counter). So a write whose reply was lost is
  recognised when the node is read again; nothing else is done before that;
- a writing that may still be under way after we gave up on it can only make a later compare-and-set
  fail, which reads again;
- a record of another epoch is another owner's, whatever it says. A record of our epoch that we did
  not write was changed by a tool: it is taken as it is, and what we wanted is done to that;
- one change at a time; what is asked for meanwhile waits;
- each sight of the record as ours is dated by the moment the call *began*: at some time after that
  it was ours.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from durablelog.bookkeeper.log_metadata import (
    LogDisabledError,
    LogMetadata,
    decode_record,
    encode_record,
)
from durablelog.bookkeeper.log_owner import LogOwner
from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeConflictError,
    NodeContent,
    NodeRefusedError,
)
from segmentstore.contracts.errors import ConfigError, NotPrimaryError

_CLAIM_TRIES: Final = 32
"""A claim begins again if a living owner changes the record meanwhile, which happens once in a
ledger, or in a truncation.
"""
_CHANGE_TRIES: Final = 32
"""People with tools do not change a record so often."""


class LogMetadataStore:
    """The record of the node at `path`, for one opening whose tag is `tag`.

    Every call that needs the node raises NodeUnavailableError (try again: nothing is lost by that),
    NotPrimaryError or LogDisabledError. It raises DataCorruptionError if what lies there is no
    record, and ConfigError for missing rights, a newer format or another store's record.
    """

    def __init__(
        self, nodes: MetadataNodes, path: str, store_id: str, container_id: int, tag: str
    ) -> None:
        self._nodes = nodes
        self._path = path
        self._store_id = store_id
        self._container_id = container_id
        self._tag = tag
        self._changing = asyncio.Lock()
        self._version: int | None = None
        self._changes = 0
        self._in_doubt: bytes | None = None
        self.record = LogMetadata(store_id=store_id, container_id=container_id)
        """As last seen; after `claim` always one of our epoch."""
        self._data: bytes | None = None
        """Of `record`; None before the claim."""
        self.foreign: LogMetadata | None = None
        """The record which showed that this process is not the owner any more."""
        self._seen_s = -math.inf

    @property
    def size(self) -> int:
        """Bytes of the record as it was last written or read; 0 before the claim."""
        return len(self._data or b"")

    @property
    def path(self) -> str:
        """Of the node."""
        return self._path

    async def claim(
        self,
        epoch_min: int,
        owner: LogOwner | None = None,
        ask: Callable[[LogMetadata], Awaitable[None]] | None = None,
    ) -> None:
        """Make the record ours: one epoch higher, at least `epoch_min`.

        No earlier owner can change it any more.

        `owner` is our identity; `ask` is called with each record that is to be claimed, and raises
        if it must not be claimed. Also after a NodeUnavailableError from an earlier call:
        recognises what that one did.
        """
        async with self._changing:
            for _ in range(_CLAIM_TRIES):
                content = await self._read()
                if content is not None and content.data == self._in_doubt:
                    self._take(content)
                    return
                self._in_doubt = None
                there = self._decoded(content) if content is not None else None
                if there is not None and ask is not None:
                    await ask(there)
                version = content.version if content is not None else None
                record = there or LogMetadata(
                    store_id=self._store_id, container_id=self._container_id
                )
                try:
                    await self._write(record.claimed(epoch_min, owner), version)
                except NodeConflictError:
                    continue
                return
        raise NotPrimaryError(self._container_id, "its log is being opened by others all the time")

    @property
    def age_s(self) -> float:
        """Seconds, at most, since the record was ours: since the last check of it, or change of it,
        began that succeeded.
        """
        return asyncio.get_running_loop().time() - self._seen_s

    async def check(self) -> None:
        """Raise NotPrimaryError if another owner has claimed the record by now."""
        async with self._changing:
            await self._refresh()

    async def change(self, edit: Callable[[LogMetadata], LogMetadata]) -> None:
        """Make `edit(record)` the record. It may be called several times, and must not await.

        After a NodeUnavailableError the change may have happened, or may happen yet; a second
        `change` finds out first. So an edit must do no harm if it is done twice.
        """
        async with self._changing:
            for _ in range(_CHANGE_TRIES):
                if self._in_doubt is not None:
                    await self._refresh()
                before = self.record
                wanted = edit(before)
                if wanted == before:
                    return
                try:
                    await self._write(wanted, self._version)
                except NodeConflictError:
                    await self._refresh()
                    continue
                return
        raise NotPrimaryError(
            self._container_id, "its record is being changed by others all the time"
        )

    def surely_unlisted(self, ledger_id: int) -> bool:
        """True if it is proven that a ledger of ours did not get into the log, and never will.
        Another owner's record follows one without it, so any write of ours that is still under way
        comes too late.
        """
        record = self.foreign
        if record is None or record.epoch < self.record.epoch:
            return False
        return not record.names(ledger_id)

    # --- with the lock held -----------------------------------------------------------------------

    async def _refresh(self) -> None:
        """Read, and take what is ours."""
        begun_s = asyncio.get_running_loop().time()
        content = await self._read()
        if content is None:
            raise NotPrimaryError(self._container_id, f"its record {self._path} is missing")
        # Most often nothing has changed, and a long one takes the event loop long to decode.
        record = self.record if content.data == self._data else self._decoded(content)
        if record.epoch != self.record.epoch:
            self.foreign = record
            raise NotPrimaryError(
                self._container_id,
                f"its record is of epoch {record.epoch}, we are {self.record.epoch}",
            )
        self._in_doubt = None
        self.record, self._version, self._seen_s = record, content.version, begun_s
        self._data = content.data

    async def _write(self, wanted: LogMetadata, version: int | None) -> None:
        """One compare-and-set.

        Raises NodeConflictError if it did not happen, NodeUnavailableError if that is unknown.
        """
        self._changes = max(self._changes, wanted.change) + 1
        wanted = replace(wanted, written_by=self._tag, change=self._changes)
        data = encode_record(wanted)
        self._in_doubt = data
        begun_s = asyncio.get_running_loop().time()
        try:
            if version is None:
                after = await self._nodes.create(self._path, data)
            else:
                after = await self._nodes.write(self._path, data, version)
        except NodeConflictError:
            # An adapter may send a writing again by itself after a lost connection: the conflict
            # may be with ourselves.
            content = await self._read()
            if content is None or content.data != data:
                self._in_doubt = None
                raise
            after = content.version
        except NodeRefusedError as error:
            self._in_doubt = None
            raise self._refused(error) from error
        self._in_doubt = None
        self.record, self._version, self._seen_s = wanted, after, begun_s
        self._data = data

    async def _read(self) -> NodeContent | None:
        try:
            return await self._nodes.read(self._path)
        except NodeRefusedError as error:
            raise self._refused(error) from error

    def _take(self, content: NodeContent) -> None:
        self.record, self._version = self._decoded(content), content.version
        self._data, self._in_doubt = content.data, None

    def _decoded(self, content: NodeContent) -> LogMetadata:
        record = decode_record(content.data, self._path)
        if record.store_id != self._store_id or record.container_id != self._container_id:
            ours = f"container {self._container_id} of store {self._store_id}"
            theirs = f"container {record.container_id} of store {record.store_id}"
            raise ConfigError("tier1", f"{self._path} holds the log of {theirs}, not of {ours}")
        if not record.enabled:
            raise LogDisabledError(self._container_id, self._path)
        return record

    def _refused(self, error: NodeRefusedError) -> ConfigError:
        return ConfigError(
            "tier1", f"the record {self._path} of container {self._container_id}: {error.detail}"
        )
