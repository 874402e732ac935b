"""RequestIds: what says that a call is one that has been carried out, whose answer was lost.

Pravega's Java client gives each request an id, which its repeated calls have, too. What is created
has the id of its creation in its row. A deletion leaves a row of its own behind, for a time. For a
client without ids a creation that is done exists, and what was deleted is not found.

A deletion's row is written behind the decision to delete, and before the last row of what is
deleted is removed. So a request that has one deletes nothing, whatever has the name by now.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from segmentstore.contracts.runtime import Clock
from segmentstore.controller.controller_rows import ControllerRows, RowPut, answered_key
from segmentstore.controller.deadlines import FIRST_S, Deadlines

REQUEST_ID: Final = "requestid"
"""The header that has the id, a number of 64 bits."""
KEPT_MS: Final = 3600 * 1000
"""How long a deletion's answer is known. Clients call for the last time within minutes."""
KEPT_AT_START_MS: Final = 7 * 24 * KEPT_MS
"""The same for a Controller that has just begun: its clock may be ahead of that of the one before,
whose clients call again now.
"""
_FORM: Final = re.compile(r"-?[0-9]{1,20}")
_PURGE_PERIOD_S: Final = 3600.0
_PURGED_AT_ONCE: Final = 200


def request_id_of(metadata: Sequence[tuple[str, str | bytes]]) -> str:
    """The id of a request by its headers; "": it has none."""
    for name, value in metadata:
        if name == REQUEST_ID and isinstance(value, str) and _FORM.fullmatch(value):
            return value
    return ""


class RequestIds:
    """Ids of deletions that are decided."""

    def __init__(self, rows: ControllerRows, deadlines: Deadlines, clock: Clock) -> None:
        self._rows = rows
        self._deadlines = deadlines
        self._clock = clock

    def start(self) -> None:
        """Remove those that are too old, from time to time."""
        self._purge_in(FIRST_S, KEPT_AT_START_MS)

    async def note(self, request_id: str, key: str) -> None:
        """The deletion of what has this row need not be carried out once more, as soon as the row
        is not there. Nothing for a request without an id.
        """
        if request_id:
            row = {"deleted": key, "time_ms": self._clock.time_ms()}
            await self._rows.put(RowPut(answered_key(request_id), row))

    async def noted(self, request_id: str, key: str) -> bool:
        """Whether `note` was called so."""
        row = await self._rows.get(answered_key(request_id)) if request_id else None
        return row is not None and row.value["deleted"] == key

    def _purge_in(self, after_s: float, kept_ms: int) -> None:
        self._deadlines.schedule("purge of requests", after_s, partial(self._purge, kept_ms))

    async def _purge(self, kept_ms: int) -> None:
        self._purge_in(_PURGE_PERIOD_S, KEPT_MS)
        now_ms = self._clock.time_ms()
        old: list[str] = []
        async for row in self._rows.scan("answered/"):
            # Also one of a clock that was ahead.
            if abs(now_ms - row.value["time_ms"]) > kept_ms:
                old.append(row.key)
            if len(old) == _PURGED_AT_ONCE:
                await self._rows.remove(old)
                old.clear()
        await self._rows.remove(old)
