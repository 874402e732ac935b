"""SQLite of Python's own library: a table by segment and number, write-ahead log, synchronous FULL
(a sync of the log in each commit), under the group commit of callers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.peers.embedded import EmbeddedPeer, GroupedLog, Records
from bench.peers.peer import Peer, PeerLog

_SHIFT: Final = 40
"""A row's id is the segment and, in the lower bits, the number of the record."""
_SETTINGS: Final = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "CREATE TABLE IF NOT EXISTS record (id INTEGER PRIMARY KEY, data BLOB NOT NULL)",
)


class SqliteLog(GroupedLog):
    """One database in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "records.sqlite"

    def _open(self) -> None:
        # One thread uses it, of the group commit.
        self._database = sqlite3.connect(self._path, isolation_level=None)
        for statement in _SETTINGS:
            self._database.execute(statement)

    def _commit(self, batch: Sequence[Records]) -> None:
        rows = [
            ((segment << _SHIFT) + number, data)
            for segment, records in batch
            for number, data in zip(self._numbers(segment, len(records)), records, strict=True)
        ]
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany("INSERT INTO record VALUES (?, ?)", rows)
        self._database.execute("COMMIT")

    def _last(self, segment: int) -> int:
        first = segment << _SHIFT
        query = "SELECT max(id) FROM record WHERE id >= ? AND id < ?"
        (found,) = self._database.execute(query, (first, first + (1 << _SHIFT))).fetchone()
        return -1 if found is None else int(found) - first

    def _read(self, segment: int, first: int, length: int) -> tuple[int, list[bytes]]:
        begin = segment << _SHIFT
        query = "SELECT data FROM record WHERE id >= ? AND id < ? ORDER BY id"
        records, read = list[bytes](), 0
        rows = self._database.execute(query, (begin + first, begin + (1 << _SHIFT)))
        for (data,) in rows:
            records.append(data)
            read += len(data)
            if read >= length:
                break
        rows.close()
        return first + len(records), records

    def _close(self) -> None:
        self._database.close()


def create() -> Peer:
    """SQLite as a peer."""
    return EmbeddedPeer("sqlite")


async def open_log(address: str, base: str, segments: int, *, create: bool) -> PeerLog:
    """The database in the folder `address`."""
    del base, segments, create
    log = SqliteLog(Path(address))
    await log.open()
    return log
