"""Ranges of keys, which are bytes in lexicographic order."""

from __future__ import annotations

from typing import NamedTuple


class StoreKeyRange(NamedTuple):
    """The keys from `start` up to `end`, which is not among them. Empty if start >= end."""

    start: bytes
    end: bytes

    def behind(self, key: bytes) -> StoreKeyRange:
        """What of the range follows `key`."""
        return StoreKeyRange(key + b"\0", self.end)


def prefix_range(prefix: bytes) -> StoreKeyRange:
    """All keys that begin with `prefix`, of which one byte at least is not 0xff."""
    stem = prefix.rstrip(b"\xff")
    if not stem:
        raise ValueError(f"no key is behind those that begin with {prefix!r}")
    return StoreKeyRange(prefix, stem[:-1] + bytes((stem[-1] + 1,)))
