"""SegmentScan: the segments of a container by name, active and idle, as of the scan's beginning.

Names come from two places, in parts: the active ones from a copy of memory, the others from the
catalog as it is by then. Rules of this file:

- the id of a segment is the number of the operation that made it. So a segment that was made later
  is known by its id, and the catalog needs no snapshot. That would keep its old files, and be in
  the way of its checkpoints;
- a segment that was idle at the beginning has its name in the catalog until its deletion is written
  there. So none is missed, whatever is written meanwhile;
- a segment is checked in the turn in which it is given, by its id. One in memory is as it is
  there; what was read from the catalog counts until something is written into that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from durablelog.catalog.catalog_errors import catalog_error
from durablelog.catalog.catalog_keys import MetadataFormatError, NameKey, name_range
from durablelog.catalog.catalog_records import SegmentRecord, decode_segment_id
from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import KeyStoreError
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.catalog.metadata_changes import MetadataChanges
from durablelog.catalog.segment_loading import decoded, decoded_key, load_records, segment_of
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.sliced_sort import sorted_in_slices

NAMES_OF_A_SLICE: Final = 1024
"""Sorted without letting others run: about a millisecond."""
NAMES_OF_A_PART: Final = 128
"""Merged, and read from the catalog, without letting others run: half a millisecond each."""

NamedId: TypeAlias = tuple[str, int]
"""A name, and the id of the segment that had it."""


class SegmentScan:
    """Of one container; its beginning is when it is made. O(n log n) in slices, n active names, and
    O(names in the catalog that begin with the prefix).

    `next_name` and `take` in turns, until there is no name left. Both raise TierUnavailableError,
    DataCorruptionError, and what `check_running` raises once the container has stopped.
    """

    def __init__(
        self,
        metadata: ContainerMetadata,
        changes: MetadataChanges,
        catalog: MetadataCatalog,
        prefix: str,
        check_running: Callable[[], None],
    ) -> None:
        """O(active names), a copy of references."""
        self._metadata = metadata
        self._changes = changes
        self._catalog = catalog
        self._prefix = prefix
        self._check_running = check_running
        self._last_id = metadata.sequence_number
        """No segment of the beginning has a greater one."""
        self._copied: tuple[list[str], list[int]] | None = (
            list(metadata.names),
            list(metadata.names.values()),
        )
        """Names and ids of the active ones, until they are sorted."""
        self._active: Iterator[NamedId] = iter(())
        self._first: NamedId | None = None
        """Of the active ones that are left."""
        self._stored: deque[NamedId] = deque()
        """From the catalog, to be merged."""
        self._unread = _range_of(prefix) if metadata.idle else None
        """Names of the catalog that were not read yet; None: there are no more."""
        self._part: list[NamedId] = []
        self._place = 0
        self._records: dict[int, SegmentRecord | None] = {}
        """From the catalog, of segments of this part."""
        self._as_of = -1
        """The number of writes into the catalog when they were read."""

    async def next_name(self) -> str | None:
        """The next name in order, for `take`; None: there are no more."""
        if self._place == len(self._part):
            self._part, self._place, self._records = await self._next_part(), 0, {}
            if not self._part:
                return None
        return self._part[self._place][0]

    async def take(self) -> SegmentMetadata | None:
        """The segment of that name as it is now; None if it was deleted, or merged away.

        One that is idle stays so, and comes without its chunks and attributes.
        """
        segment_id = self._part[self._place][1]
        while True:
            segment = self._metadata.segments.get(segment_id)
            if segment is None and self._may_be_idle(segment_id):
                if self._as_of != self._changes.writes or segment_id not in self._records:
                    await self._read_records()
                    continue
                record = self._records[segment_id]
                segment = None if record is None else segment_of(record)
            self._place += 1
            return None if segment is None or segment.merged_into is not None else segment

    def _may_be_idle(self, segment_id: int) -> bool:
        return bool(self._metadata.idle) and not self._changes.is_lost(segment_id)

    # --- names ------------------------------------------------------------------------------------

    async def _next_part(self) -> list[NamedId]:
        """The names that come next; none at the end."""
        if self._copied is not None:
            self._active = await sorted_in_slices(_slices(*self._copied, self._prefix))
            self._copied, self._first = None, next(self._active, None)
        part: list[NamedId] = []
        while len(part) < NAMES_OF_A_PART:
            if not self._stored and self._unread is not None:
                await self._read_names(self._unread)
                continue
            found = self._pop()
            if found is None:
                break
            part.append(found)
        return part

    def _pop(self) -> NamedId | None:
        """The first name that is left; the active segment's where both places have it."""
        first, stored = self._first, self._stored
        if stored and (first is None or stored[0][0] < first[0]):
            return stored.popleft()
        if first is not None:
            if stored and stored[0][0] == first[0]:
                stored.popleft()
            self._first = next(self._active, None)
        return first

    async def _read_names(self, keys: StoreKeyRange) -> None:
        try:
            pairs, self._unread = await self._catalog.store.scan(keys, NAMES_OF_A_PART)
            for data, value in pairs:
                key = decoded_key(NameKey, data)
                segment_id = decoded(decode_segment_id, key, value)
                if segment_id <= self._last_id:
                    self._stored.append((key.name, segment_id))
        except (KeyStoreError, MetadataFormatError) as error:
            raise self._error_of(error) from error

    # --- records ----------------------------------------------------------------------------------

    async def _read_records(self) -> None:
        """Read those of the part that are still to be given, and are not in memory."""
        segments, writes = self._metadata.segments, self._changes.writes
        left = (segment_id for _, segment_id in self._part[self._place :])
        ids = [segment_id for segment_id in left if segment_id not in segments]
        try:
            records = await load_records(self._catalog.store, ids)
        except (KeyStoreError, MetadataFormatError) as error:
            raise self._error_of(error) from error
        self._records = dict(zip(ids, records, strict=True))
        self._as_of = writes

    def _error_of(self, error: KeyStoreError | MetadataFormatError) -> SegmentStoreError:
        self._check_running()
        return catalog_error(self._metadata.container_id, error)


def _range_of(prefix: str) -> StoreKeyRange | None:
    try:
        return name_range(prefix)
    except UnicodeEncodeError:
        # No name in the catalog has a lone surrogate.
        return None


def _slices(names: Sequence[str], ids: Sequence[int], prefix: str) -> Iterator[list[NamedId]]:
    """The names that begin with the prefix, a slice of all names at a time."""
    for begin in range(0, len(names), NAMES_OF_A_SLICE):
        end = begin + NAMES_OF_A_SLICE
        yield [
            pair
            for pair in zip(names[begin:end], ids[begin:end], strict=True)
            if pair[0].startswith(prefix)
        ]
