"""`segmentstore log STORE --ledgers`: what the containers' records on ZooKeeper say, one table each."""

from __future__ import annotations

from typing import Any

from durablelog.bookkeeper.ledger_addresses import address_text
from durablelog.bookkeeper.log_record import LedgerItem, LogRecord
from segmentstore.cli import output
from segmentstore.cli.bookkeeper_store import BookKeeperStore

_COLUMNS = ("sequence", "ledger", "epoch", "state", "entries", "bytes", "replication")


def show_ledgers(location: str, limit: int | None, *, as_json: bool) -> None:
    """The records of all containers that were ever opened; at most `limit` ledgers of each, the last ones.

    Reads nodes and nothing else. Raises CommandError of a store that has no ledgers, TierUnavailableError, DataCorruptionError.
    """
    with BookKeeperStore(location) as store:
        found = 0
        for container_id in store.container_ids:
            record = store.record(container_id)
            if record is None:
                continue
            found += 1
            rows = [_row(item) for item in record.ledgers]
            shown = rows if limit is None else rows[max(0, len(rows) - limit) :]
            if as_json:
                output.print_json({**_fields(record), "ledgers": shown})
            else:
                output.out().print(output.table(_title(record), _COLUMNS, (_cells(row) for row in shown)))
        if not found and not as_json:
            output.out().print(f"{location}: no container was ever opened")


def _row(item: LedgerItem) -> dict[str, Any]:
    return {
        "sequence": item.sequence,
        "ledger": item.ledger_id,
        "epoch": item.epoch,
        "state": "open" if item.is_open else "closed",
        "entries": item.last_entry + 1 if item.last_entry is not None else None,
        "bytes": item.length if not item.is_open else None,
        "replication": str(item.replication),
    }


def _fields(record: LogRecord) -> dict[str, Any]:
    return {
        "container": record.container_id,
        "store_id": record.store_id,
        "epoch": record.epoch,
        "enabled": record.enabled,
        "truncation": address_text(record.truncation_address),
        "removing": record.removing,
    }


def _title(record: LogRecord) -> str:
    parts = [f"container {record.container_id}: epoch {record.epoch}"]
    parts.append(
        f"truncated at {address_text(record.truncation_address)}" if record.truncation_address else "never truncated"
    )
    parts.append("enabled" if record.enabled else "disabled")
    if record.removing:
        parts.append(f"removing {', '.join(map(str, record.removing))}")
    return ", ".join(parts)


def _cells(row: dict[str, Any]) -> list[object]:
    """Ids as the log's messages and BookKeeper's own tools show them, without separators."""
    return [str(row[name]) if name in {"sequence", "ledger", "epoch"} else row[name] for name in _COLUMNS]
