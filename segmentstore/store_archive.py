"""StoreArchive: the archive of the logs of an open store, for its callers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from segmentstore.arguments import checked_offset
from segmentstore.container import SegmentContainer
from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.store_parts import StoreParts

if TYPE_CHECKING:
    from segmentstore.contracts.reports import ArchivedEntry, OffloadReport, RemovedParts


class StoreArchive(ABC):
    """The part of `SegmentStore` that is about the archive of the containers served here.

    All of it raises ArchiveDisabledError without the setting `archive`.
    """

    _parts: StoreParts

    @property
    @abstractmethod
    def _containers(self) -> Sequence[SegmentContainer]:
        """Those that are served here, as of now."""

    @abstractmethod
    def _check_running(self) -> None:
        """Raise unless all containers serve, and this is the store's loop."""

    async def offload_prefix(
        self, before: int | None = None, container: int | None = None
    ) -> list[OffloadReport]:
        """Archive sealed parts of the log at once, whatever their age: of one container, or each.

        With `before` those alone whose operations are all before this sequence number; numbers are
        a container's own, so it needs `container` if there are several. Gives what became of each
        part, up to the first of a container that failed. What is under way already ends first.
        Costs a read of these parts, and some requests for each. Raises InvalidArgumentError,
        ContainerNotServedError.
        """
        self._check_running()
        chosen = self._chosen(container)
        if before is not None:
            checked_offset("before", before)
            if len(chosen) > 1:
                detail = "sequence numbers are a container's own: name it"
                raise InvalidArgumentError("container", container, detail)
        return [await each.offload_prefix(before) for each in chosen]

    async def list_archived_parts(self) -> AsyncGenerator[ArchivedEntry, None]:
        """The parts in the archive, container by container, oldest first.

        Costs a request for 256 parts. Raises TierUnavailableError, DataCorruptionError.
        """
        self._check_running()
        for container in self._containers:
            async with aclosing(container.archived_parts()) as parts:
                async for part in parts:
                    yield part

    async def remove_archived_parts(self, before: int, container: int) -> RemovedParts:
        """Take the parts of a container out of the archive all of whose operations are before a
        sequence number, but for those that the log may not delete yet.

        Their objects are deleted when it returns. If it fails some of it may be done, and the store
        does the rest later. Raises InvalidArgumentError, ContainerNotServedError,
        TierUnavailableError.
        """
        self._check_running()
        checked_offset("before", before)
        # Not at the top: only a store with an archive pays for it.
        from segmentstore.contracts.reports import RemovedParts  # noqa: PLC0415

        (chosen,) = self._chosen(container)
        return RemovedParts(container, await chosen.remove_archived(before))

    def _chosen(self, container: int | None) -> Sequence[SegmentContainer]:
        if container is None:
            return self._containers
        checked_offset("container", container)
        return [self._parts.registry.home(container)]
