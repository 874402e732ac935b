"""ReaderGroups: configurations of groups, their streams, and subscribers of streams.

A change begins with the group's row, which has its new configuration and what it becomes, and a
row that it is pending. A process that finds it so does the same work again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from segmentstore.controller.controller_rows import (
    ControllerRows,
    FoundRow,
    RowPut,
    group_key,
    pending_key,
    subscriber_key,
)
from segmentstore.controller.deadlines import Deadlines
from segmentstore.controller.group_model import GroupConfiguration
from segmentstore.controller.metadata_tables import NO_ROW, RowConflictError
from segmentstore.controller.name_locks import NameLocks
from segmentstore.controller.names import ScopedName, check_given_name, group_stream
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.request_ids import RequestIds
from segmentstore.controller.stream_cuts import check_cut, is_valid, precedes
from segmentstore.controller.stream_model import (
    StreamCut,
    cut_from_row,
    cut_to_row,
)
from segmentstore.controller.streams import FINISH_REPEATED_S, FINISH_S, Streams

PENDING_GROUP: Final = "group"
_ACTIVE: Final = "active"
_CREATING: Final = "creating"
_UPDATING: Final = "updating"
_DELETING: Final = "deleting"


class ReaderGroups:
    """All reader groups of Java's client; the one of Rust keeps its own in tables."""

    def __init__(
        self,
        rows: ControllerRows,
        streams: Streams,
        locks: NameLocks,
        deadlines: Deadlines,
        requests: RequestIds,
    ) -> None:
        self._rows = rows
        self._streams = streams
        self._locks = locks
        self._deadlines = deadlines
        self._requests = requests

    async def create(
        self, group: ScopedName, configuration: GroupConfiguration
    ) -> GroupConfiguration:
        """Gives the configuration of the first creation: the client compares the uuid.

        Raises RefusedRequestError: bad name, bad configuration, no scope.
        """
        check_given_name(group.name, "reader group")
        configuration.check()
        async with self._held(group) as row:
            if row is not None:
                return _configuration(row)
            async with self._streams.scope_held(group.scope):
                await self._begin(group, configuration, _CREATING)
            await self._carry_out(group, _CREATING)
            return configuration

    async def configuration(self, group: ScopedName) -> GroupConfiguration:
        """Raises RefusedRequestError: no group."""
        row = await self._rows.get(group_key(group))
        if row is None or row.value["state"] in (_CREATING, _DELETING):
            raise _not_found(group)
        return _configuration(row)

    async def update(self, group: ScopedName, configuration: GroupConfiguration) -> int:
        """Gives the new generation; once more, what it gave.

        Raises RefusedRequestError: bad configuration, no group, or it was changed since the client
        read it.
        """
        configuration.check()
        async with self._held(group) as row:
            if row is None:
                raise _not_found(group)
            former = _configuration(row)
            if former == configuration.with_generation(configuration.generation + 1):
                return former.generation  # It was updated so; its caller got no reply.
            if (former.uuid, former.generation) != (configuration.uuid, configuration.generation):
                raise RefusedRequestError(
                    Reason.GROUP_CHANGED, f"the reader group {group} has another configuration"
                )
            updated = configuration.with_generation(former.generation + 1)
            kept = updated.subscribed
            dropped = [stream for stream in former.subscribed if stream not in kept]
            await self._begin(group, updated, _UPDATING, dropped)
            await self._carry_out(group, _UPDATING)
            return updated.generation

    async def delete(self, group: ScopedName, uuid: str, request_id: str = "") -> None:
        """Delete the group of that creation, or with an empty uuid whichever there is.

        A deletion that failed half-way is carried on by the same call once more. Behind its end
        that call has its answer by the request id. Raises RefusedRequestError: no group.
        """
        async with self._locks.hold((PENDING_GROUP, group)):
            row = await self._rows.get(group_key(group))
            deleting = row is not None and row.value["state"] == _DELETING
            if not deleting and await self._requests.noted(request_id, group_key(group)):
                return
            if row is None or uuid not in ("", (former := _configuration(row)).uuid):
                raise _not_found(group)
            if (state := row.value["state"]) == _DELETING:
                await self._requests.note(request_id, row.key)
            if state != _ACTIVE:
                await self._carry_out(group, state)
            if state != _DELETING:
                dropped = list(former.subscribed)
                await self._begin(group, former, _DELETING, dropped, request_id)
                await self._carry_out(group, _DELETING)

    async def finish(self, group: ScopedName) -> None:
        """Finish a change that was left."""
        async with self._held(group):
            await self._rows.remove([pending_key(PENDING_GROUP, group)])

    async def finish_after_s(self, group: ScopedName) -> float:
        """As `Streams.finish_after_s`. A creation that is done has the same answer once more."""
        row = await self._rows.get(group_key(group))
        return FINISH_REPEATED_S if row is not None and row.value["state"] == _DELETING else 0

    # --- subscribers ------------------------------------------------------------------------------

    async def subscribers(self, stream: ScopedName) -> list[str]:
        """Names of the groups that a stream's retention waits for, with their scopes.

        Raises RefusedRequestError: no stream.
        """
        await self._streams.record(stream)
        return [str(_group_of(row)) async for row in self._rows.scan(f"subscriber/{stream}/")]

    async def subscriber_cuts(self, stream: ScopedName) -> list[StreamCut]:
        """What subscribers have read; empty for one that has not reported yet."""
        rows = self._rows.scan(f"subscriber/{stream}/")
        return [cut_from_row(row.value["cut"]) async for row in rows]

    async def report_cut(
        self, stream: ScopedName, group: ScopedName, uuid: str, generation: int, cut: StreamCut
    ) -> None:
        """A subscriber needs nothing before the cut any more.

        Raises RefusedRequestError: no stream, no subscriber, generation, cut.
        """
        await self._streams.record(stream)
        async with self._locks.hold(subscriber_key(stream, group)):
            while True:
                put = await self._report(stream, group, uuid, generation, cut)
                try:
                    await self._rows.put(put)
                except RowConflictError:
                    continue  # removed meanwhile, with the stream or by the group
                return

    async def _report(
        self, stream: ScopedName, group: ScopedName, uuid: str, generation: int, cut: StreamCut
    ) -> RowPut:
        row = await self._rows.get(subscriber_key(stream, group))
        if row is None or row.value["uuid"] != uuid:
            raise RefusedRequestError(
                Reason.SUBSCRIBER_NOT_FOUND, f"{group} is no subscriber of {stream}"
            )
        if row.value["generation"] != generation:
            raise RefusedRequestError(
                Reason.GENERATION_MISMATCH, f"{group} has generation {row.value['generation']}"
            )
        history = await self._rows.history(stream)
        check_cut(history, cut)
        former = cut_from_row(row.value["cut"])
        # One that is not valid is of a former stream of the name: earlier versions left such rows.
        if is_valid(history, former) and not precedes(history, former, cut):
            raise RefusedRequestError(Reason.BAD_CUT, "the cut is before the last one")
        return RowPut(row.key, row.value | {"cut": cut_to_row(cut)}, row.version)

    # --- changes ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _held(self, group: ScopedName) -> AsyncIterator[FoundRow | None]:
        async with self._locks.hold((PENDING_GROUP, group)):
            row = await self._rows.get(group_key(group))
            if row is not None and (state := row.value["state"]) != _ACTIVE:
                await self._carry_out(group, state)
                row = await self._rows.get(group_key(group))
            yield row

    async def _begin(
        self,
        group: ScopedName,
        configuration: GroupConfiguration,
        state: str,
        dropped: list[ScopedName] | None = None,
        request_id: str = "",
    ) -> None:
        value = {
            "configuration": configuration.to_row(),
            "state": state,
            "dropped": [list(stream) for stream in dropped or ()],
            "request": request_id,
        }
        await self._rows.put(
            RowPut(group_key(group), value), RowPut(pending_key(PENDING_GROUP, group), {})
        )

    async def _carry_out(self, group: ScopedName, state: str) -> None:
        try:
            await self._carry_out_once(group)
        except BaseException:
            key, after_s = (PENDING_GROUP, group), FINISH_S
            if state == _DELETING:
                key, after_s = ("delete group", group), FINISH_REPEATED_S
            self._deadlines.ensure(key, after_s, lambda: self.finish(group))
            raise

    async def _carry_out_once(self, group: ScopedName) -> None:
        row = await self._rows.get(group_key(group))
        assert row is not None
        configuration = _configuration(row)
        stream, state = group_stream(group), row.value["state"]
        pending = pending_key(PENDING_GROUP, group)
        dropped = [subscriber_key(ScopedName(*each), group) for each in row.value["dropped"]]
        if state == _DELETING:
            await self._streams.discard(stream)
            await self._requests.note(row.value.get("request", ""), row.key)
            await self._rows.remove([*dropped, group_key(group), pending])
            return
        if state == _CREATING:
            await self._streams.ensure(stream, configuration.of_stream)
        await self._rows.remove(dropped)
        await self._activate(group, row)
        await self._rows.remove([pending])

    async def _activate(self, group: ScopedName, row: FoundRow) -> None:
        """Write the subscribers of a group and, in the same batch, that its change is done."""
        configuration = _configuration(row)
        active = RowPut(row.key, row.value | {"state": _ACTIVE, "dropped": []}, version=row.version)
        streams = configuration.subscribed
        async with AsyncExitStack() as held:
            # A report waits. It holds one of these, and changes of the group are one after the
            # other: so no two wait for each other.
            for stream in streams:
                await held.enter_async_context(self._locks.hold(subscriber_key(stream, group)))
            while True:
                puts = [await self._subscriber(each, group, configuration) for each in streams]
                try:
                    await self._rows.put(*puts, active)
                except RowConflictError:
                    # The deletion of a stream removes its subscribers without their locks.
                    now = await self._rows.get(row.key)
                    if now is None or now.version != row.version:
                        raise
                    continue
                return

    async def _subscriber(
        self, stream: ScopedName, group: ScopedName, configuration: GroupConfiguration
    ) -> RowPut:
        """A group that goes on keeps what it has reported."""
        key = subscriber_key(stream, group)
        row = await self._rows.get(key)
        kept = row is not None and row.value["uuid"] == configuration.uuid
        return RowPut(
            key,
            {
                "uuid": configuration.uuid,
                "generation": configuration.generation,
                "cut": row.value["cut"] if kept and row else [],
            },
            row.version if row else NO_ROW,
        )


def _configuration(row: FoundRow) -> GroupConfiguration:
    value: dict[str, Any] = row.value["configuration"]
    return GroupConfiguration.from_row(value)


def _group_of(row: FoundRow) -> ScopedName:
    return ScopedName(*row.key.split("/")[-2:])


def _not_found(group: ScopedName) -> RefusedRequestError:
    return RefusedRequestError(Reason.GROUP_NOT_FOUND, f"there is no reader group {group}")
