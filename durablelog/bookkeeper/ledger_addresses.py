"""Addresses of frames on ledgers: `ledger sequence << 32 | entry`. Pure.

A ledger's *sequence* is its place in the log, counted from 1 for each container; its id is the
cluster's and says nothing about order. Both halves of an address grow as frames do, so addresses
compare as frames do.
"""

from __future__ import annotations

from typing import Final

from durablelog.durable_data_log import LogAddress

_ENTRY_BITS: Final = 32
ENTRIES_MAX: Final = 1 << _ENTRY_BITS
"""So many entries a ledger may have; at 1 GiB a ledger none comes near."""
SEQUENCE_MAX: Final = (1 << 31) - 1
"""At one ledger a second, 68 years."""
FIRST_SEQUENCE: Final = 1


def make_address(sequence: int, entry: int) -> LogAddress:
    """The address of an entry of the log's ledger number `sequence`."""
    return LogAddress(sequence << _ENTRY_BITS | entry)


def split_address(address: LogAddress) -> tuple[int, int]:
    """Ledger sequence and entry."""
    return address >> _ENTRY_BITS, address & (ENTRIES_MAX - 1)


def address_text(address: LogAddress) -> str:
    """For people: ledger sequence and entry, as in "3:120"."""
    sequence, entry = split_address(address)
    return f"{sequence}:{entry}"
