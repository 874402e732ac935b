"""`segmentstore log STORE --ledgers`: what the containers' records on ZooKeeper say, one table
each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from durablelog.bookkeeper.ledger_addresses import address_text
from durablelog.bookkeeper.ledger_store import LedgerState
from durablelog.bookkeeper.log_metadata import LedgerItem, LogMetadata
from segmentstore.cli import output
from segmentstore.cli.bookkeeper_store import BookKeeperStore
from segmentstore.contracts.errors import ConfigError, TierUnavailableError

_COLUMNS = ("sequence", "ledger", "epoch", "state", "entries", "bytes", "replication")


def show_ledgers(location: str, limit: int | None, *, as_json: bool) -> None:
    """The records of all containers that were ever opened; at most `limit` ledgers of each, the
    last ones.

    A ledger without an end in its record may have been closed since: a close of the store leaves
    the record as it is, so BookKeeper is asked for those. Where it cannot be, stderr says so, and
    they are shown as the record has them. Raises CommandError of a store that has no ledgers,
    TierUnavailableError, DataCorruptionError.
    """
    with BookKeeperStore(location) as store:
        found = 0
        ends = _Ends(store)
        for container_id in store.container_ids:
            record = store.record(container_id)
            if record is None:
                continue
            found += 1
            items = (
                record.ledgers
                if limit is None
                else record.ledgers[max(0, len(record.ledgers) - limit) :]
            )
            shown = [_row(ends.ended(item)) for item in items]
            if as_json:
                output.print_json({**_fields(record), "ledgers": shown})
            else:
                output.out().print(
                    output.table(_title(record), _COLUMNS, (_cells(row) for row in shown))
                )
        if not found and not as_json:
            output.out().print(f"{location}: no container was ever opened")


class _Ends:
    """The ends of ledgers that were closed after they were listed; asked for until that fails
    once.
    """

    def __init__(self, store: BookKeeperStore) -> None:
        self._store = store
        self._asking = True

    def ended(self, item: LedgerItem) -> LedgerItem:
        """With its end, if it has one."""
        if not item.is_open or not self._asking:
            return item
        try:
            described = self._store.describe(item.ledger_id)
        except (ConfigError, TierUnavailableError) as error:
            self._asking = False
            output.print_error(
                f"which ledgers are closed is not known, and shown as the record has it: {error}"
            )
            return item
        if described.state is not LedgerState.CLOSED:
            return item
        return replace(item, last_entry=described.last_entry, length=described.length)


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


def _fields(record: LogMetadata) -> dict[str, Any]:
    return {
        "container": record.container_id,
        "store_id": record.store_id,
        "epoch": record.epoch,
        "owner": record.owner._asdict() if record.owner is not None else None,
        "closed": record.closed,
        "enabled": record.enabled,
        "truncation": address_text(record.truncation_address),
        "retained": [item.ledger_id for item in record.retained],
        "removing": [each.ledger_id for each in record.removing],
    }


def _title(record: LogMetadata) -> str:
    parts = [f"container {record.container_id}: epoch {record.epoch}"]
    parts.append(
        f"truncated at {address_text(record.truncation_address)}"
        if record.truncation_address
        else "never truncated"
    )
    parts.append("enabled" if record.enabled else "disabled")
    if record.owner is not None:
        closed = " and closed again" if record.closed else ""
        parts.append(f"opened by {record.owner}{closed}")
    if record.retained:
        size = sum(item.length for item in record.retained)
        parts.append(f"{len(record.retained)} before that retained, {size:,} bytes")
    if record.removing:
        removing = (str(each.ledger_id) for each in record.removing)
        parts.append(f"removing {', '.join(removing)}")
    return ", ".join(parts)


def _cells(row: dict[str, Any]) -> list[object]:
    """Ids as the log's messages and BookKeeper's own tools show them, without separators."""
    return [
        str(row[name]) if name in {"sequence", "ledger", "epoch"} else row[name]
        for name in _COLUMNS
    ]
