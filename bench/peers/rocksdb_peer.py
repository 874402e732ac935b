"""RocksDB by rocksdict: keys of segment and number, each write of a batch synced in its log, under
the group commit of callers. Nothing is compressed, which suits it best.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rocksdict import DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from bench.peers.embedded import EmbeddedPeer, GroupedLog, Records
from bench.peers.peer import Peer, PeerLog

_KEY: Final = struct.Struct(">QQ")
_HIGHEST: Final = (1 << 64) - 1


class RocksdbLog(GroupedLog):
    """One database in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "rocksdb"

    def _open(self) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)  # noqa: FBT003 - RocksDB's own signature
        options.set_compression_type(DBCompressionType.none())
        self._database = Rdict(str(self._path), options)
        self._writing = WriteOptions()
        self._writing.sync = True

    def _commit(self, batch: Sequence[Records]) -> None:
        pack = _KEY.pack
        changes = WriteBatch(raw_mode=True)
        for segment, records in batch:
            for number, data in zip(self._numbers(segment, len(records)), records, strict=True):
                changes.put(pack(segment, number), data)
        self._database.write(changes, self._writing)

    def _last(self, segment: int) -> int:
        iterator = self._database.iter()
        iterator.seek_for_prev(_KEY.pack(segment, _HIGHEST))
        if not iterator.valid():
            return -1
        owner, number = _KEY.unpack(iterator.key())
        return int(number) if owner == segment else -1

    def _read(self, segment: int, first: int, length: int) -> tuple[int, list[bytes]]:
        records, read = list[bytes](), 0
        end = _KEY.pack(segment + 1, 0)
        iterator = self._database.iter()
        iterator.seek(_KEY.pack(segment, first))
        while iterator.valid() and iterator.key() < end and read < length:
            records.append(iterator.value())
            read += len(records[-1])
            iterator.next()
        return first + len(records), records

    def _close(self) -> None:
        self._database.close()


def create() -> Peer:
    """RocksDB as a peer."""
    return EmbeddedPeer("rocksdb")


async def open_log(address: str, base: str, segments: int, *, create: bool) -> PeerLog:
    """The database in the folder `address`."""
    del base, segments, create
    log = RocksdbLog(Path(address))
    await log.open()
    return log
