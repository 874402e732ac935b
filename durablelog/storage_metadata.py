"""What Tier 2 holds of a container, kept in its metadata: chunks gained, dropped, linked; objects
counted.

Called by the metadata updater alone, on committed state, so live and replay go the same way. Pure.
The bytes of a segment stay at their offsets whatever happens here: only where Tier 2 has them
changes. An object leaves `objects` for `garbage` in the very operation that drops its last chunk.
The log says so, and since when: that makes deletion safe to resume after any crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile
from operator import itemgetter

from durablelog.catalog.metadata_changes import MetadataChanges
from durablelog.operations import (
    ChunkReplacement,
    DeletionClockOperation,
    LinkChunksOperation,
    Operation,
    ReleaseChunksOperation,
    ReplaceChunksOperation,
    StorageUpdateOperation,
    TruncateOperation,
)
from segmentstore.contracts.chunk_list import NO_CHUNKS, PageContent
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata, MergeRecord, SegmentMetadata
from segmentstore.contracts.object_states import DeletionClockReading, GarbageObject, LiveObject


def apply_storage_update(
    metadata: ContainerMetadata, changes: MetadataChanges, operation: StorageUpdateOperation
) -> None:
    """Make uploaded objects known and their chunks visible, then link merges that are whole in Tier
    2.
    """
    _add_objects(metadata, changes, operation.objects)
    for segment_id, chunk in operation.chunks:
        segment = metadata.segments.get(segment_id)
        if segment is not None:
            _add_chunk(metadata, changes, segment, chunk)
    for name in dict.fromkeys(chunk.object_name for _, chunk in operation.chunks):
        live = metadata.objects.get(name)
        if live is not None:
            changes.set_object(live)
    _retire_unwanted(metadata, changes, operation.objects, operation)
    for target_id, links in groupby(operation.links, key=itemgetter(0)):
        target = metadata.segments.get(target_id)
        if target is not None:
            sources = [metadata.segments.get(source_id) for _, source_id in links]
            there = [source for source in sources if source is not None]
            _link(metadata, changes, target, there, operation)


def apply_replace_chunks(
    metadata: ContainerMetadata, changes: MetadataChanges, operation: ReplaceChunksOperation
) -> None:
    """Make consolidated objects known, and put their chunks where their segments still have exactly
    the old ones.
    """
    _add_objects(metadata, changes, operation.objects)
    for replacement in operation.replacements:
        segment = metadata.segments.get(replacement.segment_id)
        if segment is not None:
            _replace(metadata, changes, segment, replacement, operation)
    _retire_unwanted(metadata, changes, operation.objects, operation)


def apply_deletion_clock(
    metadata: ContainerMetadata, changes: MetadataChanges, operation: DeletionClockOperation
) -> None:
    """Take a reading of the deletion clock over, and count garbage from it that was not counted
    yet. O(that garbage).
    """
    garbage = metadata.garbage
    clock_ms = max(operation.clock_ms, metadata.deletion_clock.clock_ms)
    metadata.deletion_clock = DeletionClockReading(clock_ms, operation.boot_id, operation.boot_ms)
    changes.set_clock(metadata.deletion_clock)
    # Garbage is in the order of operations, so what is not counted yet is at the end.
    for name in reversed(garbage):
        each = garbage[name]
        if each.since_ms is not None:
            break
        if each.sequence_number <= operation.through:
            garbage[name] = counted = each._replace(since_ms=clock_ms)
            changes.set_garbage(counted)


def truncate(
    metadata: ContainerMetadata,
    changes: MetadataChanges,
    segment: SegmentMetadata,
    offset: int,
    operation: TruncateOperation,
) -> None:
    """Move the start offset; drop merged sources that lie wholly below it, and chunks, or leave
    those to be released.
    """
    _change(changes, segment)
    segment.start_offset = offset
    in_slices = operation.in_slices
    if not in_slices:
        _release_below(metadata, changes, segment, offset, operation)
    elif segment.chunks and segment.chunks.start_offset < offset:
        # Where the first one ends may be known to the catalog alone.
        _leave_to_release(metadata, segment)
    passed = list(takewhile(lambda merge: merge.end_offset <= offset, segment.merges))
    segment.drop_merges(len(passed))
    for merge in passed:
        source = metadata.segments[merge.source_id]
        discard(metadata, changes, source, operation, in_slices=in_slices)
    segment.storage_length = max(segment.storage_length, offset)


def discard(
    metadata: ContainerMetadata,
    changes: MetadataChanges,
    segment: SegmentMetadata,
    operation: Operation,
    *,
    in_slices: bool = False,
) -> None:
    """Remove a segment's record with everything that hangs on it: chunks, and sources merged into
    it. In slices, records with chunks stay until these are released.
    """
    # Without recursion: sources have sources, as deep as callers merged while Tier 2 was away.
    left = [segment]
    while left:
        each = left.pop()
        left += [metadata.segments[merge.source_id] for merge in reversed(each.merges)]
        del metadata.segments[each.segment_id]
        if in_slices and each.chunks:
            _change(changes, each)
            each.deleted = each.releasing = True
            each.merged_into, each.merges = None, ()
            metadata.releasing[each.segment_id] = each
            changes.put_off(each)
        else:
            for chunk in each.chunks:
                _release(metadata, changes, each.segment_id, chunk, operation)
            _remove(metadata, changes, each)


def apply_release_chunks(
    metadata: ContainerMetadata, changes: MetadataChanges, operation: ReleaseChunksOperation
) -> None:
    """Release some of the chunks that truncations and deletions left. O(those)."""
    for segment_id, end_offset in operation.releases:
        segment = metadata.releasing.get(segment_id)
        if segment is None:
            continue
        _change(changes, segment)
        end = min(end_offset, segment.release_end)
        _release_below(metadata, changes, segment, end, operation)
        if segment.deleted:
            segment.start_offset = max(segment.start_offset, end)
            if not segment.chunks:
                _remove(metadata, changes, segment)
        elif end >= segment.start_offset:
            segment.releasing = False
            del metadata.releasing[segment_id]


def _release_below(
    metadata: ContainerMetadata,
    changes: MetadataChanges,
    segment: SegmentMetadata,
    offset: int,
    operation: Operation,
) -> None:
    pages: dict[int, PageContent | None] = {}
    for chunk in segment.chunks.remove_below(offset, pages):
        _release(metadata, changes, segment.segment_id, chunk, operation)
    changes.set_pages(segment.segment_id, pages)


def _remove(
    metadata: ContainerMetadata, changes: MetadataChanges, segment: SegmentMetadata
) -> None:
    """Nothing is left of a segment, which is in no table of active ones any more."""
    changes.remove(segment)
    metadata.releasing.pop(segment.segment_id, None)
    metadata.partial.discard(segment.segment_id)


def _add_objects(
    metadata: ContainerMetadata, changes: MetadataChanges, records: Sequence[ObjectRecord]
) -> None:
    for record in records:
        if record.name not in metadata.objects and record.name not in metadata.garbage:
            metadata.objects[record.name] = live = LiveObject(record)
            changes.set_object(live)


def _retire_unwanted(
    metadata: ContainerMetadata,
    changes: MetadataChanges,
    records: Sequence[ObjectRecord],
    operation: Operation,
) -> None:
    for record in records:
        live = metadata.objects.get(record.name)
        if live is not None and not live.live_chunks:
            _retire(metadata, changes, record.name, operation)


def _replace(
    metadata: ContainerMetadata,
    changes: MetadataChanges,
    segment: SegmentMetadata,
    replacement: ChunkReplacement,
    operation: Operation,
) -> None:
    _, old, new = replacement
    # An object reported by several operations may have lost everything of the first ones before the
    # last comes.
    if any(chunk.object_name not in metadata.objects for chunk in new):
        return
    gained = [metadata.objects[chunk.object_name] for chunk in new]
    taken = [
        chunk._replace(object_name=live.record.name)
        for chunk, live in zip(new, gained, strict=True)
    ]
    pages: dict[int, PageContent | None] = {}
    _change(changes, segment)
    if not segment.chunks.replace(old, taken, pages):
        return
    changes.set_pages(segment.segment_id, pages)
    for chunk, live in zip(taken, gained, strict=True):
        live.live_chunks += 1
        live.live_bytes += chunk.length
        changes.set_object(live)
    for chunk in old:
        _release(metadata, changes, segment.segment_id, chunk, operation)
    for chunk in taken:
        changes.set_place(segment.segment_id, chunk)
    if taken[0].end_offset <= segment.start_offset:
        # Others had planned it before a truncation into its first chunk.
        _leave_to_release(metadata, segment)


def _leave_to_release(metadata: ContainerMetadata, segment: SegmentMetadata) -> None:
    """Have the chunks below the start offset released in slices."""
    segment.releasing = True
    metadata.releasing[segment.segment_id] = segment


def _add_chunk(
    metadata: ContainerMetadata,
    changes: MetadataChanges,
    segment: SegmentMetadata,
    chunk: ChunkRecord,
) -> None:
    # Truncation may have passed the chunk while it was uploaded: wholly (unwanted) or in part
    # (still fits). One that was to follow chunks that are not released yet is uploaded again.
    if chunk.end_offset <= segment.storage_length or segment.detached:
        return
    # An object reported by several operations may have lost everything of the first ones before the
    # last comes: it is garbage and stays so. Its segment still owes these bytes to Tier 2.
    live = metadata.objects.get(chunk.object_name)
    if live is None:
        return
    assert chunk.start_offset <= segment.storage_length, (segment, chunk)
    assert chunk.end_offset <= segment.length, (segment, chunk)
    if segment.chunks:
        assert chunk.start_offset == segment.chunks.last.end_offset, (segment, chunk)
    _change(changes, segment)
    live.live_chunks += 1
    live.live_bytes += chunk.length
    if chunk.object_name is not live.record.name:
        # Of the log: all chunks in an object share its name.
        chunk = chunk._replace(object_name=live.record.name)
    segment.own_chunks().append(chunk)
    changes.add_chunk(segment, chunk)
    segment.storage_length = chunk.end_offset


def _link(
    metadata: ContainerMetadata,
    changes: MetadataChanges,
    target: SegmentMetadata,
    sources: Sequence[SegmentMetadata],
    operation: Operation,
) -> None:
    """Make the chunks of the target's first merges its own.

    The merges leave its list at once, not one by one. Those of a detached target stay as they are:
    they are linked when its old chunks have been released.
    """
    if target.detached:
        return
    for merge, source in zip(target.merges, sources, strict=False):
        _check_link(target, merge, source)
        _change(changes, target)
        changes.remove(source)
        _move_chunks(metadata, changes, target, merge, source.chunks, operation)
        source.chunks = NO_CHUNKS
        target.storage_length = merge.end_offset
        del metadata.segments[source.segment_id]
        metadata.partial.discard(source.segment_id)
    target.drop_merges(len(sources))


def apply_link_chunks(
    metadata: ContainerMetadata, changes: MetadataChanges, operation: LinkChunksOperation
) -> None:
    """Make some chunks of the target's first merge its own, from the head of the source on.
    O(those).

    The source begins behind them from now on, and the target is stored up to there: so a read
    finds each byte in one of the two.
    """
    target = metadata.segments.get(operation.target_id)
    source = metadata.segments.get(operation.source_id)
    if target is None or source is None or target.detached:
        return
    merge = next(iter(target.merges))
    _check_link(target, merge, source)
    assert operation.end_offset < source.length, (operation, source)
    _change(changes, target)
    _change(changes, source)
    pages: dict[int, PageContent | None] = {}
    chunks = source.chunks.remove_below(operation.end_offset, pages)
    changes.set_pages(source.segment_id, pages)
    _move_chunks(metadata, changes, target, merge, chunks, operation)
    source.start_offset = source.chunks.start_offset
    target.storage_length = max(target.storage_length, merge.offset + source.start_offset)


def _check_link(target: SegmentMetadata, merge: MergeRecord, source: SegmentMetadata) -> None:
    """Both are far enough in Tier 2."""
    assert merge.source_id == source.segment_id, (target, source)
    assert not source.merges, (target, source)
    assert source.storage_length == source.length == merge.length, (target, source)
    reached = merge.offset + source.start_offset
    assert reached <= target.storage_length < merge.end_offset, (target, source)


def _move_chunks(
    metadata: ContainerMetadata,
    changes: MetadataChanges,
    target: SegmentMetadata,
    merge: MergeRecord,
    chunks: Iterable[ChunkRecord],
    operation: Operation,
) -> None:
    """Chunks that were the source's are the target's, unless they lie below its start."""
    for chunk in chunks:
        moved = chunk._replace(start_offset=chunk.start_offset + merge.offset)
        if moved.end_offset <= target.start_offset:
            _release(metadata, changes, merge.source_id, chunk, operation)
        else:
            target.own_chunks().append(moved)
            changes.lose_place(merge.source_id, chunk)
            changes.add_chunk(target, moved)


def _release(
    metadata: ContainerMetadata,
    changes: MetadataChanges,
    segment_id: int,
    chunk: ChunkRecord,
    operation: Operation,
) -> None:
    live = metadata.objects[chunk.object_name]
    live.live_chunks -= 1
    live.live_bytes -= chunk.length
    changes.lose_place(segment_id, chunk)
    changes.set_object(live)
    if not live.live_chunks:
        _retire(metadata, changes, chunk.object_name, operation)


def _retire(
    metadata: ContainerMetadata, changes: MetadataChanges, name: str, operation: Operation
) -> None:
    live = metadata.objects.pop(name)
    garbage = GarbageObject(live.record, operation.timestamp_ms, operation.sequence_number)
    metadata.garbage[name] = garbage
    changes.retire(garbage)


def _change(changes: MetadataChanges, segment: SegmentMetadata) -> None:
    """The segment's record is about to change."""
    if segment.generation != changes.generation:
        changes.note(segment)
    segment.encoded = None
