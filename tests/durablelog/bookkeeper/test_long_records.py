"""A record of very many ledgers: what is done with it on the event loop stays short."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from durablelog.bookkeeper import log_metadata_size, log_metadata_store
from durablelog.bookkeeper.ledger_addresses import make_address
from durablelog.bookkeeper.ledger_store import Replication
from durablelog.bookkeeper.log_metadata import (
    LedgerItem,
    LogMetadata,
    decode_record,
    encode_record,
)
from tests.contracts.durable_data_log_contract import append_all, payload
from tests.durablelog.bookkeeper.bookkeeper_world import BookKeeperWorld, run

LEDGERS = 1000


def long_record(ledgers: int = LEDGERS) -> LogMetadata:
    return LogMetadata(
        store_id="5d0c",
        container_id=3,
        epoch=9,
        ledgers=tuple(
            LedgerItem(
                sequence=1 + number,
                ledger_id=7000 + number,
                epoch=9,
                replication=Replication(),
                last_entry=99,
                length=1 << 30,
            )
            for number in range(ledgers)
        ),
    )


def counted(calls: list[object], call: Callable[..., Any]) -> Callable[..., Any]:
    def count(*arguments: Any, **options: Any) -> Any:
        calls.append(result := call(*arguments, **options))
        return result

    return count


def test_truncating_with_retention_compares_no_ledger_with_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With each other they are a million pairs: seconds of the event loop."""
    record = long_record()
    pairs: list[object] = []
    monkeypatch.setattr(LedgerItem, "__eq__", counted(pairs, LedgerItem.__eq__))
    cut = record.truncated(make_address(LEDGERS, 0), retain_from=LEDGERS // 2)
    assert not pairs
    assert [item.sequence for item in cut.retained] == list(range(LEDGERS // 2, LEDGERS))
    assert len(cut.removing) == LEDGERS // 2 - 1


def test_ledgers_are_not_indented_by_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an indent it is pure Python: ten times slower than what is done here."""
    texts: list[object] = []
    monkeypatch.setattr(json, "dumps", counted(texts, json.dumps))
    data = encode_record(long_record())
    assert sum(len(str(text)) for text in texts) < 1000 < len(data)
    monkeypatch.undo()
    assert data.decode() == json.dumps(json.loads(data), indent=1) + "\n"


def test_a_roll_encodes_its_record_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """To know its size, and to write it."""

    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        encoded: list[object] = []
        for module in (log_metadata_size, log_metadata_store):
            monkeypatch.setattr(module, "encode_record", counted(encoded, encode_record))
        changes = world.record.change
        await append_all(log, range(100))
        changes = world.record.change - changes
        assert changes > 5
        assert len(encoded) == 2 * changes
        await log.close()

    run(scenario())


def test_a_record_that_has_not_changed_is_not_decoded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(30))
        decoded: list[object] = []
        monkeypatch.setattr(log_metadata_store, "decode_record", counted(decoded, decode_record))
        for _ in range(3):
            await log.check_primary()
        assert not decoded
        world.put_record(replace(world.record, change=world.record.change + 1))
        await log.check_primary()
        assert len(decoded) == 1
        await append_all(log, range(30, 60))
        assert [bytes(frame.payload) async for frames in log.read() for frame in frames] == [
            payload(number) for number in range(60)
        ]
        await log.close()

    run(scenario())
