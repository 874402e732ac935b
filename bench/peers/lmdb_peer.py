"""LMDB by py-lmdb: keys of segment and number, synced in each commit (its default), under the group
commit of callers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.peers.embedded import EmbeddedPeer, GroupedLog, Records
from bench.peers.libraries import library
from bench.peers.peer import Peer, PeerLog

_KEY: Final = struct.Struct(">QQ")
_MAP_BYTES: Final = 64 << 30
"""Of addresses, not of disk."""


class LmdbLog(GroupedLog):
    """One environment in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def _open(self) -> None:
        import lmdb  # noqa: PLC0415 - of this peer alone

        self._environment = lmdb.open(str(self._folder), map_size=_MAP_BYTES)

    def _commit(self, batch: Sequence[Records]) -> None:
        pack = _KEY.pack
        # A key is appended where it is the highest, which costs LMDB less.
        items = [
            (pack(segment, number), data)
            for segment, records in batch
            for number, data in zip(self._numbers(segment, len(records)), records, strict=True)
        ]
        with self._environment.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(items)

    def _last(self, segment: int) -> int:
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            # Before the first key of the next segment.
            found = cursor.prev() if cursor.set_range(_KEY.pack(segment + 1, 0)) else cursor.last()
            if not found:
                return -1
            owner, number = _KEY.unpack(bytes(cursor.key()))
            return int(number) if owner == segment else -1

    def _read(self, segment: int, first: int, length: int) -> tuple[int, list[bytes]]:
        records, read = list[bytes](), 0
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            found = cursor.set_range(_KEY.pack(segment, first))
            end = _KEY.pack(segment + 1, 0)
            while found and bytes(cursor.key()) < end and read < length:
                records.append(bytes(cursor.value()))
                read += len(records[-1])
                found = cursor.next()
        return first + len(records), records

    def _close(self) -> None:
        self._environment.close()


def create() -> Peer:
    """LMDB as a peer."""
    return EmbeddedPeer("lmdb", lambda: library("lmdb"))


async def open_log(address: str, base: str, segments: int, *, create: bool) -> PeerLog:
    """The environment in the folder `address`."""
    del base, segments, create
    log = LmdbLog(Path(address))
    await log.open()
    return log
