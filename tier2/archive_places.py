"""Names of an archive's objects in a listing of Tier 2, which an archive may lie below. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ARCHIVED: Final = re.compile(
    rf"(?:[^\n]*/)?(?:{_UUID}-ledger-[0-9]{{1,19}}(?:-index)?"
    rf"|parts/{_UUID}/[0-9a-f]{{8}}/(?:list|node)-[0-9a-f]{{16}})"
)


class ArchivedName(NamedTuple):
    """The name of a part of a log, of its index, or of a list of parts.

    Its store's metadata name it, and only that store deletes it.
    """

    name: str


def parse_archive_place(name: str) -> ArchivedName | None:
    """The name of an object of an archive, in whatever folder that is; None for another name."""
    return ArchivedName(name) if _ARCHIVED.fullmatch(name) else None
