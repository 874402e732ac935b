"""A closed ledger in memory, and the ledgers of which Pulsar's objects are known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.contracts.ledgers import (
    DigestType,
    Ensemble,
    EntryRangeError,
    LedgerEntry,
    LedgerMetadata,
    ReadHandle,
)

BATCH_ENTRIES = 7
PAYLOAD_BYTES_MAX = 1024 * 1024
_PAYLOAD_0 = bytes((j * 17 + (j >> 8)) & 255 for j in range(65_536)) * 16
_SHIFTED = [bytes((byte + shift) & 255 for byte in range(256)) for shift in range(256)]


def pulsar_metadata(count: int, length: int) -> LedgerMetadata:
    """The metadata of the ledgers that Pulsar was given."""
    return LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        length=length,
        last_entry=count - 1,
        digest_type=DigestType.CRC32C,
        created_ms=1_700_000_000_000,
        ensembles=(Ensemble(0, ("127.0.0.1:3181",)),),
        custom=(("application", b"pulsar"),),
    )


def pulsar_payload(entry: int, size: int) -> bytes:
    """Byte j of entry i is (i*131 + j*17 + (j>>8)) & 255."""
    return _PAYLOAD_0[:size].translate(_SHIFTED[entry * 131 & 255])


def mix_size(entry: int) -> int:
    """How long an entry of the ledger "mix" is."""
    if entry % 1000 == 999:
        return 102_400
    if entry % 10 == 0:
        return 0
    return (((entry * 2654435761 + 12345) & 0xFFFFFFFF) >> 8) % 4096


class FakeLedger(ReadHandle):
    """A ledger of these entries; its metadata may say something else."""

    def __init__(
        self,
        entries: Sequence[bytes],
        ledger_id: int = 7,
        metadata: LedgerMetadata | None = None,
    ) -> None:
        self.entries = entries
        self._ledger_id = ledger_id
        self._metadata = metadata or pulsar_metadata(len(entries), sum(map(len, entries)))
        self._closed = False

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        if self._closed:
            raise InvalidArgumentError("handle", self._ledger_id, "it is closed")
        if not 0 <= first <= last <= self.last_entry:
            raise EntryRangeError("first, last", (first, last), "not there")
        for start in range(first, min(last + 1, len(self.entries)), BATCH_ENTRIES):
            await asyncio.sleep(0)
            stop = min(start + BATCH_ENTRIES, last + 1, len(self.entries))
            yield [LedgerEntry(each, memoryview(self.entries[each])) for each in range(start, stop)]

    async def close(self) -> None:
        self._closed = True


def pulsar_sizes(rule: str) -> list[int]:
    """Sizes of the entries of the ledgers that the program around Pulsar's offloader makes."""
    if rule == "small3":
        return [0, 5, 16]
    if rule == "mix":
        return [mix_size(entry) for entry in range(10_000)]
    return [PAYLOAD_BYTES_MAX if entry % 100 == 99 else mix_size(entry) for entry in range(10_000)]


def pulsar_ledger(rule: str, ledger_id: int = 7) -> FakeLedger:
    """The same ledger as that program makes by this rule."""
    sizes = pulsar_sizes(rule)
    return FakeLedger([pulsar_payload(entry, size) for entry, size in enumerate(sizes)], ledger_id)
