"""SegmentResidency: what of a container's metadata is in memory, and what in the catalog alone.

Segments are active or idle (docs/decisions/0059). Of long active ones some chunks and attributes
may be in the catalog alone (0060). Rules of this file:

- nothing leaves memory that the catalog does not have as it is, or that is about to change;
- a segment keeps its chunks while an accepted operation needs some of them, or removes it together
  with what it was merged into.

Pure: no await, no clock, no I/O. The caller decides what leaves memory, and brings it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from durablelog.catalog.metadata_changes import MetadataChanges
from durablelog.metadata_needs import (
    CHUNK_USERS,
    Need,
    chunks_needed,
    is_known,
    needs_of,
    sources_needed,
)
from durablelog.operations import MergeOperation, Operation
from durablelog.pending_segment import PendingSegment
from segmentstore.contracts.attributes import AttributeKey
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata


class SegmentResidency:
    """The part of the metadata updater that is about memory."""

    def __init__(self, metadata: ContainerMetadata) -> None:
        self.metadata = metadata
        self.changes = MetadataChanges()
        """What commits changed, for the catalog: of every operation, live and in replay."""
        self.pending: dict[int, PendingSegment] = {}
        """Views of the segments touched since the last checkpoint: made once, not once per
        append.
        """
        self._chunk_users: dict[int, int] = {}
        """Segment id to the number of accepted operations that need chunks of it."""
        self._merging: dict[int, list[MergeOperation]] = {}
        """Accepted merges that are not committed, by target id."""

    def activate(self, segment: SegmentMetadata) -> None:
        """Take a segment into memory as the catalog has it: one that was idle."""
        metadata = self.metadata
        assert segment.flushed, segment
        assert segment.segment_id not in metadata.segments, segment
        assert segment.name not in metadata.names, segment
        metadata.segments[segment.segment_id] = segment
        metadata.names[segment.name] = segment.segment_id
        if not segment.whole:
            metadata.partial.add(segment.segment_id)
        metadata.idle -= 1
        assert metadata.idle >= 0, segment

    def may_evict(self, segment: SegmentMetadata) -> bool:
        """Whether the catalog has all there is of a segment, and nothing of it is on its way."""
        if not (segment.flushed and self.changes.is_written(segment)):
            return False
        pending = self.pending.get(segment.segment_id)
        return pending is None or pending.idle

    def evict(self, segment: SegmentMetadata) -> None:
        """Have a segment in the catalog alone."""
        assert self.may_evict(segment), segment
        metadata = self.metadata
        del metadata.segments[segment.segment_id]
        del metadata.names[segment.name]
        metadata.partial.discard(segment.segment_id)
        self.pending.pop(segment.segment_id, None)
        metadata.idle += 1

    def unknown(self, operation: Operation) -> list[Need]:
        """What a live operation needs, and memory has not: nothing, or it cannot be accepted."""
        metadata = self.metadata
        if not metadata.partial:
            return []
        needs = chain(needs_of(operation), sources_needed(metadata, operation, self._merging))
        return [need for need in needs if not is_known(metadata, need)]

    def may_forget_chunks(self, segment: SegmentMetadata) -> bool:
        """Whether pages of a segment may leave memory that the catalog has.

        Not while an operation is on its way that needs some, or that removes the segment, or one
        that it was merged into. O(depth of merges).
        """
        holder: SegmentMetadata | None = segment
        while holder is not None:
            pending = self.pending.get(holder.segment_id)
            removing = pending is not None and pending.removed and not pending.idle
            if removing or holder.segment_id in self._chunk_users:
                return False
            into = holder.merged_into
            holder = None if into is None else self.metadata.segments[into]
        return True

    def forget_pages(self, segment: SegmentMetadata, keys: Sequence[int]) -> None:
        """Have pages of chunks in the catalog alone, which has them as they are."""
        assert self.may_forget_chunks(segment), segment
        segment.chunks.forget(keys)
        if not segment.chunks.whole:
            self.metadata.partial.add(segment.segment_id)

    def forget_attributes(self, segment: SegmentMetadata) -> None:
        """Have the attributes in the catalog alone that did not change of late. O(those that
        did). What was frozen last has been written.
        """
        assert self.changes.all_written, segment
        keep = self.changes.attributes_in_use(segment.segment_id)
        pending = self.pending.get(segment.segment_id)
        if pending is not None:
            keep.update(pending.attributes)
        segment.attributes.make_partial(keep)
        self.metadata.partial.add(segment.segment_id)

    def forget_attribute(self, segment: SegmentMetadata, key: AttributeKey) -> None:
        """Have an attribute in the catalog alone, unless it changed since that was written, or is
        about to.
        """
        pending = self.pending.get(segment.segment_id)
        if (
            not segment.attributes.whole
            and self.changes.is_attribute_written(segment.segment_id, key)
            and (pending is None or key not in pending.attributes)
        ):
            segment.attributes.forget((key,))

    def is_merging(self, segment_id: int) -> bool:
        """Whether a merge into the segment is accepted, and not committed. O(1)."""
        return segment_id in self._merging

    def _begin_merge(self, operation: MergeOperation) -> None:
        """The merge is accepted."""
        self._merging.setdefault(operation.target_id, []).append(operation)

    def _end_merge(self, operation: MergeOperation) -> None:
        """The merge is committed."""
        merges = self._merging[operation.target_id]
        del merges[0]
        if not merges:
            del self._merging[operation.target_id]

    def _forget_pending(self) -> None:
        """Nothing is on its way."""
        self.pending.clear()
        self._merging.clear()

    def _keep_chunks(self, operation: Operation) -> None:
        """The operation is accepted."""
        if type(operation) not in CHUNK_USERS:
            return
        users = self._chunk_users
        for need in chunks_needed(operation):
            users[need.segment_id] = users.get(need.segment_id, 0) + 1

    def _release_chunks(self, operation: Operation) -> None:
        """The operation is committed."""
        users = self._chunk_users
        for need in chunks_needed(operation):
            left = users.get(need.segment_id, 0) - 1
            if left > 0:
                users[need.segment_id] = left
            else:
                users.pop(need.segment_id, None)
