"""Runs: chunks of one object that lie near one another, to be fetched together; planned here, cut
up again here.

Rules of this file:

- a run's bytes are bounded; a chunk too large for one is read in stretches, each a run of its own;
- where a block ends is not known before its header is read: the most it can take is planned, within
  the object and up to the next block;
- what cannot be cut out of a fetched run is reported, not raised: it is read once more on its own.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.chunks import ChunkRecord
from tier2.block_object import (
    EXTENT_BYTES_DEFAULT,
    HEADER_BYTES,
    NAMED_HEADER_BYTES_MAX,
    BlockFormatError,
    BlockHeader,
    BlockIdentityError,
    block_prefix_length,
    decode_extents,
    parse_block_header,
    parse_extent_table,
)

RUN_BYTES_DEFAULT = 64 * 1024 * 1024
GAP_BYTES_MAX = 1024 * 1024
"""Bytes no caller asked for that are fetched rather than begin another run."""


class ChunkStretch(NamedTuple):
    """Bytes [offset, offset + length) of a chunk's segment, all inside of the chunk."""

    chunk: ChunkRecord
    offset: int
    length: int


class BlockRun(NamedTuple):
    """Bytes [start, end) of an object, with whole chunks in them; or, without a place, one stretch
    of a large chunk.
    """

    object_name: str
    start: int
    end: int
    stretches: tuple[ChunkStretch, ...]

    @property
    def wanted_bytes(self) -> int:
        """Of the payload."""
        return sum(stretch.length for stretch in self.stretches)

    @property
    def fetched_bytes(self) -> int:
        """What is asked of the storage, header and table of a stretch without a place apart."""
        return self.end - self.start or self.wanted_bytes


class StretchPayload(NamedTuple):
    """A stretch and its bytes, checked."""

    chunk: ChunkRecord
    offset: int
    data: Buffer


class CutRun(NamedTuple):
    """What was cut out of a fetched run."""

    payloads: list[StretchPayload]
    """Of each of its stretches; without bytes where a check failed."""
    failed: list[int]
    """Numbers of those."""
    length: int
    """Bytes of all the others."""


def plan_runs(
    object_name: str,
    object_size: int,
    chunks: Sequence[ChunkRecord],
    *,
    extent_bytes: int = EXTENT_BYTES_DEFAULT,
    run_bytes: int = RUN_BYTES_DEFAULT,
    gap_bytes: int = GAP_BYTES_MAX,
) -> list[BlockRun]:
    """Runs that cover `chunks`, which lie in the object and are sorted by `block_offset`; stretches
    in their order.

    ValueError if they are not, or lie elsewhere. No run takes more than `run_bytes` (at least one
    extent) of a fetch. Up to `gap_bytes` between two chunks are fetched unasked rather than begin
    another run.
    """
    runs: list[BlockRun] = []
    start = end = 0
    held: list[ChunkStretch] = []

    def close() -> None:
        if held:
            runs.append(BlockRun(object_name, start, end, tuple(held)))
            held.clear()

    for chunk, limit in _with_limits(object_name, object_size, chunks):
        most = (
            NAMED_HEADER_BYTES_MAX
            - HEADER_BYTES
            + block_prefix_length(chunk.length, extent_bytes)
            + chunk.length
        )
        chunk_end = min(chunk.block_offset + most, limit)
        if chunk_end - chunk.block_offset > run_bytes:
            close()
            runs += _pieces(chunk, max(run_bytes // extent_bytes, 1) * extent_bytes)
            continue
        if held and (
            max(chunk_end, end) - start > run_bytes or chunk.block_offset - end > gap_bytes
        ):
            close()
        if not held:
            start = end = chunk.block_offset
        end = max(end, chunk_end)
        held.append(ChunkStretch(chunk, chunk.start_offset, chunk.length))
    close()
    return runs


def _with_limits(
    object_name: str, object_size: int, chunks: Sequence[ChunkRecord]
) -> Iterator[tuple[ChunkRecord, int]]:
    """Each chunk, with the place its block must end at the latest."""
    limits: list[int] = []
    limit, place = object_size, object_size
    for chunk in reversed(chunks):
        if chunk.object_name != object_name or chunk.block_offset > place:
            raise ValueError(f"{chunk} is not in {object_name}, or behind the next of its chunks")
        if chunk.block_offset < place:
            limit, place = place, chunk.block_offset
        limits.append(limit)
    return zip(chunks, reversed(limits), strict=True)


def _pieces(chunk: ChunkRecord, piece_bytes: int) -> Iterator[BlockRun]:
    for offset in range(chunk.start_offset, chunk.end_offset, piece_bytes):
        stretch = ChunkStretch(chunk, offset, min(piece_bytes, chunk.end_offset - offset))
        yield BlockRun(chunk.object_name, 0, 0, (stretch,))


def cut_run(run: BlockRun, data: bytes, container_id: int) -> CutRun:
    """The bytes of each of the run's stretches out of what was fetched for it.

    Without a copy where there is no codec. Costs the checksums and the decompression of all of it.
    """
    view = memoryview(data)
    payloads, failed, length = list[StretchPayload](), list[int](), 0
    for number, stretch in enumerate(run.stretches):
        block = view[stretch.chunk.block_offset - run.start :]
        payload = _payload(block, stretch, container_id)
        if payload is None:
            failed.append(number)
            payload = b""
        payloads.append(StretchPayload(stretch.chunk, stretch.offset, payload))
        length += len(payload)
    return CutRun(payloads, failed, length)


def cut_nothing(run: BlockRun) -> CutRun:
    """The same of a run that could not be fetched."""
    payloads = [StretchPayload(chunk, offset, b"") for chunk, offset, _ in run.stretches]
    return CutRun(payloads, list(range(len(payloads))), 0)


def _payload(block: memoryview, stretch: ChunkStretch, container_id: int) -> Buffer | None:
    try:
        header = parse_block_header(block)
        check_block_identity(header, container_id, stretch.chunk)
        table = parse_extent_table(block, header)
        # A chunk may be a part of its block's payload.
        start = stretch.chunk.block_start_offset - header.start_offset
        first = start // header.extent_bytes
        last = extents_end(header, start + stretch.length)
        stored = block[
            header.prefix_length + table.stored_place(first) : header.prefix_length
            + table.stored_place(last)
        ]
        payload = decode_extents(header, table, first, stored)
    except BlockFormatError:
        return None
    start -= first * header.extent_bytes
    cut = memoryview(payload)[start : start + stretch.length]
    return cut if len(cut) == stretch.length else None


def extents_end(header: BlockHeader, position: int) -> int:
    """Number of the extent behind the one that holds the payload byte before `position`."""
    return -(-position // header.extent_bytes)


def check_block_identity(header: BlockHeader, container_id: int, chunk: ChunkRecord) -> None:
    """Raise BlockIdentityError unless the block is the one the chunk record means, and holds all of
    the chunk.
    """
    if header.container_id != container_id:
        raise BlockIdentityError(f"it is of container {header.container_id}, not {container_id}")
    if header.segment_id != chunk.block_segment_id:
        raise BlockIdentityError(
            f"it is of segment {header.segment_id}, not {chunk.block_segment_id}"
        )
    end_offset = chunk.block_start_offset + chunk.length
    if not header.start_offset <= chunk.block_start_offset < end_offset <= header.end_offset:
        raise BlockIdentityError(
            f"it holds bytes {header.start_offset} to {header.end_offset} of its segment,"
            f" not {chunk.block_start_offset} to {end_offset}"
        )
