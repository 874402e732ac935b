"""Trace: every effect on the outside world, in order; equal seeds must give equal traces, byte for
byte.
"""

from __future__ import annotations

import hashlib


class Trace:
    """A digest of all lines, and the lines themselves if `keep`."""

    def __init__(self, *, keep: bool = False) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self.lines: list[str] | None = [] if keep else None
        self.length = 0

    def add(self, line: str) -> None:
        """Append one line. About a microsecond."""
        self.length += 1
        self._digest.update(line.encode())
        self._digest.update(b"\n")
        if self.lines is not None:
            self.lines.append(line)

    def digest(self) -> str:
        """Of all lines so far, in hex."""
        return self._digest.hexdigest()
