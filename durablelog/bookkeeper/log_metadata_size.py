"""How large the record of a log may grow: ZooKeeper refuses a node of 1 MiB, and breaks the
connection of the client that sends one. Pure.

Rules of this file:

- the record grows with each ledger that is listed, by some 200 bytes, and by nothing else. So
  listing alone is refused, before anything is sent; claiming and truncating always find room;
- a roll is refused before an opening is: a log that stopped for want of room can be opened some
  hundred times, and be truncated;
- beyond half of it `health` says so, while there is time.
"""

from __future__ import annotations

from typing import Final

from durablelog.bookkeeper.log_metadata import LogMetadata, encode_record
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.health import HealthNotes

OPENING_BYTES_MAX: Final = 1_000_000
"""ZooKeeper takes 1,048,575 bytes for a request as a whole, unless its `jute.maxbuffer` says
otherwise.
"""
ROLL_BYTES_MAX: Final = OPENING_BYTES_MAX - 64 * 1024
_TOPIC: Final = "record"


def check_size(record: LogMetadata, path: str, bytes_max: int) -> None:
    """Raises TierUnavailableError, naming the node, if this record must not be written there."""
    size = len(encode_record(record))
    if size > bytes_max:
        raise TierUnavailableError(
            "tier1",
            f"with another ledger {_sizes(record, size, bytes_max)} (node {path}). {_ADVICE}",
        )


def note_size(record: LogMetadata, size: int, notes: HealthNotes) -> None:
    """Say how large it is if that is worth a word: called with each record that was written, and
    its bytes.
    """
    if size > ROLL_BYTES_MAX // 2:
        notes.set(_TOPIC, f"{_sizes(record, size, ROLL_BYTES_MAX)}. {_ADVICE}")
    else:
        notes.clear(_TOPIC)


_ADVICE: Final = "Flush and checkpoint, so that the log can be truncated, or raise ledger_bytes"


def _sizes(record: LogMetadata, size: int, bytes_max: int) -> str:
    ledgers = f"{len(record.ledgers)} ledgers, and {len(record.removing)} to be deleted"
    return f"the log's record has {size} bytes of at most {bytes_max}: {ledgers}"
