"""KeyValueTables: tables of Java's client. One is some table segments, each with a share of the
keys' hashes. Creation and deletion can be repeated, as those of streams.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from segmentstore.controller.controller_rows import (
    ControllerRows,
    FoundRow,
    RowPut,
    pending_key,
    table_key,
)
from segmentstore.controller.deadlines import Deadlines
from segmentstore.controller.name_locks import NameLocks
from segmentstore.controller.names import ScopedName, check_given_name, table_segment_name
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.request_ids import RequestIds
from segmentstore.controller.segment_actions import (
    ActionStep,
    SegmentActions,
    StepKind,
    run_steps,
)
from segmentstore.controller.stream_model import SEGMENTS_MAX, StreamSegment, even_segments
from segmentstore.controller.streams import FINISH_REPEATED_S, Streams

PENDING_TABLE: Final = "table"
_KEY_LENGTH_MAX: Final = 256
_ACTIVE: Final = "active"
_CREATING: Final = "creating"
_DELETING: Final = "deleting"


class KeyValueTableConfiguration(NamedTuple):
    """Lengths are in bytes; each key has both parts."""

    partitions: int
    primary_key_length: int
    secondary_key_length: int
    rollover_bytes: int

    @property
    def key_length(self) -> int:
        return self.primary_key_length + self.secondary_key_length

    def check(self) -> KeyValueTableConfiguration:
        """Return it; raise RefusedRequestError if no table can have it."""
        if not (
            1 <= self.partitions <= SEGMENTS_MAX
            and self.primary_key_length >= 1
            and self.secondary_key_length >= 0
            and self.key_length <= _KEY_LENGTH_MAX
            and self.rollover_bytes >= 0
        ):
            raise RefusedRequestError(
                Reason.BAD_ARGUMENT,
                f"{self}: 1 to {SEGMENTS_MAX} partitions, keys of 1 to {_KEY_LENGTH_MAX} bytes",
            )
        return self


class KeyValueTables:
    """All key-value tables."""

    def __init__(
        self,
        rows: ControllerRows,
        actions: SegmentActions,
        streams: Streams,
        locks: NameLocks,
        deadlines: Deadlines,
        requests: RequestIds,
    ) -> None:
        self._rows = rows
        self._actions = actions
        self._streams = streams
        self._locks = locks
        self._deadlines = deadlines
        self._requests = requests

    async def create(
        self, table: ScopedName, configuration: KeyValueTableConfiguration, request_id: str = ""
    ) -> None:
        """Raises RefusedRequestError: bad name, bad configuration, no scope, exists.

        A creation that failed half-way is carried on by the same call once more. Behind its end
        that call has its answer by the request id.
        """
        check_given_name(table.name, "key-value table")
        configuration.check()
        async with self._locks.hold((PENDING_TABLE, table)):
            row = await self._rows.get(table_key(table))
            if row is not None and _creates(row, configuration):
                await self._carry_out(table, _CREATING)
                return
            if row is not None and (found := await self._settle(table, row)) is not None:
                if request_id and _request_id(found.value) == request_id:
                    return
                raise RefusedRequestError(Reason.TABLE_EXISTS, f"the table {table} exists")
            first = await self._rows.first_number()
            async with self._streams.scope_held(table.scope):
                await self._begin(table, configuration, first, _CREATING, request_id)
            await self._carry_out(table, _CREATING)

    async def delete(self, table: ScopedName, request_id: str = "") -> None:
        """With all its keys. Raises RefusedRequestError: no table.

        A deletion that failed half-way is carried on by the same call once more. Behind its end
        that call has its answer by the request id.
        """
        async with self._locks.hold((PENDING_TABLE, table)):
            row = await self._rows.get(table_key(table))
            if row is not None and row.value["state"] == _DELETING:
                await self._requests.note(request_id, table_key(table))
                await self._carry_out(table, _DELETING)
                return
            if await self._requests.noted(request_id, table_key(table)):
                return
            if row is None or (row := await self._settle(table, row)) is None:
                raise _not_found(table)
            configuration, first = _configuration(row.value), _first(row.value)
            await self._begin(table, configuration, first, _DELETING, request_id)
            await self._carry_out(table, _DELETING)

    async def configuration(self, table: ScopedName) -> KeyValueTableConfiguration:
        """Raises RefusedRequestError: no table."""
        return _configuration((await self._active(table)).value)

    async def segments(self, table: ScopedName) -> tuple[StreamSegment, ...]:
        """By the hash of keys; they tile [0, 1). Raises RefusedRequestError: no table."""
        value = (await self._active(table)).value
        return even_segments(_configuration(value).partitions, _first(value))

    async def page(self, scope: str, after: str, limit: int) -> list[ScopedName]:
        """Names of a scope's tables behind `after`; empty: that was all.

        Raises RefusedRequestError: no scope.
        """
        await self._streams.check_scope(scope)
        while rows := await self._rows.page(f"table/{scope}/", after, limit):
            found = [ScopedName(scope, row.last) for row in rows if row.value["state"] == _ACTIVE]
            if found:
                return found
            after = rows[-1].last
        return []

    async def finish(self, table: ScopedName) -> None:
        """Finish a change that was left."""
        async with self._held(table):
            await self._rows.remove([pending_key(PENDING_TABLE, table)])

    async def finish_after_s(self, table: ScopedName) -> float:
        """As `Streams.finish_after_s`."""
        row = await self._rows.get(table_key(table))
        return FINISH_REPEATED_S if row is not None and row.value["state"] != _ACTIVE else 0

    @asynccontextmanager
    async def _held(self, table: ScopedName) -> AsyncIterator[FoundRow | None]:
        async with self._locks.hold((PENDING_TABLE, table)):
            row = await self._rows.get(table_key(table))
            yield None if row is None else await self._settle(table, row)

    async def _settle(self, table: ScopedName, row: FoundRow) -> FoundRow | None:
        if row.value["state"] == _ACTIVE:
            return row
        await self._carry_out(table, row.value["state"])
        return await self._rows.get(table_key(table))

    async def _active(self, table: ScopedName) -> FoundRow:
        row = await self._rows.get(table_key(table))
        if row is None or row.value["state"] != _ACTIVE:
            raise _not_found(table)
        return row

    async def _begin(
        self,
        table: ScopedName,
        configuration: KeyValueTableConfiguration,
        first: int,
        state: str,
        request_id: str,
    ) -> None:
        value = {
            "configuration": list(configuration),
            "first": first,
            "state": state,
            "request": request_id,
        }
        await self._rows.put(
            RowPut(table_key(table), value), RowPut(pending_key(PENDING_TABLE, table), {})
        )

    async def _carry_out(self, table: ScopedName, state: str) -> None:
        try:
            await self._carry_out_once(table)
        except BaseException:
            key = (f"{state} table", table)
            self._deadlines.ensure(key, FINISH_REPEATED_S, lambda: self.finish(table))
            raise

    async def _carry_out_once(self, table: ScopedName) -> None:
        row = await self._rows.get(table_key(table))
        assert row is not None
        configuration, first = _configuration(row.value), _first(row.value)
        numbers = range(first, first + configuration.partitions)
        deleting = row.value["state"] == _DELETING
        kind = StepKind.DELETE_TABLE if deleting else StepKind.CREATE_TABLE
        steps = [
            ActionStep(kind, table_segment_name(table, number), key_length=configuration.key_length)
            for number in numbers
        ]
        await run_steps(self._actions, steps)
        pending = pending_key(PENDING_TABLE, table)
        if deleting:
            await self._requests.note(_request_id(row.value), row.key)
            await self._rows.use_numbers(numbers.stop)
            await self._rows.remove([table_key(table), pending])
            return
        await self._rows.put(RowPut(table_key(table), row.value | {"state": _ACTIVE}, row.version))
        await self._rows.remove([pending])


def _configuration(value: Mapping[str, Any]) -> KeyValueTableConfiguration:
    return KeyValueTableConfiguration(*value["configuration"])


def _creates(row: FoundRow, configuration: KeyValueTableConfiguration) -> bool:
    """Whether the table is being created, and so."""
    return row.value["state"] == _CREATING and _configuration(row.value) == configuration


def _first(value: Mapping[str, Any]) -> int:
    """The number of its first segment; before numbers were kept, 0."""
    return int(value.get("first", 0))


def _request_id(value: Mapping[str, Any]) -> str:
    """Of its creation, or of the deletion that has begun. Before ids were kept, none."""
    return str(value.get("request", ""))


def _not_found(table: ScopedName) -> RefusedRequestError:
    return RefusedRequestError(Reason.TABLE_NOT_FOUND, f"there is no key-value table {table}")
