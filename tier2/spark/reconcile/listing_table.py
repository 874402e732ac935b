"""The table of a listing: its columns, how many rows at a time, and names as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from tier2.object_storage import StoredObject

_TEXTS: Final = frozenset(("key", "etag"))

LISTING: Final = pa.schema(
    {
        name: pa.string() if name in _TEXTS else pa.int64()
        for name in ("key", "size", "modified_ms", "etag")
    }
)
"""One row per object.

`key` is the object's name below the store's URL; `etag` is null where the place has none.
"""

TABLE_ROWS: Final = 65_536
"""A table of a listing has at most so many rows."""


def listing_table(stored: Sequence[StoredObject]) -> pa.Table:
    """Rows of LISTING, without etags. What is no UTF-8 in a name is escaped."""
    return pa.table(
        {
            "key": [key_text(each.name) for each in stored],
            "size": [each.size for each in stored],
            "modified_ms": [each.modified_ms for each in stored],
            "etag": pa.nulls(len(stored), pa.string()),
        },
        schema=LISTING,
    )


def key_text(name: str) -> str:
    """The name with each byte that is no UTF-8 as a backslash, an x and two digits.

    No name of ours has a backslash.
    """
    return (
        name
        if name.isascii()
        else name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    )
