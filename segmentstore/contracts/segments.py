"""What a caller may know of a segment, and the rules for its name."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from segmentstore.contracts.errors import InvalidNameError

NAME_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """A snapshot of one segment's properties. All offsets and lengths are in bytes.

    0 <= start_offset <= length and 0 <= storage_length <= length.
    """

    name: str
    segment_id: int
    """Never reused: a name deleted and made again gets another id."""
    start_offset: int
    """First readable offset; grows by truncation."""
    length: int
    """End of the acknowledged bytes, exclusive."""
    storage_length: int
    """Bytes [0, storage_length) have been moved to Tier 2."""
    sealed: bool
    sealed_in_storage: bool
    """Sealed, and every byte of it is in Tier 2."""
    created: datetime
    last_modified: datetime
    container_id: int


class Merged(NamedTuple):
    """Where the bytes of a merged segment are in its target."""

    offset: int
    """At which they begin."""
    length: int
    """Of the target behind them."""


def may_be_stored(name: str) -> bool:
    """Whether a segment of a restored store may have the name, though none is created with it."""
    try:
        return 1 <= len(name.encode()) <= NAME_BYTES_MAX and "\0" not in name
    except UnicodeEncodeError:
        return False


def may_name_a_segment(name: str) -> bool:
    """Whether `check_segment_name` takes it."""
    try:
        check_segment_name(name)
    except InvalidNameError:
        return False
    return True


def check_segment_name(name: object) -> str:
    """Return the name if it may name a segment; raise InvalidNameError otherwise."""
    if not isinstance(name, str):
        raise InvalidNameError(name, f"a name is a str, not {type(name).__name__}")
    # A fifth of the cost of what follows, and the same where each character is a byte.
    if name.isascii() and name.isprintable() and 1 <= len(name) <= NAME_BYTES_MAX:
        return name
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise InvalidNameError(name, "it cannot be written as UTF-8 (a lone surrogate)") from None
    if not 1 <= len(encoded) <= NAME_BYTES_MAX:
        raise InvalidNameError(
            name, f"{len(encoded)} bytes of UTF-8; it must be 1 to {NAME_BYTES_MAX}"
        )
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise InvalidNameError(name, "it holds a control character")
    return name
