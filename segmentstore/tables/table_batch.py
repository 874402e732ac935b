"""TableBatch: the records of one append to a table, and what they change in its index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from segmentstore.tables.table_records import KeyLocation

TAIL_BYTES: Final = 255
"""Of so many bytes before its end an index on disk keeps a checksum, to recognize the segment."""


@dataclass(slots=True, eq=False)
class TableBatch:
    """Records of one append."""

    offset: int
    parts: list[bytes] = field(default_factory=list)
    length: int = 0
    changes: dict[bytes, KeyLocation | None] = field(default_factory=dict)
    count_growth: int = 0
    live_growth: int = 0
    tail: bytes = b""
    """Its last bytes."""

    def set(self, key: bytes, location: KeyLocation | None, there: KeyLocation | None) -> None:
        """Have a key's record where it is now, after `there`."""
        self.changes[key] = location
        if there is not None:
            self.count_growth -= 1
            self.live_growth -= there.length
        if location is not None:
            self.count_growth += 1
            self.live_growth += location.length

    def add(self, parts: Sequence[bytes], length: int) -> None:
        """Append a record."""
        self.parts += parts
        self.length += length

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.length
