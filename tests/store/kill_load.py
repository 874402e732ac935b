"""What the killed child writes and what the checking parent expects: pure functions of names and numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

EVENT_SEGMENTS = ("events-0", "events-1", "events-2")
BATCH_SEGMENT = "batches"
MERGE_TARGET = "merged"
COUNTED_SEGMENT = "counted"
COUNTER = UUID(int=7)
HIGHEST = UUID(int=8)

SETTINGS: Mapping[str, Any] = {
    "frame_bytes_max": 512,
    "log_file_bytes": 8 * 1024 + 512,
    "checkpoint_operations": 60,
    "checkpoint_bytes": 8 * 1024,
    "flush_bytes": 1000,
    "flush_age_s": 0.01,
    "object_bytes": 4000,
    "upload_bytes_max": 8000,
    "unflushed_target_bytes": 8000,
    "extent_bytes": 64,
    "deletion_lag_s": 0.0,
    "piece_bytes": 4096,
    "fetched_bytes_max": 16 * 1024,
    "tail_bytes_max": 16 * 1024,
    "cache_bytes_max": 1 << 20,
}
"""So small that the log rolls, is checkpointed and is truncated all the time."""


def record(segment: str, cycle: int, number: int) -> bytes:
    """The bytes of one append: they say whose they are, and are sometimes longer than a frame."""
    digest = hashlib.sha256(f"{segment}/{cycle}/{number}".encode()).digest()
    length = 700 if digest[0] < 6 else digest[1] // 2
    return f"<{segment} {cycle} {number} ".encode() + (digest * 22)[:length] + b">"


def event(segment: str, number: int) -> bytes:
    """The bytes of an exactly-once writer's event: the same in every cycle."""
    return record(segment, 0, number)


def batch(cycle: int, number: int) -> list[bytes]:
    """The items of one batch."""
    return [record(f"{BATCH_SEGMENT}-{item}", cycle, number) for item in range(2 + number % 5)]


def source_name(cycle: int, number: int) -> str:
    return f"{MERGE_TARGET}#transaction.{cycle:016x}{number:016x}"


def source_bytes(cycle: int, number: int) -> bytes:
    """The whole content of a merge source."""
    return b"".join(record("source", cycle, 10 * number + part) for part in range(number % 4))


def sealed_name(cycle: int, number: int) -> str:
    return f"sealed-{cycle}-{number}"


def sealed_bytes(cycle: int, number: int) -> bytes:
    return record("sealed", cycle, number)


def writer_id(segment: str) -> UUID:
    return UUID(bytes=hashlib.sha256(segment.encode()).digest()[:16])


class Journal:
    """The lines a child printed: `T` before it tried, `A` after it was acknowledged."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._of: dict[tuple[str, str], list[tuple[str, ...]]] = {}
        for line in lines:
            mark, kind, *values = line.split(" ")
            self._of.setdefault((mark, kind), []).append(tuple(values))

    def tried(self, kind: str) -> list[tuple[str, ...]]:
        return self._of.get(("T", kind), [])

    def acknowledged(self, kind: str) -> list[tuple[str, ...]]:
        return self._of.get(("A", kind), [])
