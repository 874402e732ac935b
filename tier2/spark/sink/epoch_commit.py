"""How the rows of one epoch come into a segment whole and once, whatever becomes of tasks, drivers
and the store.

An epoch is a micro-batch of a stream, or a batch write. Its tasks only prepare. When all have
succeeded, the driver makes of the prepared rows ONE change of the segment, which carries the number
of the epoch as the event number of the writer. So it does not matter how often a task ran, or how
the rows were cut into tasks, this time and the time before.

- `write_partition`, in each attempt of a task: few bytes are handed to the driver, more are staged:
  appended to a transient segment with a name of the attempt's own.
- `commit_epoch`, in the driver: an append of what all tasks handed over, or a merge of one
  transient segment that holds everything, in the order of the partitions.
- `clear`: what attempts left behind whose epoch is committed, or that were given up.

Rules of this file: what is staged is named so that target, writer and epoch can be distinguished
from the name. It is deleted only when the target has that epoch, or by the task that staged it. A
later epoch is never made of an earlier one's pieces.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa

from segmentstore.contracts.errors import InvalidNameError, SegmentStoreError
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segments import NAME_BYTES_MAX
from tier2.spark.common.store_client import StoreClient, StoreNotServedError
from tier2.spark.sink.rows import RowLayout, pieces

INLINE_BYTES: Final = 256 << 10
"""What one task hands to the driver at most."""
PIECE_BYTES: Final = 1 << 20
"""About the size of one append to what is staged."""
STAGED_WAITING_BYTES: Final = 8 << 20
"""What one task holds for all it has staged, before it is enough for appends of that size."""
_STAGING = re.compile(r"(?s:(.+))#transient\.([0-9a-f]{32})([0-9a-f]{16})([0-9a-f]{32})\Z")
_NAMESPACE = uuid.UUID("6b1d4f0e-5a0c-5d0f-8e57-4d1f1c7b9a55")


class EpochCommitError(SegmentStoreError):
    """What tasks prepared is not there any more, or not what it was; nothing was appended.

    Run the epoch again.
    """


@dataclass(frozen=True, slots=True)
class WriteIdentity:
    """Whose rows these are."""

    writer_id: uuid.UUID
    epoch: int
    lasting: bool
    """Whether target segments remember the epoch, so that it lands once however often it is run.

    Costs each an attribute.
    """


def writer_id_of(query_id: str) -> uuid.UUID:
    """The writer id of a query, whatever its own id looks like."""
    return uuid.uuid5(_NAMESPACE, query_id)


class StagingName(NamedTuple):
    """What the name of a staged segment says."""

    target: str
    writer_id: uuid.UUID
    epoch: int


def staging_name(target: str, identity: WriteIdentity, unique: uuid.UUID) -> str:
    """The name of a transient segment in the target's container.

    Raises InvalidNameError if the target's has no room.
    """
    name = f"{staging_prefix(target, identity)}{identity.epoch:016x}{unique.hex}"
    over = len(name.encode()) - NAME_BYTES_MAX
    if over > 0:
        raise InvalidNameError(
            target,
            f"it is {over} bytes too long for a segment that more rows than fit one append go to",
        )
    return name


def staging_prefix(target: str, identity: WriteIdentity) -> str:
    """What the names of everything staged for a target by a writer begin with."""
    return f"{target}#transient.{identity.writer_id.hex}"


def parse_staging_name(name: str) -> StagingName | None:
    """None if it is not the name of a staged segment."""
    found = _STAGING.match(name)
    if found is None:
        return None
    return StagingName(found[1], uuid.UUID(found[2]), int(found[3], 16))


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """What one attempt of a task prepared for one segment: `data`, or the segment `staged`."""

    length: int
    data: bytes = b""
    staged: str = ""
    committed: bool = False
    """The segment had the epoch already: the rows were dropped."""


@dataclass(frozen=True, slots=True)
class TaskWritten:
    """What an attempt of a task reports."""

    partition: int
    attempt: int
    rows: int
    parts: Mapping[str, PreparedPart]


@dataclass(slots=True)
class CommittedEpoch:
    """What became of an epoch."""

    rows: int = 0
    bytes: int = 0
    """Appended now."""
    offsets: dict[str, int | None] = field(default_factory=dict)
    """Where the epoch begins in each segment; None where it was there already, or its place is not
    known any more.
    """


# --- in a task ----------------------------------------------------------------------------------


class _Outgoing:
    """A segment's bytes on their way out of one task."""

    __slots__ = ("committed", "event", "length", "size", "staged", "waiting")

    def __init__(self, *, committed: bool) -> None:
        self.waiting: list[bytes] = []
        self.size = 0
        """Of what waits."""
        self.length = 0
        self.staged = ""
        self.event = 0
        self.committed = committed

    def add(self, data: bytes) -> None:
        self.waiting.append(data)
        self.size += len(data)
        self.length += len(data)

    def take(self) -> bytes:
        data = self.waiting[0] if len(self.waiting) == 1 else b"".join(self.waiting)
        self.waiting.clear()
        self.size = 0
        return data


class _Task:
    def __init__(
        self, client: StoreClient, identity: WriteIdentity, runtime: Runtime, inline_bytes: int
    ) -> None:
        self._client = client
        self._identity = identity
        self._runtime = runtime
        self._inline_bytes = inline_bytes
        self.segments: dict[str, _Outgoing] = {}
        self._unstaged = 0
        """Bytes that wait in segments that are not staged."""
        self._staged_waiting = 0
        """The same of those that are."""

    async def add(self, segment: str, data: bytes) -> None:
        outgoing = self.segments.get(segment)
        if outgoing is None:
            outgoing = self.segments[segment] = _Outgoing(
                committed=await self._is_committed(segment)
            )
        if outgoing.committed:
            return
        outgoing.add(data)
        if outgoing.staged:
            self._staged_waiting += len(data)
            if outgoing.size >= PIECE_BYTES:
                await self.send(outgoing)
            if self._staged_waiting > STAGED_WAITING_BYTES:
                await self._send_the_largest()
            return
        self._unstaged += len(data)
        if self._unstaged > self._inline_bytes:
            await self._stage_the_largest()

    async def _is_committed(self, segment: str) -> bool:
        if not self._identity.lasting:
            return False
        last = await self._client.last_event(segment, self._identity.writer_id)
        return last is not None and last >= self._identity.epoch

    async def _stage_the_largest(self) -> None:
        """Until half of the bound is left, so that many small segments stay with the driver."""
        inline = [entry for entry in self.segments.items() if not entry[1].staged]
        for segment, outgoing in sorted(inline, key=lambda entry: entry[1].size, reverse=True):
            if self._unstaged <= self._inline_bytes // 2:
                return
            self._unstaged -= outgoing.size
            outgoing.staged = _new_name(segment, self._identity, self._runtime)
            await self._client.create(outgoing.staged)
            self._staged_waiting += outgoing.size
            await self.send(outgoing)

    async def _send_the_largest(self) -> None:
        """Until half of the bound is left: however many segments are staged, what waits for them is
        bounded.
        """
        staged = [outgoing for outgoing in self.segments.values() if outgoing.staged]
        for outgoing in sorted(staged, key=lambda each: each.size, reverse=True):
            if self._staged_waiting <= STAGED_WAITING_BYTES // 2:
                return
            await self.send(outgoing)

    async def send(self, outgoing: _Outgoing) -> None:
        writer_id = self._identity.writer_id
        self._staged_waiting -= outgoing.size
        for piece in _cut(outgoing.take(), min(PIECE_BYTES, self._client.append_bytes_max)):
            await self._client.send(outgoing.staged, writer_id, outgoing.event, piece)
            outgoing.event += 1


async def write_partition(
    client: StoreClient,
    identity: WriteIdentity,
    layout: RowLayout,
    batches: Iterable[pa.RecordBatch],
    *,
    runtime: Runtime,
    partition: int = 0,
    attempt: int = 0,
    inline_bytes: int = INLINE_BYTES,
) -> TaskWritten:
    """Prepare a task's rows; what it reports is durable.

    Raises what StoreClient does, InvalidArgumentError for bad rows.

    Holds `inline_bytes`, STAGED_WAITING_BYTES, one batch and the client's window. An attempt that
    fails deletes what it staged, if it can.
    """
    task = _Task(client, identity, runtime, inline_bytes)
    rows = 0
    try:
        for batch in batches:
            rows += batch.num_rows
            for segment, data in pieces(layout, batch):
                await task.add(segment, data)
        for outgoing in task.segments.values():
            if outgoing.staged:
                await task.send(outgoing)
        await client.settle()
    except Exception:
        await _delete_quietly(
            client, [outgoing.staged for outgoing in task.segments.values() if outgoing.staged]
        )
        raise
    return TaskWritten(
        partition,
        attempt,
        rows,
        {name: _part(outgoing) for name, outgoing in task.segments.items()},
    )


def _part(outgoing: _Outgoing) -> PreparedPart:
    if outgoing.committed:
        return PreparedPart(0, committed=True)
    if outgoing.staged:
        return PreparedPart(outgoing.length, staged=outgoing.staged)
    return PreparedPart(outgoing.length, outgoing.take() if outgoing.waiting else b"")


# --- in the driver ------------------------------------------------------------------------------


async def commit_epoch(
    client: StoreClient,
    identity: WriteIdentity,
    tasks: Sequence[TaskWritten],
    *,
    runtime: Runtime,
    create: bool = True,
) -> CommittedEpoch:
    """Append everything the tasks of an epoch prepared, each segment in one change, rows in the
    order of the partitions.

    `tasks` has the report of one attempt of every task. What they staged is used up by it. After a
    failure the epoch is run again, by new attempts; if the identity is lasting, segments that have
    it are then passed over. `create` makes segments that are not there. Raises EpochCommitError,
    and what StoreClient does.
    """
    ordered = sorted(tasks, key=lambda task: task.partition)
    if len({task.partition for task in ordered}) != len(ordered):
        partitions = [task.partition for task in ordered]
        raise EpochCommitError(
            f"two reports of one partition, of {partitions}: its rows would come twice"
        )
    committed = CommittedEpoch(rows=sum(task.rows for task in ordered))
    for segment in sorted({segment for task in ordered for segment in task.parts}):
        parts = [task.parts[segment] for task in ordered if segment in task.parts]
        offset, done = await _commit_in(client, identity, segment, parts, runtime, create=create)
        committed.offsets[segment] = offset
        committed.bytes += sum(part.length for part in parts) if done else 0
        if any(part.staged or part.committed for part in parts) or any(
            task.attempt for task in ordered
        ):
            # The segment has its rows: a write that failed now would be run again.
            with suppress(SegmentStoreError):
                await clear(client, identity, segment)
    return committed


async def _commit_in(
    client: StoreClient,
    identity: WriteIdentity,
    segment: str,
    parts: Sequence[PreparedPart],
    runtime: Runtime,
    *,
    create: bool,
) -> tuple[int | None, bool]:
    """Where the parts begin in the segment, and whether it was this call that appended them."""
    writer_id = identity.writer_id
    last = await client.last_event(segment, writer_id)
    if last is None and create:
        await client.create(segment)
    if identity.lasting:
        if last is not None and last >= identity.epoch:
            return None, False
        if any(part.committed for part in parts):
            raise EpochCommitError(
                f"segment {segment!r} had epoch {identity.epoch} and has it no more: it "
                "was deleted meanwhile"
            )
        length = sum(part.length for part in parts)
        if not any(part.staged for part in parts) and length <= client.append_bytes_max:
            offset = await client.append(
                segment, writer_id, identity.epoch, b"".join(part.data for part in parts)
            )
            return offset, offset is not None
    only = parts[0].staged if len(parts) == 1 else ""
    whole = only or _new_name(segment, identity, runtime)
    try:
        await _join(client, identity, segment, parts, whole)
        if identity.lasting:
            offset = await client.merge(segment, whole, writer_id, identity.epoch)
            return offset, offset is not None
        return await client.merge_once(segment, whole), True
    except StoreNotServedError:
        raise
    except SegmentStoreError:
        # The epoch is run again by new attempts, and no other attempt knows the name.
        await _delete_quietly(client, [whole])
        raise


async def _join(
    client: StoreClient,
    identity: WriteIdentity,
    segment: str,
    parts: Sequence[PreparedPart],
    name: str,
) -> None:
    """Have the transient segment `name` hold all parts, if it is not the only one.

    Each step is an event of its writer, done once when sent twice.
    """
    length = sum(part.length for part in parts)
    if len(parts) != 1 or not parts[0].staged:
        await client.create(name)
        writer_id, event = identity.writer_id, 0
        for part in parts:
            if part.staged:
                await client.merge(name, part.staged, writer_id, event)
                event += 1
                continue
            for piece in _cut(part.data, min(PIECE_BYTES, client.append_bytes_max)):
                await client.send(name, writer_id, event, piece)
                event += 1
        await client.settle()
    there = await client.describe(name)
    if there is None or there.length != length:
        found = "nothing is" if there is None else f"{there.length} are"
        raise EpochCommitError(
            f"tasks staged {length} bytes for segment {segment!r} in {name!r}, and {found} there"
        )


async def clear(client: StoreClient, identity: WriteIdentity, segment: str) -> None:
    """Delete what was staged for a segment by this writer, up to this epoch, which has landed."""
    for name in await client.names(staging_prefix(segment, identity)):
        parsed = parse_staging_name(name)
        if parsed is not None and parsed.target == segment and parsed.epoch <= identity.epoch:
            await client.delete(name)


async def give_up(client: StoreClient, tasks: Iterable[TaskWritten]) -> None:
    """Delete what tasks staged, of an epoch that will not land from it. Raises nothing of ours."""
    await _delete_quietly(
        client, [part.staged for task in tasks for part in task.parts.values() if part.staged]
    )


async def _delete_quietly(client: StoreClient, names: Iterable[str]) -> None:
    try:
        for name in names:
            await client.delete(name)
    except SegmentStoreError:
        pass  # the store is away, or refuses: a later epoch, or a person, finds them by their names


def _new_name(segment: str, identity: WriteIdentity, runtime: Runtime) -> str:
    return staging_name(
        segment, identity, uuid.UUID(int=runtime.random.getrandbits(128), version=4)
    )


def _cut(data: bytes, size: int) -> Iterable[bytes]:
    if len(data) <= size:
        return (data,) if data else ()
    return (data[start : start + size] for start in range(0, len(data), size))
