"""With which errors a process run of a scenario may end, and its containers. Pure.

An outside part failed, another owner came, or a disk had no room: each of these gives reason for
some errors. Every other one is a fault of the store.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from recovery.harness.simulation.world import ProcessDiedError
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    DataCorruptionError,
    NotPrimaryError,
    SegmentStoreError,
    StoreInUseError,
    TierUnavailableError,
)
from tier2.object_names import METADATA_PREFIX

FORESEEN: Final = (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    NotPrimaryError,
    TierUnavailableError,
)
"""How a process run may end by itself: an outside part failed, or another owner came."""
EXCUSES: Final = ("disk.", "ledger.", "bookkeeper.", "node.", "object.")
"""Groups of faults that excuse such an end; without one in the same process run, or another owner,
it is a fault of the store.
"""
ASKED_FOR: Final = (SegmentStoreError, OSError, ProcessDiedError)
"""What may stop a container; anything else is a broken assumption inside of it."""


class Circumstances(NamedTuple):
    """Of a process run that ends."""

    two_owners: bool = False
    cancelled: bool = False
    """Its tasks were cancelled under it."""
    rot: bool = False
    """Bits of its files were flipped."""
    struck_now: bool = False
    """A fault of EXCUSES struck in this process run."""
    struck_tier1: bool = False
    """Bookies or nodes of ZooKeeper have failed, in this process run or before."""
    struck_tier2: bool = False
    """The object storage has, likewise."""
    sound_files: bool = False
    """The log is on files, and no faults are drawn."""
    no_room: bool = False
    """The disk is full, and no store can be made, or the process run before used up the reserve."""


def is_allowed(error: BaseException, circumstances: Circumstances) -> bool:
    """Whether the circumstances give reason for an end by this error."""
    if circumstances.cancelled and isinstance(error, ContainerStoppedError):
        return True
    if isinstance(error, FORESEEN) and _is_excused(error, circumstances):
        return True
    if circumstances.two_owners and _is_of_two_owners(error):
        return True
    return isinstance(error, DataCorruptionError) and circumstances.rot


def is_of_death(error: BaseException) -> bool:
    """Whether it says that the process died. A log whose loop was writing then fails for that, and
    stops its container, before nothing of the process runs any more.
    """
    return isinstance(error, ProcessDiedError) or ProcessDiedError.__name__ in str(error)


def _is_excused(error: BaseException, circumstances: Circumstances) -> bool:
    if not isinstance(error, TierUnavailableError):
        return _excuses_all(circumstances)
    # Bad times of a service outlast the process run they began in.
    if error.tier == "tier1" and circumstances.struck_tier1:
        return True
    if error.tier == "tier2" and circumstances.struck_tier2:
        return True
    if circumstances.sound_files:
        # No disk fails where no faults are on: that a tier is away is then how another owner's work
        # shows, and wrong. But a full disk is such a tier.
        return circumstances.no_room
    return _excuses_all(circumstances)


def _excuses_all(circumstances: Circumstances) -> bool:
    return circumstances.two_owners or circumstances.rot or circumstances.struck_now


def _is_of_two_owners(error: BaseException) -> bool:
    """Both opened at the same time. Or an object that the later owner has deleted is read by the
    earlier one. Or, the locks given up, both fill the local folder with the same snapshot.
    """
    if isinstance(error, StoreInUseError) or _says_missing(error):
        return True
    return isinstance(error, TierUnavailableError) and "/catalog/" in str(error)


def _says_missing(error: BaseException) -> bool:
    text = str(error)
    if any(place in text for place in ("/catalog/", METADATA_PREFIX)):
        # A snapshot that the later owner has deleted, or what was staged for one.
        return any(said in text for said in (" is missing", "no such manifest", "(ENOENT)"))
    return "it is gone" in text or "it is missing" in text
