"""The skeleton: the least an asyncio log can do and still acknowledge durably.

A ceiling, not a store.

A future per append, a 24-byte header with CRC32C, batches packed on the loop. One writer thread
writes and fdatasyncs each batch (group commit), two batches in flight so that one is packed while
the other syncs. No metadata, no conditions, no index, no cache, no Tier 2, and the file is recycled
when it is full.

Record: crc32c of the payload, payload length, sequence number, offset (`>IIQQ`), payload.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.floor import FILE_BYTES, preallocated
from segmentstore.contracts.checksum import Buffer, crc32c

HEADER = struct.Struct(">IIQQ")
_PREFIX = struct.Struct(">I")

BATCH_BYTES_MAX = 1 << 20
"""A batch closes when it has reached this; one larger append makes a batch of its own."""
BATCHES_IN_FLIGHT = 2
_COPY_BELOW = 4096
"""Payloads from here on go to pwritev as they are; below, copying into one buffer is cheaper."""

OnCommit = Callable[[Sequence[bytes]], None]


class Skeleton:
    """Used on one event loop.

    `on_commit` sees the payloads of each durable batch after its futures are resolved.
    """

    def __init__(
        self, path: Path, file_bytes: int = FILE_BYTES, on_commit: OnCommit | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._file_bytes = file_bytes
        self._file = preallocated(path, file_bytes)
        self._on_commit = on_commit
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="skeleton")
        self._waiting: list[tuple[bytes, asyncio.Future[int]]] = []
        self._taken = 0
        """Waiting entries before this index are packed already."""
        self._scheduled = False
        self._in_flight = 0
        self._position = 0
        self._sequence = 0
        self._offset = 0
        self.syncs = 0

    def append(self, data: bytes) -> asyncio.Future[int]:
        """Enqueue `data`; the future gives its offset once it is durable."""
        future = self._loop.create_future()
        self._waiting.append((data, future))
        if not self._scheduled and self._in_flight < BATCHES_IN_FLIGHT:
            self._scheduled = True
            self._loop.call_soon(self._pack)
        return future

    def append_batch(self, records: Sequence[bytes]) -> asyncio.Future[int]:
        """Enqueue `records` as one append, each behind its 4-byte length."""
        pack = _PREFIX.pack
        parts: list[bytes] = []
        for record in records:
            parts.append(pack(len(record)))
            parts.append(record)
        return self.append(b"".join(parts))

    async def close(self) -> None:
        """Release file and thread. Everything appended must have been awaited."""
        assert not self._in_flight, self._in_flight
        assert self._taken == len(self._waiting), (self._taken, len(self._waiting))
        self._writer.shutdown()
        self._file.close()

    def _pack(self) -> None:
        self._scheduled = False
        while self._taken < len(self._waiting) and self._in_flight < BATCHES_IN_FLIGHT:
            self._submit(*self._take_batch())

    def _take_batch(self) -> tuple[list[Buffer], int, list[tuple[bytes, asyncio.Future[int]]], int]:
        buffers: list[Buffer] = []
        copied = bytearray()
        length = 0
        waiting, start = self._waiting, self._taken
        index, sequence, offset = start, self._sequence, self._offset
        pack, checksum, header_bytes = HEADER.pack, crc32c, HEADER.size
        while index < len(waiting) and length < BATCH_BYTES_MAX:
            data = waiting[index][0]
            size = len(data)
            if index > start and length + header_bytes + size > self._file_bytes:
                break
            sequence += 1
            copied += pack(checksum(data), size, sequence, offset)
            if size < _COPY_BELOW:
                copied += data
            else:
                buffers += (copied, data)
                copied = bytearray()
            offset += size
            length += header_bytes + size
            index += 1
        if copied:
            buffers.append(copied)
        first_offset, self._sequence, self._offset = self._offset, sequence, offset
        batch = waiting[start:index]
        if index == len(waiting):
            self._waiting, self._taken = [], 0
        else:
            self._taken = index
        return buffers, length, batch, first_offset

    def _submit(
        self,
        buffers: list[Buffer],
        length: int,
        batch: list[tuple[bytes, asyncio.Future[int]]],
        first_offset: int,
    ) -> None:
        if self._position + length > self._file_bytes:
            self._position = 0
        self._in_flight += 1
        position = self._position
        self._position += length

        def done(written: ThreadFuture[None]) -> None:
            self._loop.call_soon_threadsafe(self._committed, batch, first_offset, written)

        self._writer.submit(self._write, buffers, position).add_done_callback(done)

    def _write(self, buffers: list[Buffer], position: int) -> None:
        self._file.pwrite(buffers, position)
        self._file.sync()

    def _committed(
        self,
        batch: list[tuple[bytes, asyncio.Future[int]]],
        first_offset: int,
        written: ThreadFuture[None],
    ) -> None:
        self._in_flight -= 1
        error = written.exception()
        if error is not None:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        self.syncs += 1
        offset = first_offset
        for data, future in batch:
            if not future.done():
                future.set_result(offset)
            offset += len(data)
        if self._on_commit is not None:
            self._on_commit([data for data, _ in batch])
        if self._taken < len(self._waiting) and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pack)


def scan(content: bytes) -> list[tuple[int, int]]:
    """(offset, length) of each whole record from the start of `content`, checksums verified; ends
    at the first that is not.

    What replay would cost without metadata and index.
    """
    found = []
    position, sequence = 0, 1
    view = memoryview(content)
    unpack, header_bytes, end = HEADER.unpack_from, HEADER.size, len(content)
    while position + header_bytes <= end:
        checksum, length, number, offset = unpack(view, position)
        position += header_bytes
        if number != sequence or crc32c(view[position : position + length]) != checksum:
            break
        found.append((offset, length))
        position += length
        sequence += 1
    return found
