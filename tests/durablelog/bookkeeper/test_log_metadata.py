"""The record's bytes: golden, read back, and everything that is no record refused with the node
named.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durablelog.bookkeeper.ledger_addresses import (
    ENTRIES_MAX,
    SEQUENCE_MAX,
    address_text,
    make_address,
    split_address,
)
from durablelog.bookkeeper.ledger_store import EMPTY, Replication
from durablelog.bookkeeper.log_metadata import (
    LedgerItem,
    LogMetadata,
    RemovedLedger,
    decode_record,
    encode_record,
)
from durablelog.bookkeeper.log_owner import LogOwner
from segmentstore.contracts.errors import ConfigError, DataCorruptionError

PATH = "/store/containers/3"
GOLDEN = Path(__file__).parents[1] / "golden" / "bookkeeper-record-4.json"
GOLDEN_3 = GOLDEN.with_name("bookkeeper-record-3.json")
"""With a retained ledger."""
GOLDEN_2 = GOLDEN.with_name("bookkeeper-record-2.json")
GOLDEN_1 = GOLDEN.with_name("bookkeeper-record.json")
"""Of versions that are no longer written."""

RECORD = LogMetadata(
    store_id="5d0c",
    container_id=3,
    epoch=7,
    owner=LogOwner("db-1.example", 4711, "10.0.0.7", "2026-11-23T07:00:00+00:00"),
    truncation_address=make_address(4, 120),
    ledgers=(
        LedgerItem(
            sequence=4,
            ledger_id=17,
            epoch=5,
            replication=Replication(3, 3, 2),
            last_entry=999,
            length=1_073_000_000,
        ),
        LedgerItem(sequence=6, ledger_id=21, epoch=7, replication=Replication(2, 2, 2)),
    ),
    closed=True,
    unclosed=4,
    retained=(
        LedgerItem(
            sequence=2,
            ledger_id=14,
            epoch=5,
            replication=Replication(3, 3, 2),
            last_entry=820,
            length=1_073_000_120,
        ),
    ),
    removing=(RemovedLedger(12, 4), RemovedLedger(20, 6)),
    written_by="00000000deadbeef",
    change=41,
)

BEFORE_4 = replace(
    RECORD, closed=False, unclosed=7, removing=(RemovedLedger(12, 7), RemovedLedger(20, 7))
)
"""As read from a version that does not say which owners closed: all of them may acknowledge."""


def test_golden() -> None:
    assert encode_record(RECORD) == GOLDEN.read_bytes()
    assert decode_record(GOLDEN.read_bytes(), PATH) == RECORD


def test_golden_of_version_3_is_read_and_says_of_no_owner_that_it_closed() -> None:
    assert decode_record(GOLDEN_3.read_bytes(), PATH) == BEFORE_4
    with_closed = {**json.loads(GOLDEN_3.read_bytes()), "closed": True}
    with pytest.raises(DataCorruptionError, match="unknown field 'closed'"):
        decode_record(json.dumps(with_closed).encode(), PATH)


def test_golden_of_version_2_is_read_and_has_no_retained_ledgers() -> None:
    assert decode_record(GOLDEN_2.read_bytes(), PATH) == replace(BEFORE_4, retained=())


def test_golden_of_version_1_is_read_and_has_no_owner() -> None:
    there = decode_record(GOLDEN_1.read_bytes(), PATH)
    assert there == replace(BEFORE_4, retained=(), owner=None)
    with_owner = {**json.loads(GOLDEN_1.read_bytes()), "owner": None}
    with pytest.raises(DataCorruptionError, match="unknown field 'owner'"):
        decode_record(json.dumps(with_owner).encode(), PATH)


@given(
    st.builds(
        LogMetadata,
        store_id=st.text(),
        container_id=st.integers(0, 2**31),
        enabled=st.booleans(),
        epoch=st.just(2**40),
        owner=st.none()
        | st.builds(LogOwner, st.text(), st.integers(0, 2**31), st.text(), st.text()),
        closed=st.booleans(),
        unclosed=st.integers(0, 2**40),
        removing=st.lists(
            st.builds(RemovedLedger, st.integers(0, 2**62), st.integers(1, 2**40)),
            unique_by=lambda each: each.ledger_id,
        ).map(tuple),
        written_by=st.text(),
        change=st.integers(0, 2**50),
        ledgers=st.lists(
            st.builds(
                LedgerItem,
                sequence=st.integers(1, SEQUENCE_MAX),
                ledger_id=st.integers(2**62 + 1, 2**63 - 1),
                epoch=st.just(9),
                replication=st.just(Replication()),
                last_entry=st.integers(EMPTY, ENTRIES_MAX - 1),
                length=st.integers(0, 2**50),
            ),
            unique_by=(lambda item: item.sequence, lambda item: item.ledger_id),
        ).map(lambda items: tuple(sorted(items, key=lambda item: item.sequence))),
    )
)
def test_what_was_written_is_read_back(record: LogMetadata) -> None:
    assert decode_record(encode_record(record), PATH) == record


def _retaining(*texts: object) -> bytes:
    """A record with these in the place of its retained ledger."""
    return _with(lambda fields: fields.update(retained=list(texts)))


def _with(change: Callable[[dict[str, Any]], object]) -> bytes:
    fields = json.loads(encode_record(RECORD))
    change(fields)
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b"{}",
        b"[" * 5000,
        encode_record(RECORD)[:-3],
        encode_record(RECORD).replace(b'"enabled"', b'"epoch": 7, "enabled"'),
        _with(lambda fields: fields.pop("epoch")),
        _with(lambda fields: fields.pop("owner")),
        _with(lambda fields: fields.update(owner="me")),
        _with(lambda fields: fields["owner"].update(pid="4711")),
        _with(lambda fields: fields["owner"].pop("host")),
        _with(lambda fields: fields.update(version=0)),
        _with(lambda fields: fields.update(version="1")),
        _with(lambda fields: fields.update(more=1)),
        _with(lambda fields: fields.update(epoch=-1)),
        _with(lambda fields: fields.update(epoch=True)),
        _with(lambda fields: fields.update(epoch=7.0)),
        _with(lambda fields: fields.update(epoch=6)),
        _with(lambda fields: fields.update(enabled=1)),
        _with(lambda fields: fields.update(store_id=5)),
        _with(lambda fields: fields.update(truncation={"ledger": 4})),
        _with(lambda fields: fields.update(truncation=[4, 120])),
        _with(lambda fields: fields.update(truncation={"ledger": 5, "entry": 0})),
        _with(lambda fields: fields.update(truncation={"ledger": 6, "entry": 0})),
        _with(lambda fields: fields.update(truncation={"ledger": 4, "entry": 1000})),
        _with(lambda fields: fields.update(ledgers=[])),
        _with(lambda fields: fields.update(ledgers={})),
        _with(lambda fields: fields.pop("closed")),
        _with(lambda fields: fields.update(closed=0)),
        _with(lambda fields: fields.pop("unclosed")),
        _with(lambda fields: fields.update(unclosed=8)),
        _with(lambda fields: fields.update(unclosed=-1)),
        _with(lambda fields: fields.pop("retained")),
        _with(lambda fields: fields.update(removing=[12])),
        _with(lambda fields: fields.update(removing=["12"])),
        _with(lambda fields: fields.update(removing=["12 4", "12 5"])),
        _with(lambda fields: fields.update(removing=["17 5"])),
        _with(lambda fields: fields.update(removing=["12 0"])),
        _with(lambda fields: fields.update(removing=["12 8"])),
        _with(lambda fields: fields.update(removing=["12 4 "])),
        _with(lambda fields: fields["ledgers"].reverse()),
        _with(lambda fields: fields["ledgers"].append(1)),
        _with(lambda fields: fields["ledgers"][0].update(status="torn")),
        _with(lambda fields: fields["ledgers"][0].update(status="open")),
        _with(lambda fields: fields["ledgers"][1].update(status="closed")),
        _with(lambda fields: fields["ledgers"][1].update(length=0)),
        _with(lambda fields: fields["ledgers"][0].update(last_entry=-2)),
        _with(lambda fields: fields["ledgers"][0].update(epoch=8)),
        _with(lambda fields: fields["ledgers"][1].update(epoch=4)),
        _with(lambda fields: fields["ledgers"][1].update(sequence=4)),
        _with(lambda fields: fields["ledgers"][1].update(ledger_id=17)),
        _with(lambda fields: fields["ledgers"][0].update(replication="3/3")),
        _with(lambda fields: fields["ledgers"][0].update(replication="3/3/x")),
        _with(
            lambda fields: fields["ledgers"].insert(
                0, {**fields["ledgers"][1], "sequence": 1, "ledger_id": 1}
            )
        ),
        _with(lambda fields: fields.update(version=2)),
        _with(lambda fields: fields.update(version=3)),
        _with(lambda fields: fields.update(retained={})),
        _with(lambda fields: fields.update(truncation={"ledger": 0, "entry": 0})),
        _retaining(14),
        _retaining("2 14 5 820 1073000120"),
        _retaining("2 14 5 820 1073000120 3/3/2 "),
        _retaining("2 14 5 -1 0 3/3/2"),
        _retaining("0 14 5 820 1073000120 3/3/2"),
        _retaining("2 14 5 820 1073000120 3/3"),
        _retaining("4 14 5 820 1073000120 3/3/2"),
        _retaining("2 17 5 820 1073000120 3/3/2"),
        _retaining("2 12 5 820 1073000120 3/3/2"),
        _retaining("2 14 6 820 1073000120 3/3/2"),
        _retaining("2 14 5 820 10 3/3/2", "1 13 5 820 10 3/3/2"),
    ],
)
def test_what_is_no_record_is_refused_and_the_node_is_named(data: bytes) -> None:
    with pytest.raises(DataCorruptionError) as caught:
        decode_record(data, PATH)
    assert caught.value.where == PATH


def test_a_newer_version_is_refused_as_that_and_not_as_damage() -> None:
    with pytest.raises(ConfigError, match=f"{PATH} has version 5"):
        decode_record(b'{"version": 5, "what": "only the future knows"}', PATH)


def test_a_truncation_takes_the_ledgers_below_and_never_the_last() -> None:
    truncated = RECORD.truncated(make_address(6, 0))
    assert [item.sequence for item in truncated.ledgers] == [6]
    assert truncated.removing == (*RECORD.removing, (17, 5))
    assert [item.sequence for item in RECORD.truncated(make_address(9, 0)).ledgers] == [6]
    assert truncated.without([20, 4711]).removing == ((12, 4), (17, 5))


def test_ends_are_noted_and_empty_ledgers_leave_the_list() -> None:
    ended = RECORD.ended([(6, 4, 500)])
    assert (ended.ledgers[1].last_entry, ended.ledgers[1].length) == (4, 500)
    emptied = RECORD.ended([(6, EMPTY, 0)])
    assert [item.sequence for item in emptied.ledgers] == [4]
    assert emptied.removing == (*RECORD.removing, (21, 7))
    assert RECORD.next_sequence == 7
    assert replace(RECORD, ledgers=()).next_sequence == 1


def test_an_owner_that_did_not_close_is_kept_in_mind_until_a_later_one_was_there_for_long() -> None:
    me = RECORD.owner
    opened = RECORD.claimed(1, me)
    assert (opened.epoch, opened.closed, opened.unclosed) == (8, False, 4)
    assert opened.left(settled=False) == replace(opened, closed=True)
    assert opened.left(settled=True) == replace(opened, closed=True, unclosed=0)
    assert opened.claimed(1, me).unclosed == 8, "the one before was killed"
    assert opened.claimed(20, me).epoch == 20


@given(st.integers(1, SEQUENCE_MAX), st.integers(0, ENTRIES_MAX - 1))
def test_addresses_keep_both_halves_and_fit_63_bits(sequence: int, entry: int) -> None:
    address = make_address(sequence, entry)
    assert split_address(address) == (sequence, entry)
    assert 0 < address < 2**63
    assert address_text(address) == f"{sequence}:{entry}"
