"""Tables and segments in memory, with real semantics and a process that can die at any call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from sortedcontainers import SortedDict

from segmentstore.contracts.errors import (
    BadOffsetError,
    SegmentNotFoundError,
    SegmentSealedError,
    TierUnavailableError,
)
from segmentstore.controller.metadata_tables import (
    ANY_VERSION,
    NO_ROW,
    MetadataRow,
    RowConflictError,
)
from segmentstore.controller.segment_actions import SegmentState
from segmentstore.controller.stream_model import ScalingPolicy


class CrashError(Exception):
    """The process is dead: nothing that it does has an effect any more."""


@dataclass
class FakeSegment:
    data: bytes = b""
    start: int = 0
    sealed: bool = False
    policy: ScalingPolicy = ScalingPolicy()  # noqa: RUF009
    key_length: int = 0


@dataclass
class FakeDisk:
    """What survives a process."""

    rows: SortedDict[bytes, tuple[int, bytes]] = field(default_factory=SortedDict)
    tables: set[str] = field(default_factory=set)
    segments: dict[str, FakeSegment] = field(default_factory=dict)
    version: int = 0

    def write(self, name: str, data: bytes) -> None:
        """A client appends."""
        segment = self.segments[name]
        assert not segment.sealed, name
        segment.data += data


class FakeProcess:
    """The calls of one process; `crash_at` is the number of the change at which it dies.

    `before`: the change has no effect. Otherwise it has, and the process does not know.
    """

    def __init__(self, disk: FakeDisk, crash_at: int = 0, *, before: bool = True) -> None:
        self.disk = disk
        self.crash_at = crash_at
        self.before = before
        self.changes = 0
        self.fail_at = 0
        """The number of the change that has no effect, once; the process goes on."""
        self.merges_fail = False
        self.creations_left: int | None = None
        """Of segments that succeed before others fail; None: all do."""
        self.creation_s = 0.0
        """How long the creation of a segment takes."""
        self.dead = False

    def begin_change(self) -> None:
        self.check()
        self.changes += 1
        if self.changes == self.fail_at:
            raise TierUnavailableError("tier1", "away")
        if self.changes == self.crash_at and self.before:
            self.dead = True
        self.check()

    def end_change(self) -> None:
        if self.changes == self.crash_at:
            self.dead = True
        self.check()

    def begin_creation(self) -> None:
        if self.creations_left == 0:
            raise TierUnavailableError("tier1", "away")
        if self.creations_left is not None:
            self.creations_left -= 1

    def check(self) -> None:
        if self.dead:
            raise CrashError


class FakeTables:
    """`MetadataTables` of one table."""

    def __init__(self, process: FakeProcess) -> None:
        self._process = process
        self._disk = process.disk

    async def create(self, table: str) -> None:
        self._process.begin_change()
        self._disk.tables.add(table)
        self._process.end_change()

    async def get(self, table: str, keys: Sequence[bytes]) -> list[MetadataRow | None]:
        self._check(table)
        await asyncio.sleep(0)
        found = [(key, self._disk.rows.get(key)) for key in keys]
        return [MetadataRow(key, *row) if row else None for key, row in found]

    async def update(self, table: str, rows: Sequence[MetadataRow]) -> list[int]:
        self._check(table)
        await asyncio.sleep(0)
        self._process.begin_change()
        there = self._disk.rows
        for key, version, _ in rows:
            actual = there[key][0] if key in there else NO_ROW
            if version not in (ANY_VERSION, actual):
                raise RowConflictError(f"{key!r} has {actual}, not {version}")
        versions = []
        for key, _, value in rows:
            self._disk.version += 1
            there[key] = self._disk.version, value
            versions.append(self._disk.version)
        self._process.end_change()
        return versions

    async def remove(self, table: str, keys: Sequence[bytes]) -> None:
        self._check(table)
        await asyncio.sleep(0)
        self._process.begin_change()
        for key in keys:
            self._disk.rows.pop(key, None)
        self._process.end_change()

    async def confirm(self, table: str) -> None:
        self._check(table)
        await asyncio.sleep(0)
        self._process.check()

    async def scan(self, table: str, after: bytes, limit: int) -> list[MetadataRow]:
        self._check(table)
        await asyncio.sleep(0)
        keys = self._disk.rows.irange(after, None, inclusive=(False, True))
        found: list[MetadataRow] = []
        for key in keys:
            if len(found) == limit:
                break
            found.append(MetadataRow(key, *self._disk.rows[key]))
        return found

    def _check(self, table: str) -> None:
        self._process.check()
        if table not in self._disk.tables:
            raise SegmentNotFoundError(table)


class FakeActions:
    """`SegmentActions`."""

    def __init__(self, process: FakeProcess) -> None:
        self._process = process
        self._segments = process.disk.segments

    async def create(self, name: str, policy: ScalingPolicy, rollover_bytes: int) -> None:
        await asyncio.sleep(self._process.creation_s)
        await self._begin()
        self._process.begin_creation()
        self._segments.setdefault(name, FakeSegment(policy=policy))
        self._process.end_change()

    async def create_table(self, name: str, key_length: int) -> None:
        await self._begin()
        self._process.begin_creation()
        self._segments.setdefault(name, FakeSegment(key_length=key_length))
        self._process.end_change()

    async def seal(self, name: str) -> None:
        await self._begin()
        if name in self._segments:
            self._segments[name].sealed = True
        self._process.end_change()

    async def delete(self, name: str) -> None:
        await self._begin()
        self._segments.pop(name, None)
        self._process.end_change()

    async def delete_table(self, name: str) -> None:
        await self.delete(name)

    async def truncate(self, name: str, offset: int) -> None:
        await self._begin()
        segment = self._segments.get(name)
        if segment is not None:
            if offset > len(segment.data):
                raise BadOffsetError(name, offset, len(segment.data))
            segment.start = max(segment.start, offset)
        self._process.end_change()

    async def merge_batch(self, target: str, sources: Sequence[str]) -> None:
        await asyncio.sleep(0)
        if self._process.merges_fail:
            raise TierUnavailableError("tier1", "away")
        for source in sources:
            self._process.begin_change()
            if target not in self._segments:
                raise SegmentNotFoundError(target)
            if self._segments[target].sealed:
                raise SegmentSealedError(target)
            if source in self._segments:
                self._segments[target].data += self._segments.pop(source).data
            self._process.end_change()

    async def info(self, name: str) -> SegmentState | None:
        self._process.check()
        await asyncio.sleep(0)
        segment = self._segments.get(name)
        return SegmentState(segment.start, len(segment.data), segment.sealed) if segment else None

    async def update_policy(self, name: str, policy: ScalingPolicy) -> None:
        await self._begin()
        if name in self._segments and not self._segments[name].sealed:
            self._segments[name].policy = policy
        self._process.end_change()

    async def _begin(self) -> None:
        await asyncio.sleep(0)
        self._process.begin_change()
