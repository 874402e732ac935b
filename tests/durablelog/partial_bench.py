"""A packer over a container of which memory knows as little as it may."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from durablelog.frame_requests import PackedFrame
from durablelog.metadata_needs import AttributeNeed, Need
from durablelog.operations import CreateOperation, StorageUpdateOperation
from segmentstore.contracts.attribute_table import NO_ATTRIBUTES
from segmentstore.contracts.attributes import KeyedUpdate, UpdateType
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from tests.durablelog.test_frame_packer import Bench, full_frames

KEYS = [bytes([number]) * 16 for number in range(5)]


def replace(*values: tuple[int, int]) -> tuple[KeyedUpdate, ...]:
    return tuple((KEYS[key], UpdateType.REPLACE, value, None) for key, value in values)


class PartialBench(Bench):
    """A bench of which memory knows as little as it may when a run begins."""

    def __init__(self, loop: asyncio.AbstractEventLoop, payload_bytes_max: int = 500) -> None:
        self.stored: dict[int, tuple[dict[bytes, int], list[list[ChunkRecord]]]] = {}
        """What a catalog would have of segments: attributes and pages."""
        self.stalls = 0
        super().__init__(loop, payload_bytes_max)

    def forget(self) -> None:
        for segment_id, segment in self.metadata.segments.items():
            if segment.merged_into is not None:
                continue
            attributes, pages = self.stored.get(segment_id, ({}, []))
            attributes = attributes | {
                key: value for key, value in segment.attributes.known() if value is not None
            }
            for key, value in segment.attributes.known():
                if value is None:
                    attributes.pop(key, None)
            pages = [
                page
                for page in pages
                if segment.chunks.gaps(page[0].start_offset, page[-1].end_offset)
            ]
            known = segment.chunks.known_pages()
            pages += [records[:count] for _, (records, count) in known]
            self.stored[segment_id] = (attributes, pages)
            segment.chunks.forget([key for key, _ in known])
            if segment.attributes is not NO_ATTRIBUTES:
                view = self.updater.pending.get(segment_id)
                segment.attributes.make_partial(view.attributes if view is not None else ())
            if not segment.whole:
                self.metadata.partial.add(segment_id)

    def learn(self, needs: Iterable[Need]) -> None:
        for need in needs:
            segment = self.metadata.segments[need.segment_id]
            attributes, pages = self.stored[need.segment_id]
            if isinstance(need, AttributeNeed):
                assert not segment.attributes.knows(need.key)
                segment.attributes.learn({need.key: attributes.get(need.key)})
                continue
            # Another need may have brought them.
            for page in pages:
                if page[0].start_offset < need.end_offset and page[-1].end_offset > need[1]:
                    segment.chunks.learn(page[0].start_offset, page)
            assert segment.chunks.knows(*need[1:])

    def learn_all(self) -> None:
        for segment_id in list(self.metadata.partial):
            segment = self.metadata.segments[segment_id]
            attributes, pages = self.stored[segment_id]
            segment.attributes.learn(dict.fromkeys(KEYS) | attributes)
            for page in pages:
                segment.chunks.learn(page[0].start_offset, page)

    def pack(self) -> list[PackedFrame]:
        self.packer.pack(self.queue, self.time_ms, 1)
        return full_frames(self.packer)

    def run(self, *, frames_max: int = 1) -> None:
        self.time_ms += 1
        packed: list[PackedFrame] = []
        while self.queue:
            self.packer.pack(self.queue, self.time_ms, frames_max)
            packed += full_frames(self.packer)
            if self.packer.stalled:
                self.stalls += 1
                before = self.state()
                assert not self.pack()
                assert self.packer.stalled
                assert self.state() == before
                self.learn(self.packer.lacks(self.queue))
        assert not self.packer.stalled
        self.packer.seal()
        for frame in [*packed, *full_frames(self.packer)]:
            self._commit(frame)
        assert self.packer.idle
        assert self.packer.lacks(self.queue) == []
        assert_metadata_valid(self.metadata)

    def state(self) -> object:
        """Of all that packing changes."""
        views = self.updater.pending.values()
        return (
            list(self.queue),
            self.packer.bytes_taken,
            self.packer.idle,
            self.packer._room,
            [
                (
                    *(view.segment_id, view.length, view.in_flight, view.attribute_count),
                    *(dict(view.attributes), list(view.parts or ()), view.group_attributes),
                )
                for view in views
            ],
            [future.done() for _, future in self.waiting()],
        )

    def waiting(self) -> Iterator[tuple[Any, asyncio.Future[Any]]]:
        for request in self.queue:
            yield (
                (request, request[2])
                if isinstance(request, tuple)
                else (request.operation, request.future)
            )

    def create(self, name: str, *values: tuple[int, int]) -> int:
        created = self.submit(CreateOperation(name, updates=replace(*values)))
        self.run()
        return int(str(created.result()))

    def store(self, segment_id: int, chunks: int) -> SegmentMetadata:
        """Append so many chunks of ten bytes."""
        segment = self.metadata.segments[segment_id]
        _ = self.append(segment_id, bytes(10 * chunks))
        starts = range(segment.length, segment.length + 10 * chunks, 10)
        self.run()
        found = [(segment_id, chunk(segment_id, start)) for start in starts]
        _ = self.submit(StorageUpdateOperation([ObjectRecord("o", 1000, 1)], found))
        self.run()
        return segment


def chunk(segment_id: int, start: int, length: int = 10) -> ChunkRecord:
    return ChunkRecord(start, length, "o", start, segment_id, start)
