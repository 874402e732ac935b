"""The state of a table while batches are on their way."""

from __future__ import annotations

import pytest

from segmentstore import BadOffsetError
from segmentstore.tables.errors import BadKeyVersionError
from segmentstore.tables.pending_table import PendingTable, replayed
from segmentstore.tables.table_index import MemoryIndex
from segmentstore.tables.table_records import KeyLocation, decode_records
from segmentstore.tables.table_types import NO_VERSION, NOT_EXISTS, TableEntry, VersionedKey


def begun() -> tuple[MemoryIndex, PendingTable]:
    index = MemoryIndex()
    return index, PendingTable("t", index)


def put(value: bytes, version: int = NO_VERSION) -> list[TableEntry]:
    return [TableEntry(b"k", version, value)]


def test_a_commit_leaves_the_newer_change_of_a_key_pending() -> None:
    index, table = begun()
    first, _ = table.plan_update(put(b"1"), {}, None)
    table.begin(first)
    second, (version,) = table.plan_update(put(b"2"), {}, None)
    table.begin(second)
    table.commit(first)
    with pytest.raises(BadKeyVersionError):
        table.plan_update(put(b"3", first.offset), index.entries, None)
    third, _ = table.plan_update(put(b"3", version), index.entries, None)
    table.begin(third)
    removal = table.plan_removal([VersionedKey(b"k", third.offset)], index.entries, None)
    table.begin(removal)
    table.commit(second)
    assert table.there(b"k", index.entries) is None
    table.plan_update(put(b"4", NOT_EXISTS), index.entries, removal.end)
    with pytest.raises(BadOffsetError):
        table.plan_update(put(b"4", NOT_EXISTS), index.entries, index.end)
    table.commit(third)
    table.commit(removal)
    assert (index.entries, index.entry_count, index.live_bytes) == ({}, 0, 0)
    assert table.tail == index.end == removal.end


def test_what_failed_is_forgotten() -> None:
    index, table = begun()
    first, _ = table.plan_update(put(b"1"), {}, None)
    table.begin(first)
    table.commit(first)
    second, _ = table.plan_update(put(b"2"), index.entries, None)
    table.begin(second)
    table.reset()
    assert table.tail == first.end
    assert table.there(b"k", index.entries) == KeyLocation(0, first.length, 0)
    again, (version,) = table.plan_update(put(b"3", 0), index.entries, first.end)
    assert version == second.offset
    assert table.begin(again)


def test_a_replay_leads_to_the_same_index() -> None:
    index, table = begun()
    data = b""
    for change in (put(b"1"), [TableEntry(b"l", NO_VERSION, b"x" * 300)], put(b"22")):
        batch, _ = table.plan_update(change, index.entries, None)
        data += table.begin(batch)
        table.commit(batch)
    removal = table.plan_removal([VersionedKey(b"l", NO_VERSION)], index.entries, None)
    data += table.begin(removal)
    table.commit(removal)
    records, used = decode_records(data, 0)
    assert used == len(data)
    copies = table.plan_copies(records, data, index.entries)
    data += table.begin(copies)
    table.commit(copies)
    assert [location.version for location in index.entries.values()] == [copies.offset - 9 - 17 + 8]
    for cut in (1, 3, 5):
        built = MemoryIndex()
        records, _ = decode_records(data, 0)
        for part in (records[:cut], records[cut:]):
            if part:
                built.apply(replayed(part, data, built.entries))
        assert built.entries == index.entries
        assert (built.end, built.tail) == (index.end, index.tail) == (len(data), data[-255:])
        assert (built.entry_count, built.live_bytes) == (index.entry_count, index.live_bytes)
