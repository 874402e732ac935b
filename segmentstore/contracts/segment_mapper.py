"""Segment name to container id, by Pravega's own rule, so that a Pravega Controller agrees. Pure.

Source: Pravega's NameUtils and SegmentToContainerMapper. A transaction's or transient segment's
name keeps only its parent's, so a merge source lives with its target. Then the stream's epoch is
cut off. The rest is hashed (MurmurHash3 x64-128, seed below, over UTF-16LE code units) and mapped
by jump consistent hash (Lamping and Veach, 2014).
"""

from __future__ import annotations

import re

import mmh3

_HASH_SEED = 1661405012
_TRANSACTION = re.compile(r"#transaction\.[0-9a-fA-F]{32}\Z")
_TRANSIENT = "#transient."
_TRANSIENT_ID_LENGTH = 32
_EPOCH = ".#epoch."
_JUMP_MULTIPLIER = 2862933555777941757
_UINT64 = (1 << 64) - 1


def container_of(name: str, containers: int) -> int:
    """The id, 0 to containers - 1, of the container the segment lives in."""
    hashed = mmh3.hash64(
        _family(name).encode("utf-16-le", "surrogatepass"),
        seed=_HASH_SEED,
        x64arch=True,
        signed=False,
    )
    return _jump(hashed[0], containers)


def _family(name: str) -> str:
    """The part of a name that decides: the parent stream segment, without epoch."""
    transaction = _TRANSACTION.search(name)
    if transaction is not None:
        name = name[: transaction.start()]
    else:
        position = name.rfind(_TRANSIENT)
        if position >= 0 and len(name) - position - len(_TRANSIENT) >= _TRANSIENT_ID_LENGTH:
            name = name[:position]
    position = name.rfind(_EPOCH)
    return name[:position] if position >= 0 else name


def _jump(state: int, buckets: int) -> int:
    candidate, chosen = 0, 0
    while candidate < buckets:
        chosen = candidate
        state = (state * _JUMP_MULTIPLIER + 1) & _UINT64
        candidate = int((chosen + 1) / (((state >> 33) + 1) / (1 << 31)))
    return chosen
