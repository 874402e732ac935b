"""Whether frames are those of one log, each once, in order. Pure.

A frame's header binds it to container, epoch and frame sequence number. Rules of this file:

- the numbers go up by one from frame to frame, across ledgers, files and parts; a hole is
  corruption;
- a frame that was there already, with the same content, is a repeat. A writer with an unconfirmed
  frame may have sent it twice, and an opening may have copied it;
- a different one with the same number is corruption.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from durablelog.data_frame import FrameFormatError, FrameHeader, parse_header, payload_fault
from durablelog.durable_data_log import LogFrame
from segmentstore.contracts.checksum import crc32c

_REMEMBERED: Final = 4096
"""Frames a repeat may lie behind: more than ever were in flight at once."""


def open_frame(container_id: int, entry: memoryview) -> tuple[FrameHeader, memoryview]:
    """Header and payload of the frame that is the whole of `entry`, verified.

    Raises FrameFormatError, FrameVersionError (a newer format).
    """
    header = parse_header(entry, 0)
    if header is None:
        raise FrameFormatError("no frame is there")
    if header.container_id != container_id:
        raise FrameFormatError(f"a frame of container {header.container_id} lies there")
    payload = entry[header.header_length :]
    fault = payload_fault(header, payload)
    if fault is not None:
        raise FrameFormatError(fault)
    return header, payload


class FrameOrder:
    """Takes the frames of one reading in their order."""

    def __init__(self) -> None:
        self._expected: int | None = None
        self._seen: OrderedDict[int, tuple[int, int, int]] = OrderedDict()

    def accept(self, header: FrameHeader) -> bool:
        """Whether it is the next frame; False for a repeat. Raises FrameFormatError."""
        return self._accept(
            header.sequence, (header.epoch, header.payload_length, header.payload_checksum)
        )

    def accept_frame(self, frame: LogFrame) -> bool:
        """The same of a frame that a log gave."""
        checksum = crc32c(frame.payload) if frame.checksum is None else frame.checksum
        return self._accept(frame.sequence, (frame.epoch, len(frame.payload), checksum))

    def _accept(self, sequence: int, content: tuple[int, int, int]) -> bool:
        if self._expected is not None and sequence != self._expected:
            if sequence < self._expected and self._seen.get(sequence) == content:
                return False
            if sequence in self._seen:
                raise FrameFormatError(f"frame {sequence} was there already, with other content")
            raise FrameFormatError(f"frame {sequence} lies where frame {self._expected} is due")
        self._expected = sequence + 1
        self._seen[sequence] = content
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return True
