"""The metadata of a ledger for a part of a log that is none: a file, or frames in memory. Pure.

What is generated is as in decision 0076: one bookie that no cluster has, all quorums 1, digests
CRC32C, and custom metadata that say what the part is. The same part gives the same bytes for ever.
"""

from __future__ import annotations

from typing import Final

from durablelog.durable_data_log import LogAddress
from segmentstore.contracts.ledgers import DigestType, Ensemble, LedgerMetadata

BOOKIE: Final = "file-log.invalid:1"
"""A valid name for readers of the metadata, and of no host: `invalid` is reserved for that."""
ADDRESS_KEY: Final = "address"
APPLICATION: Final = b"segmentstore"
"""As real ledgers of a log have it in their custom metadata, under `application`."""


def generated_metadata(
    *,
    container_id: int,
    number: int,
    epoch: int,
    first_frame: int,
    entries: int,
    length: int,
    address: LogAddress,
) -> LedgerMetadata:
    """For the part `number` of a log.

    `epoch` is of the owner that began it, `first_frame` the sequence number of its first frame, and
    `address` that frame's; the others follow it as closely as their bytes do.
    """
    numbers = {
        "container": container_id,
        "epoch": epoch,
        "part": number,
        "first_frame": first_frame,
        ADDRESS_KEY: address,
    }
    return LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        length=length,
        last_entry=entries - 1,
        digest_type=DigestType.CRC32C,
        ensembles=(Ensemble(0, (BOOKIE,)),),
        custom=(
            ("application", APPLICATION),
            *((key, str(value).encode()) for key, value in numbers.items()),
        ),
    )


def first_address(metadata: LedgerMetadata) -> LogAddress | None:
    """The address of its first frame, where the addresses count bytes; None for a real ledger's,
    which count entries.
    """
    text = dict(metadata.custom).get(ADDRESS_KEY, b"")
    return LogAddress(int(text)) if text.isdigit() else None
