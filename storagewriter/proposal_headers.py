"""The headers of the blocks of a proposed object, fetched and checked, few at a time.

A header says whose bytes a block holds; that it says so is all an owner checks before it lets
segments be read from there. It does not read the bodies. The job guarantees that they are what the
headers say, and the same bytes as before: its tasks check every byte that they write anew. Reads
check headers and extents' checksums again, and so find damage, but not other bytes that were given
checksums of their own: by then what was replaced may be deleted. A process that can write to Tier 2
can replace bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from segmentstore.contracts.owned_tasks import gather_outcomes
from storagewriter.proposal_rules import HeaderWindow, check_header, plan_windows
from tier2.block_object import BlockFormatError, BlockTooShortError, parse_block_header
from tier2.checked_fetches import fetch_checked
from tier2.mailbox.messages import Replacement, ReplaceProposal
from tier2.object_names import parse_object_name
from tier2.object_storage import ObjectStorage

WINDOWS_AT_ONCE = 4
"""GETs in flight; each is at most 1 MiB."""


async def check_headers(
    storage: ObjectStorage, proposal: ReplaceProposal, replacements: Iterable[Replacement]
) -> None:
    """Raise BlockFormatError unless every new chunk of these replacements lies in a block that is
    what it should be.

    What is not so is fetched anew first: a refusal is final. Also raises ObjectNotFoundError,
    InvalidRangeError, StorageUnavailableError. The proposal has no fault.
    """
    windows = plan_windows(
        (chunk for each in replacements for chunk in each.new), proposal.object.size
    )
    for first in range(0, len(windows), WINDOWS_AT_ONCE):
        checks = (
            fetch_checked(partial(_check, storage, proposal, window), BlockFormatError)
            for window in windows[first : first + WINDOWS_AT_ONCE]
        )
        for outcome in await gather_outcomes(*checks, name="proposal headers"):
            if outcome is not None:
                raise outcome


async def _check(storage: ObjectStorage, proposal: ReplaceProposal, window: HeaderWindow) -> None:
    name, size = proposal.object.name, proposal.object.size
    parts = parse_object_name(name)
    assert parts is not None, name
    data = memoryview(await storage.get_range(name, window.start, window.end - window.start))
    for chunk in window.chunks:
        try:
            header = parse_block_header(data[chunk.block_offset - window.start :])
        except BlockTooShortError as error:
            if chunk.block_offset + error.needed > size:
                raise
            header = parse_block_header(
                await storage.get_range(name, chunk.block_offset, error.needed)
            )
        check_header(header, chunk, proposal.container_id, parts.epoch, size)
