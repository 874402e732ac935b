"""Bytes of a connection to commands, whatever the cuts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from segmentstore.contracts.checksum import Buffer
from segmentstore.wire.codec import HEADER, read_command
from segmentstore.wire.commands import Command
from segmentstore.wire.errors import WireError
from segmentstore.wire.fields import FRAME_BYTES_MAX
from segmentstore.wire.layouts import Layout

_HEADER_BYTES: Final = HEADER.size


class FrameDecoder:
    """One direction of one connection.

    Memory: what came of the one frame that is not whole, and an eighth. Each frame is copied once,
    into memory that its command's data share with no other frame.
    """

    __slots__ = ("_accepted", "_begun", "_failed", "_frame_bytes_max", "_wanted")

    def __init__(
        self, accepted: Mapping[int, Layout], frame_bytes_max: int = FRAME_BYTES_MAX
    ) -> None:
        """`accepted`: REQUESTS of a server, REPLIES of a client. The bound includes the header."""
        self._accepted = accepted
        self._frame_bytes_max = frame_bytes_max
        self._begun = bytearray()
        """A frame that is not whole, header first."""
        self._wanted = _HEADER_BYTES
        """Its length at which there is something to do: that of the header, or of the frame."""
        self._failed = False

    def accept(self, accepted: Mapping[int, Layout], frame_bytes_max: int) -> None:
        """Take other commands from the next frame on, also while `feed` is being iterated."""
        self._accepted, self._frame_bytes_max = accepted, frame_bytes_max

    def feed(self, data: bytes) -> Iterator[Command]:
        """The commands that are whole now that `data` was received; exhaust them before the next
        call.

        Raises WireError behind the last command before a malformed frame, and at every call after
        that. A frame that is too long or of an unknown type is refused by its header alone.
        """
        if self._failed:
            raise WireError("the bytes follow a malformed frame")
        try:
            yield from self._commands(data)
        except WireError:
            self._failed = True
            self._begun = bytearray()
            raise

    def _commands(self, data: bytes) -> Iterator[Command]:
        at, count = 0, len(data)
        while begun := self._begun:
            more = self._wanted - len(begun)
            begun += memoryview(data)[at : at + more]
            at += more
            if at > count:
                return
            layout, self._wanted = self._frame(begun, 0)
            if self._wanted == len(begun):
                self._begun, self._wanted = bytearray(), _HEADER_BYTES
                yield read_command(layout, memoryview(begun).toreadonly()[_HEADER_BYTES:])
        while at < count:
            if count - at < _HEADER_BYTES:
                self._wanted = _HEADER_BYTES
                break
            layout, self._wanted = self._frame(data, at)
            end = at + self._wanted
            if end > count:
                break
            yield read_command(layout, data[at + _HEADER_BYTES : end])
            at = end
        self._begun += memoryview(data)[at:]

    def _frame(self, data: Buffer, at: int) -> tuple[Layout, int]:
        """How to read the frame whose header is at a place, and its size."""
        type_id, length = HEADER.unpack_from(data, at)
        layout = self._accepted.get(type_id)
        if layout is None:
            raise WireError(f"unknown command {type_id}, or not of this direction")
        size = length + _HEADER_BYTES
        if not _HEADER_BYTES <= size <= self._frame_bytes_max:
            raise WireError(f"a frame of {size} bytes (at most {self._frame_bytes_max})")
        return layout, size
