"""What Tier 2 holds of a container, kept in its metadata: chunks gained, dropped, linked; objects counted.

Called by the metadata updater alone, on committed state, so live and replay go the same way. Pure.
An object leaves `objects` for `garbage` in the very operation that drops its last chunk: that the log
says so, and since when, is what makes deletion safe to resume after any crash.
"""

from __future__ import annotations

from durablelog.operations import StorageUpdateOperation
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import ContainerMetadata, GarbageObject, LiveObject, SegmentMetadata


def apply_storage_update(metadata: ContainerMetadata, operation: StorageUpdateOperation) -> None:
    """Make uploaded objects known and their chunks visible, then link merges that are whole in Tier 2."""
    for record in operation.objects:
        metadata.objects[record.name] = LiveObject(record)
    for segment_id, chunk in operation.chunks:
        segment = metadata.segments.get(segment_id)
        if segment is not None:
            _add_chunk(metadata, segment, chunk)
    for record in operation.objects:
        live = metadata.objects.get(record.name)
        if live is not None and not live.live_chunks:
            _retire(metadata, record.name, operation.timestamp_ms)
    for target_id, source_id in operation.links:
        target, source = metadata.segments.get(target_id), metadata.segments.get(source_id)
        if target is not None and source is not None:
            _link(metadata, target, source, operation.timestamp_ms)


def truncate(metadata: ContainerMetadata, segment: SegmentMetadata, offset: int, timestamp_ms: int) -> None:
    """Move the start offset; drop chunks and merged sources that lie wholly below it."""
    segment.start_offset = offset
    dropped = 0
    for chunk in segment.chunks:
        if chunk.end_offset > offset:
            break
        dropped += 1
    gone = segment.chunks[:dropped]
    del segment.chunks[:dropped]
    for chunk in gone:
        _release(metadata, chunk, timestamp_ms)
    while segment.merges and segment.merges[0].end_offset <= offset:
        merge = segment.merges.pop(0)
        discard(metadata, metadata.segments[merge.source_id], timestamp_ms)
    segment.storage_length = max(segment.storage_length, offset)


def discard(metadata: ContainerMetadata, segment: SegmentMetadata, timestamp_ms: int) -> None:
    """Remove a segment's record with everything that hangs on it: chunks, and sources merged into it."""
    del metadata.segments[segment.segment_id]
    for chunk in segment.chunks:
        _release(metadata, chunk, timestamp_ms)
    for merge in segment.merges:
        discard(metadata, metadata.segments[merge.source_id], timestamp_ms)


def _add_chunk(metadata: ContainerMetadata, segment: SegmentMetadata, chunk: ChunkRecord) -> None:
    # Truncation may have passed the chunk while it was uploaded: wholly (unwanted) or in part (still fits).
    if chunk.end_offset <= segment.storage_length:
        return
    assert chunk.start_offset <= segment.storage_length, (segment, chunk)
    assert chunk.end_offset <= segment.length, (segment, chunk)
    if segment.chunks:
        assert chunk.start_offset == segment.chunks[-1].end_offset, (segment, chunk)
    live = metadata.objects[chunk.object_name]
    live.live_chunks += 1
    segment.chunks.append(chunk._replace(object_name=live.record.name))
    segment.storage_length = chunk.end_offset
    segment.encoded = None


def _link(metadata: ContainerMetadata, target: SegmentMetadata, source: SegmentMetadata, timestamp_ms: int) -> None:
    merge = target.merges[0]
    assert merge.source_id == source.segment_id, (target, source)
    assert source.storage_length == source.length == merge.length, (target, source)
    assert merge.offset <= target.storage_length < merge.end_offset, (target, source)
    for chunk in source.chunks:
        moved = chunk._replace(start_offset=chunk.start_offset + merge.offset)
        if moved.end_offset <= target.start_offset:
            _release(metadata, chunk, timestamp_ms)
        else:
            target.chunks.append(moved)
    source.chunks = []
    target.storage_length = merge.end_offset
    target.merges.pop(0)
    target.encoded = None
    del metadata.segments[source.segment_id]


def _release(metadata: ContainerMetadata, chunk: ChunkRecord, timestamp_ms: int) -> None:
    live = metadata.objects[chunk.object_name]
    live.live_chunks -= 1
    if not live.live_chunks:
        _retire(metadata, chunk.object_name, timestamp_ms)


def _retire(metadata: ContainerMetadata, name: str, timestamp_ms: int) -> None:
    live = metadata.objects.pop(name)
    metadata.garbage[name] = GarbageObject(live.record, timestamp_ms)
