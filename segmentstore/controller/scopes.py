"""Scopes: names that hold streams, reader groups and key-value tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from segmentstore.controller.controller_rows import (
    ControllerRows,
    FoundRow,
    RowPut,
    pending_key,
    scope_key,
)
from segmentstore.controller.deadlines import Deadlines
from segmentstore.controller.key_value_tables import KeyValueTables
from segmentstore.controller.metadata_tables import NO_ROW
from segmentstore.controller.name_locks import NameLocks
from segmentstore.controller.names import ScopedName, check_scope_name
from segmentstore.controller.reader_groups import ReaderGroups
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.request_ids import RequestIds
from segmentstore.controller.streams import FINISH_REPEATED_S, Streams

PENDING_SCOPE: Final = "scope"
_MEMBERS: Final = ("group", "table", "stream")


class Scopes:
    """All scopes. A scope that is being deleted is no scope for anything new."""

    def __init__(
        self,
        rows: ControllerRows,
        streams: Streams,
        groups: ReaderGroups,
        tables: KeyValueTables,
        locks: NameLocks,
        deadlines: Deadlines,
        requests: RequestIds,
    ) -> None:
        self._rows = rows
        self._streams = streams
        self._groups = groups
        self._tables = tables
        self._locks = locks
        self._deadlines = deadlines
        self._requests = requests

    async def create(self, scope: str, request_id: str = "") -> None:
        """Nothing for the request that created it. Raises RefusedRequestError: bad name, exists."""
        check_scope_name(scope)
        async with self._locks.hold(scope):
            row = await self._rows.get(scope_key(scope))
            if row is not None:
                if request_id and not row.value["deleting"] and _request_id(row) == request_id:
                    return
                raise RefusedRequestError(Reason.SCOPE_EXISTS, f"the scope {scope} exists")
            value = {"deleting": False, "request": request_id}
            await self._rows.put(RowPut(scope_key(scope), value, NO_ROW))

    async def exists(self, scope: str) -> bool:
        row = await self._rows.get(scope_key(scope))
        return row is not None and not row.value["deleting"]

    async def page(self, after: str, limit: int) -> list[str]:
        """Names of scopes behind `after`; empty: that was all."""
        while rows := await self._rows.page("scope/", after, limit):
            found = [row.last for row in rows if not row.value["deleting"]]
            if found:
                return found
            after = rows[-1].last
        return []

    async def delete(self, scope: str, request_id: str = "") -> None:
        """As `delete_recursively`. Raises RefusedRequestError: no scope, not empty."""
        await self._delete(scope, request_id, self._check_empty)

    async def delete_recursively(self, scope: str, request_id: str = "") -> None:
        """With all that it holds. Raises RefusedRequestError: no scope.

        A deletion that failed half-way is carried on by the same call once more. Behind its end
        that call has its answer by the request id.
        """
        await self._delete(scope, request_id, self._streams.check_scope)

    async def _check_empty(self, scope: str) -> None:
        await self._streams.check_scope(scope)
        for kind in _MEMBERS:
            if await self._rows.page(f"{kind}/{scope}/", "", 1):
                raise RefusedRequestError(Reason.SCOPE_NOT_EMPTY, f"the scope {scope} has a {kind}")

    async def _delete(
        self, scope: str, request_id: str, check: Callable[[str], Awaitable[None]]
    ) -> None:
        async with self._locks.hold(scope):
            row = await self._rows.get(scope_key(scope))
            if row is not None and row.value["deleting"]:
                await self._requests.note(request_id, row.key)
            elif await self._requests.noted(request_id, scope_key(scope)):
                return
            else:
                await check(scope)
                value = {"deleting": True, "request": request_id}
                await self._rows.put(RowPut(scope_key(scope), value), RowPut(_pending(scope), {}))
        try:
            await self.finish(scope)
        except BaseException:
            key = (PENDING_SCOPE, scope)
            self._deadlines.ensure(key, FINISH_REPEATED_S, lambda: self.finish(scope))
            raise

    async def finish(self, scope: str) -> None:
        """Finish a deletion that was left. Nothing new comes into a scope that is being deleted."""
        # One at a time: behind another one's end there may be a new scope of the name.
        async with self._locks.hold((PENDING_SCOPE, scope)):
            await self._finish_held(scope)

    async def _finish_held(self, scope: str) -> None:
        async with self._locks.hold(scope):
            row = await self._rows.get(scope_key(scope))
            if row is None or not row.value["deleting"]:
                # It was finished; there may be another scope of the name by now.
                await self._rows.remove([_pending(scope)])
                return
        await self._requests.note(_request_id(row), row.key)
        async for row in self._rows.scan(f"group/{scope}/"):
            await self._delete_group(ScopedName(scope, row.last))
        async for row in self._rows.scan(f"table/{scope}/"):
            await self._delete_table(ScopedName(scope, row.last))
        async for row in self._rows.scan(f"stream/{scope}/"):
            # The stream of another's watermarks is deleted with that one, or by itself.
            await self._streams.discard(ScopedName(scope, row.last))
        await self._rows.remove([scope_key(scope), _pending(scope)])

    async def _delete_group(self, group: ScopedName) -> None:
        try:
            await self._groups.delete(group, "")
        except RefusedRequestError as error:
            _check_deleted(error, Reason.GROUP_NOT_FOUND)

    async def _delete_table(self, table: ScopedName) -> None:
        try:
            await self._tables.delete(table)
        except RefusedRequestError as error:
            _check_deleted(error, Reason.TABLE_NOT_FOUND)


def _request_id(row: FoundRow) -> str:
    """Of its creation, or of the deletion that has begun. Before ids were kept, none."""
    return str(row.value.get("request", ""))


def _pending(scope: str) -> str:
    return pending_key(PENDING_SCOPE, ScopedName(scope, scope))


def _check_deleted(error: RefusedRequestError, expected: Reason) -> None:
    if error.reason is not expected:
        raise error
