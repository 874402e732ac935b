"""The bytes and texts between a store and the gateway, in both directions:
docs/formats/bookkeeper-data-plane.md. Pure.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from durablelog.bookkeeper.ledger_store import LedgerDescription, LedgerState, Replication
from segmentstore.contracts.ledgers import DigestType, Ensemble

MAGIC: Final = 0x53534757
VERSION: Final = 5
ENTRY_BYTES_MAX: Final = 5 << 20
"""The gateway takes no larger entry, and BookKeeper's default frame neither."""

HELLO: Final = struct.Struct(">IBcH")
"""Magic, version, kind, length of the token that follows."""
HANDSHAKE_REPLY: Final = struct.Struct(">iI")
"""Code, number of the session."""
ENTRY: Final = struct.Struct(">III")
"""Length of the payload that follows, handle of the writer, sequence in its ledger."""
ACK: Final = struct.Struct(">IIIiq")
"""Handle, sequence of the first entry, how many in a row, their code, number of the first entry.

With handle 0 a beat: changes of the bookies so far, how many are in trouble, 0, direct memory in
use.
"""
BEAT: Final = 0
"""The handle of no writer."""
RANGE: Final = struct.Struct(">Iqqq")
"""Session, ledger, first and last entry."""
RECORD: Final = struct.Struct(">iIq")
"""Code, length of the payload that follows, number of the entry; -1 ends the reading."""

_STATES: Final = {
    "OPEN": LedgerState.OPEN,
    "IN_RECOVERY": LedgerState.IN_RECOVERY,
    "CLOSED": LedgerState.CLOSED,
}


def hello(kind: bytes, token: str) -> bytes:
    """What a connection begins with; `kind` is b"A" for entries to add, b"R" for a reading."""
    secret = token.encode()
    return HELLO.pack(MAGIC, VERSION, kind, len(secret)) + secret


def custom_text(custom: Mapping[str, bytes]) -> str:
    """Custom metadata for `create`."""
    return "\n".join(f"{_text64(key.encode())} {_text64(value)}" for key, value in custom.items())


def parse_description(lines: Sequence[str]) -> LedgerDescription:
    """The answer to `describe` and `recover`, without the code."""
    ledger_id, state, last_entry, length, quorums, digest, created_ms, count, *others = lines
    ensemble, write_quorum, ack_quorum = map(int, quorums.split())
    ensembles = (line.split() for line in others[: int(count)])
    pairs = (line.split(" ", 1) for line in others[int(count) :])
    return LedgerDescription(
        ledger_id=int(ledger_id),
        state=_STATES[state],
        last_entry=int(last_entry),
        length=int(length),
        replication=Replication(ensemble, write_quorum, ack_quorum),
        custom={base64.b64decode(key).decode(): base64.b64decode(value) for key, value in pairs},
        ensembles=tuple(Ensemble(int(first), tuple(bookies)) for first, *bookies in ensembles),
        digest_type=DigestType.__members__.get(digest),
        created_ms=int(created_ms),
    )


def _text64(data: bytes) -> str:
    return base64.b64encode(data).decode()
