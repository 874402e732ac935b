"""How many objects of one sort a listing has, how large they are, and one to check.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from tier2.object_storage import StoredObject


class ObjectTally:
    """Counts objects as they are listed; shows itself as text for people."""

    def __init__(self) -> None:
        self.count = self._bytes = 0
        self._first = ""

    def add(self, stored: StoredObject) -> None:
        """One more."""
        self._first = self._first or stored.name
        self.count += 1
        self._bytes += stored.size

    def __str__(self) -> str:
        return f"{self.count:,} objects ({self._bytes:,} bytes; the first: {self._first})"
