"""The record of a container's log: what its node holds (docs/formats/bookkeeper-log.md).

JSON that people can read. Pure.

The record is the log: a ledger is part of it if it is listed here, in this order; the owner of the
epoch here may write. Rules of this file:

- only the last ledger may be open: a writer that lists the next one knows the end of the one
  before, and records it;
- a ledger leaves the list into `removing`, or into `retained` and from there into `removing`, and
  that when it is known to be deleted, so that none is forgotten;
- an earlier owner that closed its log acknowledges nothing any more, so what it wrote may be
  deleted at once. Of one that did not, nothing is known: `unclosed` has the highest epoch of such;
- a record that breaks a rule is corruption and is refused whole; fields that are not known are
  refused as well: a newer program raises the version. Versions 1 to 3 are read: they do not say
  which owners closed, so none is taken to have;
- of retained ledgers at most RETAINED_MAX are listed: the record must stay small.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from durablelog.bookkeeper.ledger_addresses import (
    ENTRIES_MAX,
    FIRST_SEQUENCE,
    SEQUENCE_MAX,
    make_address,
    split_address,
)
from durablelog.bookkeeper.ledger_store import EMPTY, Replication
from durablelog.bookkeeper.log_owner import LogOwner
from durablelog.durable_data_log import LogAddress
from segmentstore.contracts.errors import ConfigError, DataCorruptionError

RECORD_VERSION: Final = 4
"""The one that is written, and the highest."""
_OWNER_SINCE: Final = 2
"""The version that names the owner."""
_RETAINED_SINCE: Final = 3
_CLOSED_SINCE: Final = 4
"""The version that says which owners closed, and the epochs of what is being removed."""
RETAINED_MAX: Final = 1024
"""A TiB in ledgers of a GiB; some 60 KiB of the record. What is more is deleted early."""
_INTEGER_MAX: Final = (1 << 63) - 1
_NEVER: Final = LogAddress(0)


class LogDisabledError(ConfigError):
    """The log is disabled in its record: no process may open it.

    The operator's move: find out why, then enable it.
    """

    def __init__(self, container_id: int, path: str) -> None:
        super().__init__(
            "tier1", f"the log of container {container_id} is disabled in its record {path}"
        )
        self.container_id = container_id
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerItem:
    """One ledger of the log."""

    sequence: int
    """Its place: +1 or more from ledger to ledger; the high half of its frames' addresses."""
    ledger_id: int
    epoch: int
    """Of the owner that began it: all of its frames have this epoch."""
    replication: Replication
    last_entry: int | None = None
    """None while it is open, or its end is not known."""
    length: int = 0
    """Bytes of its entries; known with the end."""

    @property
    def is_open(self) -> bool:
        """Its end is not known."""
        return self.last_entry is None

    @property
    def is_empty(self) -> bool:
        """It is known to hold nothing."""
        return self.last_entry == EMPTY


class RemovedLedger(NamedTuple):
    """A ledger that is no part of the log any more, and not known to be deleted."""

    ledger_id: int
    epoch: int
    """Of the owner that began it; if that is not known, of a later one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMetadata:
    """See the module."""

    store_id: str
    container_id: int
    enabled: bool = True
    epoch: int = 0
    """Of the last opening; 0 before the first."""
    owner: LogOwner | None = None
    """That owner, for people; None if it is not recorded."""
    closed: bool = False
    """That owner closed the log: it acknowledges nothing any more."""
    unclosed: int = 0
    """The highest epoch of an earlier owner that did not close, and so may still acknowledge; 0 for
    none.
    """
    truncation_address: LogAddress = _NEVER
    """Frames below are not part of the log; 0 = never truncated."""
    ledgers: tuple[LedgerItem, ...] = ()
    """Oldest first."""
    retained: tuple[LedgerItem, ...] = ()
    """Before the truncation point, closed, oldest first: kept until they are deleted as such."""
    removing: tuple[RemovedLedger, ...] = ()
    written_by: str = ""
    """A random tag of the opening that wrote this."""
    change: int = 0
    """+1 or more with each writing; never twice the same in one opening."""

    @property
    def next_sequence(self) -> int:
        """Of the ledger that comes next."""
        return self.ledgers[-1].sequence + 1 if self.ledgers else FIRST_SEQUENCE

    def item(self, sequence: int) -> LedgerItem | None:
        """The ledger at this place of the log."""
        return next((item for item in self.ledgers if item.sequence == sequence), None)

    @property
    def parts(self) -> tuple[LedgerItem, ...]:
        """The ledgers that are there, retained ones first."""
        return self.retained + self.ledgers

    def names(self, ledger_id: int) -> bool:
        """Whether the ledger is a part of the log, is retained, or is being removed."""
        return ledger_id in _named(self)

    def claimed(self, epoch_min: int, owner: LogOwner | None) -> LogMetadata:
        """With the next owner, whose epoch is `epoch_min` at least."""
        return replace(
            self,
            epoch=max(self.epoch + 1, epoch_min),
            owner=owner,
            closed=False,
            unclosed=self.unclosed if self.closed else self.epoch,
        )

    def left(self, *, settled: bool) -> LogMetadata:
        """With its owner closed; `settled`: no owner before it acknowledges any more."""
        return replace(self, closed=True, unclosed=0 if settled else self.unclosed)

    def ended(self, ends: Iterable[tuple[int, int, int]]) -> LogMetadata:
        """With (sequence, last entry, length) of ledgers whose ends are known now; empty ones leave
        the list.
        """
        known = {sequence: (last_entry, length) for sequence, last_entry, length in ends}
        kept: list[LedgerItem] = []
        removing = list(self.removing)
        for item in self.ledgers:
            ended = item
            if item.sequence in known:
                last_entry, length = known[item.sequence]
                ended = replace(item, last_entry=last_entry, length=length)
            if ended.is_empty:
                removing.append(_removed(item))
            else:
                kept.append(ended)
        return replace(self, ledgers=tuple(kept), removing=tuple(removing))

    def followed_by(self, item: LedgerItem) -> LogMetadata:
        """With one more ledger."""
        return replace(self, ledgers=(*self.ledgers, item))

    def truncated(self, address: LogAddress, retain_from: int | None = None) -> LogMetadata:
        """Without what lies below `address`; the last ledger stays, whatever the address. From
        number `retain_from` on ledgers are retained.
        """
        sequence, _ = split_address(address)
        below = [item for item in self.ledgers[:-1] if item.sequence < sequence]
        kept: list[LedgerItem] = []
        gone: list[RemovedLedger] = []
        for item in below:
            if retain_from is not None and item.sequence >= retain_from and not item.is_empty:
                kept.append(item)
            else:
                gone.append(_removed(item))
        retained = (*self.retained, *kept)
        cut = replace(
            self,
            truncation_address=address,
            ledgers=self.ledgers[len(below) :],
            retained=retained,
            removing=(*self.removing, *gone),
        )
        over = len(retained) - RETAINED_MAX
        return cut.released(retained[over].sequence) if over > 0 else cut

    def released(self, below: int | None = None) -> LogMetadata:
        """With retained ledgers of lower numbers, or all, in `removing`."""
        going = [item for item in self.retained if below is None or item.sequence < below]
        return replace(
            self,
            retained=self.retained[len(going) :],
            removing=self.removing + tuple(map(_removed, going)),
        )

    def without(self, deleted: Iterable[int]) -> LogMetadata:
        """With these ids no longer in `removing`."""
        confirmed = frozenset(deleted)
        return replace(
            self,
            removing=tuple(each for each in self.removing if each.ledger_id not in confirmed),
        )


def _named(record: LogMetadata) -> list[int]:
    """Each ledger of the record, by its id."""
    listed = [item.ledger_id for item in record.parts]
    return listed + [each.ledger_id for each in record.removing]


def _removed(item: LedgerItem) -> RemovedLedger:
    return RemovedLedger(item.ledger_id, item.epoch)


def encode_record(record: LogMetadata) -> bytes:
    """The node's bytes.

    Cost: some 2 µs a ledger. `json` takes ten times as long to indent, on the event loop.
    """
    first: dict[str, object] = {
        "version": RECORD_VERSION,
        "store_id": record.store_id,
        "container": record.container_id,
        "enabled": record.enabled,
        "epoch": record.epoch,
        "owner": record.owner._asdict() if record.owner is not None else None,
        "closed": record.closed,
        "unclosed": record.unclosed,
        "truncation": dict(
            zip(("ledger", "entry"), split_address(record.truncation_address), strict=True)
        ),
    }
    last: dict[str, object] = {"written_by": record.written_by, "change": record.change}
    removing = (f'"{each.ledger_id} {each.epoch}"' for each in record.removing)
    fields = [
        _fields_text(first),
        _list_text("ledgers", map(_item_text, record.ledgers)),
        _list_text("retained", (f'"{_retained_text(item)}"' for item in record.retained)),
        _list_text("removing", removing),
        _fields_text(last),
    ]
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def _fields_text(fields: dict[str, object]) -> str:
    """As they are inside of the outermost object."""
    return json.dumps(fields, indent=1).removeprefix("{\n").removesuffix("\n}")


def _list_text(name: str, items: Iterable[str]) -> str:
    text = ",\n  ".join(items)
    return f' "{name}": [\n  {text}\n ]' if text else f' "{name}": []'


def _item_text(item: LedgerItem) -> str:
    if item.is_open:
        end = '"open"'
    else:
        end = f'"closed",\n   "last_entry": {item.last_entry},\n   "length": {item.length}'
    return (
        f'{{\n   "sequence": {item.sequence},\n   "ledger_id": {item.ledger_id},\n'
        f'   "epoch": {item.epoch},\n   "replication": "{item.replication}",\n'
        f'   "status": {end}\n  }}'
    )


def _retained_text(item: LedgerItem) -> str:
    """Short: there may be many."""
    numbers = (item.sequence, item.ledger_id, item.epoch, item.last_entry, item.length)
    return f"{' '.join(map(str, numbers))} {item.replication}"


class _MalformedError(Exception):
    """What is wrong with the bytes."""


def decode_record(data: bytes, path: str) -> LogMetadata:
    """The record of the node at `path`.

    Raises DataCorruptionError naming it, ConfigError for a newer version.
    """
    try:
        fields = json.loads(data.decode("utf-8"), object_pairs_hook=_no_repeats)
        if not isinstance(fields, dict):
            raise _MalformedError("it is no object")
        version = _integer(fields, "version", 1)
        if version > RECORD_VERSION:
            raise ConfigError(
                "log format",
                f"{path} has version {version}; this program reads up to {RECORD_VERSION}",
            )
        record = _parse(fields, version)
        _check(record)
    except (_MalformedError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataCorruptionError(path, f"the record of a log: {error}") from error
    return record


def _parse(fields: dict[str, Any], version: int) -> LogMetadata:
    since = {
        "owner": _OWNER_SINCE,
        "retained": _RETAINED_SINCE,
        "closed": _CLOSED_SINCE,
        "unclosed": _CLOSED_SINCE,
    }
    _only(fields, tuple(key for key in _RECORD_KEYS if version >= since.get(key, 1)))
    truncation = _object(fields["truncation"], "truncation", ("ledger", "entry"))
    epoch = _integer(fields, "epoch")
    says_closed = version >= _CLOSED_SINCE
    return LogMetadata(
        store_id=_text(fields, "store_id"),
        container_id=_integer(fields, "container"),
        enabled=_boolean(fields, "enabled"),
        epoch=epoch,
        owner=_parse_owner(fields.get("owner")),
        closed=says_closed and _boolean(fields, "closed"),
        unclosed=_integer(fields, "unclosed", most=epoch) if says_closed else epoch,
        truncation_address=make_address(
            _integer(truncation, "ledger", most=SEQUENCE_MAX),
            _integer(truncation, "entry", most=ENTRIES_MAX - 1),
        ),
        ledgers=tuple(_parse_item(item) for item in _list(fields, "ledgers")),
        retained=tuple(map(_parse_retained, _list({"retained": [], **fields}, "retained"))),
        removing=tuple(
            _parse_removed(value) if says_closed else RemovedLedger(_ledger_id(value), epoch)
            for value in _list(fields, "removing")
        ),
        written_by=_text(fields, "written_by"),
        change=_integer(fields, "change"),
    )


_RECORD_KEYS: Final = (
    "version",
    "store_id",
    "container",
    "enabled",
    "epoch",
    "owner",
    "closed",
    "unclosed",
    "truncation",
    "ledgers",
    "retained",
    "removing",
    "written_by",
    "change",
)
_ITEM_KEYS: Final = ("sequence", "ledger_id", "epoch", "replication", "status")


def _parse_owner(value: object) -> LogOwner | None:
    if value is None:
        return None
    fields = _object(value, "owner", LogOwner._fields)
    return LogOwner(
        host=_text(fields, "host"),
        pid=_integer(fields, "pid"),
        address=_text(fields, "address"),
        since=_text(fields, "since"),
    )


def _parse_item(value: object) -> LedgerItem:
    status = value.get("status") if isinstance(value, dict) else None
    if status not in ("open", "closed"):
        raise _MalformedError(f"ledgers: status {status!r}")
    fields = _object(
        value, "ledgers", (*_ITEM_KEYS, *(("last_entry", "length") if status == "closed" else ()))
    )
    return LedgerItem(
        sequence=_integer(fields, "sequence", FIRST_SEQUENCE, SEQUENCE_MAX),
        ledger_id=_integer(fields, "ledger_id"),
        epoch=_integer(fields, "epoch", 1),
        replication=_parse_replication(_text(fields, "replication")),
        last_entry=None
        if status == "open"
        else _integer(fields, "last_entry", EMPTY, ENTRIES_MAX - 1),
        length=0 if status == "open" else _integer(fields, "length"),
    )


def _parse_replication(text: str) -> Replication:
    parts = text.split("/")
    if len(parts) != 3 or not all(
        part.isascii() and part.isdigit() and len(part) < 4 for part in parts
    ):
        raise _MalformedError(f"ledgers: replication {text!r}")
    return Replication(*map(int, parts))


def _ledger_id(value: object) -> int:
    return _integer({"removing": value}, "removing")


_RETAINED_NUMBERS: Final = ("sequence", "ledger_id", "epoch", "last_entry", "length")


def _parse_retained(value: object) -> LedgerItem:
    *numbers, replication = value.split(" ") if isinstance(value, str) else ("",)
    fields = _numbers("retained", value, numbers, _RETAINED_NUMBERS)
    return LedgerItem(
        sequence=_integer(fields, "sequence", FIRST_SEQUENCE, SEQUENCE_MAX),
        ledger_id=_integer(fields, "ledger_id"),
        epoch=_integer(fields, "epoch", 1),
        replication=_parse_replication(replication),
        last_entry=_integer(fields, "last_entry", 0, ENTRIES_MAX - 1),
        length=_integer(fields, "length"),
    )


def _parse_removed(value: object) -> RemovedLedger:
    numbers = value.split(" ") if isinstance(value, str) else []
    fields = _numbers("removing", value, numbers, RemovedLedger._fields)
    return RemovedLedger(_integer(fields, "ledger_id"), _integer(fields, "epoch", 1))


def _numbers(
    what: str, value: object, numbers: list[str], names: tuple[str, ...]
) -> dict[str, int]:
    """What the text `value` says, in the order of `names`."""
    if len(numbers) != len(names) or not all(
        number.isascii() and number.isdigit() and len(number) < 20 for number in numbers
    ):
        raise _MalformedError(f"{what}: {value!r}")
    return dict(zip(names, map(int, numbers), strict=True))


def _check(record: LogMetadata) -> None:
    """What holds between the fields."""
    for before, item in pairwise(record.parts):
        if item.sequence <= before.sequence or item.epoch < before.epoch:
            raise _MalformedError(
                f"ledger {item.sequence} of epoch {item.epoch} lies behind {before.sequence}"
            )
        if before.is_open:
            raise _MalformedError(f"ledger {before.sequence} is open, and not the last")
    if record.ledgers and record.ledgers[-1].epoch > record.epoch:
        raise _MalformedError(
            f"a ledger of epoch {record.ledgers[-1].epoch} in epoch {record.epoch}"
        )
    if any(each.epoch > record.epoch for each in record.removing):
        raise _MalformedError(f"removing: a ledger of a later epoch than {record.epoch}")
    named = _named(record)
    if len(set(named)) != len(named):
        raise _MalformedError("a ledger is named twice")
    if record.retained and not record.truncation_address:
        raise _MalformedError("ledgers are retained, and the log was never truncated")
    if record.truncation_address:
        sequence, entry = split_address(record.truncation_address)
        first = record.ledgers[0] if record.ledgers else None
        if (
            first is None
            or first.sequence != sequence
            or (first.last_entry is not None and entry > first.last_entry)
        ):
            raise _MalformedError(
                f"the truncation point {sequence}:{entry} lies in no ledger, or not in the first"
            )


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _MalformedError("a field is there twice")
    return fields


def _only(fields: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    if missing := [key for key in keys if key not in fields]:
        raise _MalformedError(f"{missing[0]} is missing")
    if unknown := [key for key in fields if key not in keys]:
        raise _MalformedError(f"unknown field {unknown[0]!r}")


def _object(value: object, name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _MalformedError(f"{name} is no object")
    _only(value, keys)
    return value


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields[name]
    if not isinstance(value, list):
        raise _MalformedError(f"{name} is no list")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise _MalformedError(f"{name} is no text")
    return value


def _boolean(fields: Mapping[str, Any], name: str) -> bool:
    value = fields[name]
    if not isinstance(value, bool):
        raise _MalformedError(f"{name} is neither true nor false")
    return value


def _integer(fields: Mapping[str, Any], name: str, least: int = 0, most: int = _INTEGER_MAX) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _MalformedError(f"{name} is {value!r}")
    return value
