"""SegmentKinds: refuses requests about stream segments on tables.

The kind of a segment never changes, so it is kept by the segment's id, of the last ones used.
"""

from __future__ import annotations

from typing import Final

from segmentstore.contracts.errors import SegmentError
from segmentstore.contracts.segments import SegmentInfo
from segmentstore.service import SegmentStore
from segmentstore.tables.table_types import TABLE_ATTRIBUTES, is_table

KNOWN_MAX: Final = 100_000


class NotAStreamSegmentError(SegmentError):
    """The segment is a table.

    The caller's move: use another name, or the calls for tables.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, f"segment {name!r} is a table, and its bytes are not a stream's")


class SegmentKinds:
    """The kinds of one store's segments."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._known: dict[tuple[int, int], bool] = {}
        """By container and segment id, whether it is a table."""

    async def require_stream(self, name: str) -> SegmentInfo:
        """The properties of a segment that is no table.

        Raises NotAStreamSegmentError, and what `get_info` raises.
        """
        info = await self._store.get_info(name)
        key = (info.container_id, info.segment_id)
        known = self._known.get(key)
        if known is None:
            known = is_table(await self._store.get_attributes(name, TABLE_ATTRIBUTES))
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = known
        if known:
            raise NotAStreamSegmentError(name)
        return info
