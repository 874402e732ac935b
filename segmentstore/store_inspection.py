"""StoreInspection: what a store holds, and its garbage; listed while it is written to.

Each listing is asked for with `async for`. It works in slices, and others on the loop have a turn
in between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from segmentstore.container import SegmentContainer
from segmentstore.store_parts import StoreParts

if TYPE_CHECKING:
    from segmentstore.contracts.findings import Finding
    from segmentstore.contracts.reports import (
        BlockEntry,
        FrameEntry,
        GarbageItem,
        GarbageReport,
        OperationEntry,
    )


class StoreInspection(ABC):
    """The part of `SegmentStore` that inspects the containers served here, all of them."""

    _parts: StoreParts

    @property
    def _containers(self) -> Sequence[SegmentContainer]:
        """Those that are served here, as of now."""
        return self._parts.registry.containers

    @abstractmethod
    def _check_running(self) -> None:
        """Raise unless all containers serve, and this is the store's loop."""

    @abstractmethod
    def _home(self, name: object) -> SegmentContainer:
        """The container a name lives in."""

    async def list_frames(self) -> AsyncGenerator[FrameEntry, None]:
        """The frames of the logs up to now, container by container.

        What is truncated meanwhile is left out. Costs a read of the logs. Raises
        DataCorruptionError, TierUnavailableError.
        """
        self._check_running()
        for container in self._containers:
            async with aclosing(container.list_log().frames()) as frames:
                async for frame in frames:
                    yield frame

    async def list_operations(self) -> AsyncGenerator[OperationEntry, None]:
        """The operations in the logs up to now; as `list_frames`."""
        self._check_running()
        for container in self._containers:
            async with aclosing(container.list_log().operations()) as operations:
                async for operation in operations:
                    yield operation

    async def list_blocks(self, segment: str | None = None) -> AsyncGenerator[BlockEntry, None]:
        """What is in Tier 2 of a segment, or of all: each block, and objects that wait for their
        deletion.

        Each segment as it is in its turn; idle ones stay so. Raises SegmentNotFoundError,
        TierUnavailableError, DataCorruptionError. Costs a pass over the metadata.
        """
        self._check_running()
        for container in self._containers if segment is None else [self._home(segment)]:
            async with aclosing(container.list_blocks(segment)) as blocks:
                async for block in blocks:
                    yield block

    async def find_garbage(self) -> AsyncGenerator[GarbageItem | Finding, None]:
        """What `collect_garbage` would find now, in no order; changes nothing.

        `GarbageReport.of` makes a report of it. Costs one listing of all objects; on BookKeeper
        also a read of the metadata of each ledger of the cluster. Raises TierUnavailableError.
        """
        # Not at the top: searches alone need it.
        from segmentstore.garbage import (  # noqa: PLC0415
            find_garbage,
            missing_markers,
            orphan_ledgers,
        )

        self._check_running()
        parts = self._parts
        passes = {each.container_id: each.begin_garbage_pass() for each in self._containers}
        searching = find_garbage(passes, parts.storage, parts.store_id, parts.runtime.clock)
        async with aclosing(searching) as found:
            async for each in found:
                yield each
        orphans = await parts.logs.find_orphans(parts.store_id, parts.registry.numbers)
        for ledger in orphan_ledgers(orphans):
            yield ledger
        for finding in missing_markers(parts.markers.losses()):
            yield finding

    async def collect_garbage(self) -> GarbageReport:
        """Search all of Tier 2 for orphans and garbage now, and delete what is due.

        The store does so by itself, slowly; this is for people who do not want to wait. Objects
        that no operation of the log names become garbage and are deleted once the deletion lag is
        over: by the store, or by a later call. Costs one listing of all objects, and two requests
        for each that is deleted. Raises TierUnavailableError if Tier 2 does not answer; what was
        done by then is done. On BookKeeper it also deletes ledgers that no log lists: that costs a
        read of the metadata of each ledger of the cluster.
        """
        # Not at the top: searches alone need it.
        from segmentstore.contracts.reports import GarbageReport  # noqa: PLC0415
        from segmentstore.garbage import (  # noqa: PLC0415
            collect_garbage,
            deleted_ledgers,
            missing_markers,
        )

        self._check_running()
        parts = self._parts
        report = await collect_garbage(parts.containers, parts.storage, parts.runtime.clock)
        deletion = await parts.logs.delete_orphans(parts.store_id, parts.registry.numbers)
        found = (*report.items, *report.findings, *deleted_ledgers(deletion))
        return GarbageReport.of((*found, *missing_markers(parts.markers.losses())))
