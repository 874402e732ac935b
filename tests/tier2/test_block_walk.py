"""The walk through an object in pieces of any length: each fault at its place, each byte once, one
piece at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

import pytest

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock
from tier2.block_object import CODEC_NONE, CODEC_ZSTD, BlockChecksumError
from tier2.block_walk import BlockFault, BlockWalk, ObjectEndError
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_builder import ObjectBuilder

CONTAINER = 3
NAME = "an/object"
EXTENT_BYTES = 16
PAYLOADS = [(11, 100, b"ab" * 60), (12, 0, b"x"), (13, 7, bytes(range(100, 175)))]
PIECES = [1, 40, 150, 161, 300, 1 << 20]
"""Shorter and longer than a header, an extent, a table and a block."""


class Place(MemoryObjectStorage):
    """One object; of what it gave last, how many know it besides when it is asked again."""

    def __init__(
        self,
        codec: int = CODEC_NONE,
        extent_bytes: int = EXTENT_BYTES,
        payloads: Sequence[tuple[int, int, bytes]] = PAYLOADS,
    ) -> None:
        super().__init__(Runtime(clock=LoopClock(), executor=inline_executor))
        builder = ObjectBuilder(CONTAINER, 5, extent_bytes, codec=codec)
        for segment_id, start_offset, payload in payloads:
            builder.add(segment_id, start_offset, [payload])
        self.record, chunks = builder.finish(NAME, 0)
        self.chunks = [chunk for _, chunk in chunks]
        self.whole = b"".join(builder.parts)
        self.have(self.whole)
        self.given = b""
        self.known: list[int] = []

    def have(self, data: bytes) -> None:
        self.bucket.objects[NAME] = MemoryObject(data, bytes(16), 0)

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        self.known.append(sys.getrefcount(self.given) - 2)
        self.given = b""
        data = self.given = await super().get_range(name, offset, length)
        return data


async def walk(
    place: Place, piece_bytes: int, *, threads: bool = False
) -> tuple[BlockWalk, list[BlockFault]]:
    executor = inline_executor("checksums", 1) if threads else None
    walked = BlockWalk(
        place, CONTAINER, place.record, place.chunks, piece_bytes=piece_bytes, executor=executor
    )
    return walked, await walked.run()


@pytest.mark.parametrize("codec", [CODEC_NONE, CODEC_ZSTD])
@pytest.mark.parametrize("piece_bytes", PIECES)
def test_every_byte_is_read_once(codec: int, piece_bytes: int) -> None:
    place = Place(codec)
    walked, faults = run_virtual(walk(place, piece_bytes))
    assert faults == []
    assert (walked.blocks, walked.bytes_read) == (len(PAYLOADS), place.record.size)


@pytest.mark.parametrize("codec", [CODEC_NONE, CODEC_ZSTD])
@pytest.mark.parametrize("piece_bytes", PIECES)
def test_a_flipped_byte_is_a_fault_of_its_block_and_of_no_other(
    codec: int, piece_bytes: int
) -> None:
    place = Place(codec)
    borders = [*(chunk.block_offset for chunk in place.chunks), place.record.size]

    async def body() -> None:
        for chunk, (start, end) in zip(place.chunks, pairwise(borders), strict=True):
            for position in range(start, end):
                changed = bytearray(place.whole)
                changed[position] ^= 0x41
                place.have(bytes(changed))
                _, faults = await walk(place, piece_bytes)
                assert [(fault.position, fault.chunks) for fault in faults] == [(start, (chunk,))]

    run_virtual(body())


@pytest.mark.parametrize("piece_bytes", PIECES)
def test_a_fault_names_its_extent_and_says_how_many_there_are(piece_bytes: int) -> None:
    place = Place()
    first = place.chunks[1].block_offset - len(PAYLOADS[0][2])
    changed = bytearray(place.whole)
    for extent in (2, 4, 5):
        changed[first + extent * EXTENT_BYTES + 3] ^= 1
    place.have(bytes(changed))
    _, (fault,) = run_virtual(walk(place, piece_bytes))
    assert isinstance(fault.error, BlockChecksumError)
    assert fault.error.place == "extent 2"
    assert fault.error.reason.endswith("(and 2 more extents of it)")


@pytest.mark.parametrize("piece_bytes", PIECES)
def test_of_an_object_that_is_cut_what_is_there_is_right_and_the_rest_is_beyond_its_end(
    piece_bytes: int,
) -> None:
    place = Place()
    ends = [*(chunk.block_offset for chunk in place.chunks[1:]), place.record.size]

    async def body() -> None:
        for size in range(1, place.record.size):
            place.have(place.whole[:size])
            _, faults = await walk(place, piece_bytes)
            assert all(isinstance(fault.error, ObjectEndError) for fault in faults)
            cut = [chunk for chunk, end in zip(place.chunks, ends, strict=True) if end > size]
            assert [chunk for fault in faults for chunk in fault.chunks] == cut

    run_virtual(body())


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("flipped", [None, 3, 200, 300, 2000])
@pytest.mark.parametrize("piece_bytes", [300, 600, 2000])
def test_a_piece_is_released_before_the_next_is_fetched(
    piece_bytes: int, flipped: int | None, threads: bool
) -> None:
    place = Place(extent_bytes=256, payloads=[(1, 0, bytes(4000)), (2, 0, bytes(3000))])
    if flipped is not None:
        place.have(place.whole[:flipped] + b"?" + place.whole[flipped + 1 :])
    _, faults = run_virtual(walk(place, piece_bytes, threads=threads))
    assert bool(faults) == (flipped is not None)
    assert len(place.known) > 3
    assert set(place.known[1:]) == {0}
