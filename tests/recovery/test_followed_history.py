"""The history of a container whose owner truncates the log while it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import pairwise

import pytest

from durablelog.checkpoint_codec import encode_checkpoint
from durablelog.durable_data_log import LogFrame
from durablelog.log_view import LogChangedError
from durablelog.operations import SnapshotCheckpointOperation
from recovery.archived_history import ArchivedHistory
from recovery.followed_history import FOLLOWED_S, VIEWS_MIN, FollowedHistory
from recovery.harness.simulation.virtual_loop import run_virtual
from recovery.moments import AtSequence
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import ContainerMetadata
from tests.recovery.archived_logs import ArchivedLog, ListedParts, MemoryTail


class ChangedTail:
    """A view that ends behind some frames, if any: its owner has truncated the log."""

    def __init__(self, tail: MemoryTail, frames: int | None) -> None:
        self._tail = tail
        self._frames = frames
        self.closed = False

    async def close(self) -> None:
        self.closed = True

    async def read(self) -> AsyncGenerator[Sequence[LogFrame], None]:
        given = 0
        async for frames in self._tail.read():
            assert not self.closed
            if given == self._frames:
                raise LogChangedError("the log was truncated while it was read")
            given += 1
            yield frames


class Owned:
    """A log whose owner has truncated it at each checkpoint, the first time that it was read."""

    def __init__(self, appends: int = 12, every: int = 3) -> None:
        self.tails: list[ChangedTail] = []
        self.log = ArchivedLog(operations_in_frame=1)
        segment_id = self.log.create("a")
        self.points = [1]
        self.archived = [0]
        for number in range(appends):
            self.log.append(segment_id, bytes([number]))
            if number % every == every - 1:
                self.log.end_part()
                self.archived.append(len(self.log.listed))
                self.points.append(self.log.checkpoint())
        self.last = self.log.append(segment_id, b"the last one")
        self.views = 0

    def at(self, truncated: int, frames: int = 1) -> tuple[ListedParts, ChangedTail]:
        """The archive and the log as truncated so often."""
        is_last = truncated == len(self.points) - 1
        tail = self.log.tail(self.points[truncated])
        self.tails.append(ChangedTail(tail, None if is_last else frames))
        return ListedParts(self.log.listed[: self.archived[truncated]]), self.tails[-1]

    def open_views(self) -> list[int]:
        return [number for number, tail in enumerate(self.tails) if not tail.closed]

    async def view_again(self) -> tuple[ListedParts, ChangedTail]:
        self.views += 1
        return self.at(self.views)

    def history(self, frames: int = 5) -> FollowedHistory:
        parts, tail = self.at(0, frames)
        return FollowedHistory(0, parts, self.log.open_part, tail, nothing, self.view_again)


async def nothing(operation: SnapshotCheckpointOperation) -> ContainerMetadata:
    raise DataCorruptionError(str(operation.sequence_number), "no snapshot")


def test_a_state_is_that_of_the_moment_whatever_is_truncated_meanwhile() -> None:
    async def main() -> None:
        for number in range(1, Owned().last + 1):
            owned = Owned()
            state = await owned.history().state_at(AtSequence(number))
            assert encode_checkpoint(state.metadata) == owned.log.states[number]

    run_virtual(main())


def test_operations_go_on_behind_the_last_one_that_was_given() -> None:
    async def main() -> None:
        owned = Owned()
        given = [
            past.operation.sequence_number
            async for batch in owned.history().operations(2, owned.last)
            for past in batch
        ]
        assert given == list(range(2, owned.last + 1))
        assert owned.views > 1

    run_virtual(main())


def test_windows_of_a_log_that_changes_are_read_without_a_hole() -> None:
    async def main() -> None:
        owned = Owned()
        history = owned.history()
        given: list[int] = []
        async for first, last in history.windows_before(owned.last, 1):
            found = [
                past.operation.sequence_number
                async for batch in history.operations(first, last)
                for past in batch
            ]
            given += reversed(found)
        assert all(earlier == later - 1 for later, earlier in pairwise(given))
        assert (given[0], given[-1]) == (owned.last, 1)

    run_virtual(main())


def test_a_log_that_changes_under_each_view_ends_the_reading_after_a_while() -> None:
    async def main() -> None:
        owned = Owned()
        views = 0

        async def view_again() -> tuple[ListedParts, ChangedTail]:
            nonlocal views
            views += 1
            return ListedParts([]), ChangedTail(owned.log.tail(1), 3)

        parts, log = await view_again()
        history = FollowedHistory(0, parts, owned.log.open_part, log, nothing, view_again)
        with pytest.raises(LogChangedError, match="try again"):
            await history.state_at(AtSequence(owned.last))
        assert VIEWS_MIN < views < 20 * FOLLOWED_S

    run_virtual(main())


def test_a_view_that_is_old_already_leaves_nothing_out() -> None:
    async def main() -> None:
        for number in range(1, Owned().last + 1):
            owned = Owned()
            still = ArchivedHistory(
                0, ListedParts([]), owned.log.open_part, owned.log.tail(1), nothing
            )
            time_ms = await still.time_of(number)
            assert await owned.history(0).time_of(number) == time_ms
            assert await Owned().history(0).first_at(time_ms) <= number

    run_virtual(main())


def test_a_slow_reader_of_a_busy_log_gets_all_of_it() -> None:
    async def main() -> None:
        owned = Owned(appends=60)
        given: list[int] = []
        async for batch in owned.history().operations(2, owned.last):
            given += (past.operation.sequence_number for past in batch)
            await asyncio.sleep(FOLLOWED_S / VIEWS_MIN)
        assert given == list(range(2, owned.last + 1))

    run_virtual(main())


def test_a_view_is_closed_once_no_reading_has_it() -> None:
    async def main() -> None:
        owned = Owned()
        history = owned.history()
        async with aclosing(history.operations(2, 3)) as first:
            await anext(first)
            await history.time_of(owned.last)
            assert owned.open_views() == [0, owned.views]
        assert owned.open_views() == [owned.views]
        await history.close()
        assert owned.open_views() == []

    run_virtual(main())


def test_readings_at_once_do_not_disturb_each_other() -> None:
    async def main() -> None:
        owned = Owned()
        owned.views = 1
        parts, _ = owned.at(1)
        tail = ChangedTail(owned.log.tail(owned.points[1]), None)
        history = FollowedHistory(0, parts, owned.log.open_part, tail, nothing, owned.view_again)
        given: list[int] = []
        async for batch in history.operations(2, owned.last):
            given += (past.operation.sequence_number for past in batch)
            if owned.views == 1:
                await history._replace_view()
                await history._replace_view()
        assert given == list(range(2, owned.last + 1))

    run_virtual(main())
