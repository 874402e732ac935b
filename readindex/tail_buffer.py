"""TailBuffer: where small appends of one segment are gathered until they make a block (pure)."""

from __future__ import annotations


class TailBuffer:
    """Growing bytes of a segment from `start_offset`; created at the first small append, removed
    when cut.
    """

    __slots__ = ("data", "position", "start_offset")

    def __init__(self, start_offset: int, position: int) -> None:
        self.start_offset = start_offset
        self.position = position
        """Order of age: bytes the container had been appended when it was made."""
        self.data = bytearray()

    @property
    def end_offset(self) -> int:
        """Place in the segment, exclusive."""
        return self.start_offset + len(self.data)

    def slice(self, offset: int, length: int) -> bytes:
        """A copy of at most `length` bytes from `offset`; one copy, which no later append can
        disturb.
        """
        begin = offset - self.start_offset
        # A memoryview left alive would forbid the buffer to grow: both views end with this
        # statement.
        with memoryview(self.data) as view, view[begin : begin + length] as part:
            return bytes(part)
