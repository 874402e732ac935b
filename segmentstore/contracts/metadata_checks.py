"""The invariants of metadata as assertions, for tests and tools."""

from __future__ import annotations

from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata


def assert_segment_valid(segment: SegmentMetadata) -> None:
    """The invariants of one record, which is in memory."""
    assert 0 <= segment.start_offset <= segment.length, segment
    assert 0 <= segment.storage_length <= segment.length, segment
    segment.chunks.check()
    assert segment.releasing or not segment.deleted, segment
    assert not segment.deleted or (not segment.merges and segment.merged_into is None), segment
    if not segment.releasing and segment.chunks:
        # With its first page in a gap that is not known.
        first = segment.chunks.known_pages()[0][1][0][0]
        assert segment.start_offset < first.end_offset or not segment.chunks.whole, segment
    if segment.start_offset < segment.storage_length:
        assert segment.chunks, segment
        assert segment.chunks.start_offset <= segment.start_offset, segment
        assert segment.chunks.last.end_offset == segment.storage_length, segment
    last_end = segment.storage_length
    for merge in segment.merges:
        assert merge.length > 0, (segment, merge)
        assert merge.end_offset > last_end or merge.offset >= last_end, (segment, merge)
        last_end = merge.end_offset
    assert last_end <= segment.length or not segment.merges, segment


def assert_metadata_valid(metadata: ContainerMetadata) -> None:
    """The invariants of what is in memory. O(everything)."""
    counts: dict[str, int] = {}
    for segment in metadata.all_records():
        segment_id = segment.segment_id
        assert metadata.with_chunks(segment_id) is segment, segment
        assert segment.releasing == (segment_id in metadata.releasing), segment
        assert segment_id <= metadata.sequence_number, segment
        assert_segment_valid(segment)
        if segment.deleted:
            assert segment_id not in metadata.names.values(), segment
        elif segment.merged_into is None:
            assert metadata.names.get(segment.name) == segment_id, segment
        else:
            assert segment.sealed, segment
        assert segment.whole or segment_id in metadata.partial, segment
        for _, (records, length) in segment.chunks.known_pages():
            for chunk in records[:length]:
                counts[chunk.object_name] = counts.get(chunk.object_name, 0) + 1
        for merge in segment.merges:
            source = metadata.segments[merge.source_id]
            assert source.merged_into == segment_id, (segment, source)
            assert source.length == merge.length, (segment, source)
            linked = merge.offset + source.start_offset
            assert not source.start_offset or linked <= segment.storage_length, (segment, source)
    assert all(map(metadata.with_chunks, metadata.releasing)), metadata.releasing
    for name, live in metadata.objects.items():
        found = counts.pop(name, 0)
        assert live.live_chunks > 0, live
        assert found == live.live_chunks or (found < live.live_chunks and not metadata.whole), live
    assert not counts, counts
    assert not metadata.objects.keys() & metadata.garbage.keys()
    for name, segment_id in metadata.names.items():
        assert metadata.segments[segment_id].name == name
