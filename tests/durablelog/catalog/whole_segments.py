"""What memory and a catalog have together of segments that memory knows in part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from durablelog.catalog.key_store import KeyStore
from durablelog.catalog.segment_loading import load_attributes, load_pages, scan_attributes
from durablelog.metadata_needs import ALL_CHUNKS, AttributeNeed, ChunkNeed, Need, is_known
from segmentstore.contracts.attributes import AttributeKey, next_key
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.object_states import LiveObject

_SCANNED = 3


async def whole_of(
    store: KeyStore, segment: SegmentMetadata, objects: Mapping[str, LiveObject]
) -> SegmentMetadata:
    """A copy with all chunks, in their pages, and all attributes. The segment learns nothing.

    A gap is to consist of whole pages of the catalog.
    """
    copy = SegmentMetadata(segment.segment_id, segment.name, segment.created_ms)
    for name in set(SegmentMetadata.__slots__) - {"attributes", "chunks", "encoded", "merges"}:
        setattr(copy, name, getattr(segment, name))
    copy.merges = list(segment.merges)
    copy.apply_attributes(await _all_attributes(store, segment))
    pages = {key: records[:count] for key, (records, count) in segment.chunks.known_pages()}
    gaps = [(segment.segment_id, *gap) for gap in segment.chunks.gaps(0, ALL_CHUNKS)]
    async for some in load_pages(store, gaps, objects):
        for segment_id, key, chunks in some:
            assert segment_id == segment.segment_id
            assert key not in pages
            pages[key] = chunks
    copy.chunks = ChunkList()
    copy.own_chunks().extend_pages((chunks, None) for _, chunks in sorted(pages.items()))
    copy.chunks.check()
    assert len(copy.attributes) == len(segment.attributes)
    assert len(copy.chunks) == len(segment.chunks)
    return copy


async def _all_attributes(store: KeyStore, segment: SegmentMetadata) -> dict[AttributeKey, int]:
    found: dict[AttributeKey, int] = {}
    start: AttributeKey | None = None if segment.attributes.whole else bytes(16)
    while start is not None:
        some, more = await scan_attributes(store, segment.segment_id, start, _SCANNED)
        found |= some
        start = next_key(max(some)) if more else None
    for key, value in segment.attributes.known():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


async def together(
    store: KeyStore, metadata: ContainerMetadata, others: Iterable[SegmentMetadata]
) -> ContainerMetadata:
    """What is in memory, with other segments, all of them whole."""
    whole = ContainerMetadata(metadata.container_id)
    whole.adopt(metadata)
    whole.partial = set()
    for segment in others:
        assert segment.segment_id not in whole.segments
        assert segment.flushed
        whole.segments[segment.segment_id] = segment
        whole.names[segment.name] = segment.segment_id
        whole.idle -= 1
    assert whole.whole
    for segment in list(whole.all_records()):
        segment_id, copy = segment.segment_id, await whole_of(store, segment, metadata.objects)
        if not segment.deleted:
            whole.segments[segment_id] = copy
        if segment.releasing:
            whole.releasing[segment_id] = copy
    return whole


async def learn(store: KeyStore, metadata: ContainerMetadata, needs: Iterable[Need]) -> None:
    """Have memory know what is needed, as the engine has it."""
    missing = [need for need in needs if not is_known(metadata, need)]
    gaps = [
        (need.segment_id, *gap)
        for need in missing
        if isinstance(need, ChunkNeed)
        if (segment := metadata.with_chunks(need.segment_id)) is not None
        for gap in segment.chunks.gaps(*need[1:])
    ]
    async for pages in load_pages(store, gaps, metadata.objects):
        for segment_id, key, chunks in pages:
            segment = metadata.with_chunks(segment_id)
            assert segment is not None
            segment.chunks.learn(key, chunks)
    keys = [need for need in missing if isinstance(need, AttributeNeed)]
    for need, value in zip(keys, await load_attributes(store, keys), strict=True):
        metadata.segments[need.segment_id].attributes.learn({need.key: value})
    assert all(is_known(metadata, need) for need in missing)
