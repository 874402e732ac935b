"""The harness excuses the error of a process run only where the world gave reason for it."""

from __future__ import annotations

import pytest

from recovery.harness.runs.allowed_ends import Circumstances, is_allowed, is_of_death
from recovery.harness.simulation.world import ProcessDiedError
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    DataCorruptionError,
    StoreInUseError,
    TierUnavailableError,
)
from tier2.object_names import METADATA_PREFIX

TIER1 = TierUnavailableError("tier1", "no answer")
TIER2 = TierUnavailableError("tier2", "no answer")
STOPPED = ContainerStoppedError(0)
UNKNOWN = AppendOutcomeUnknownError(0, STOPPED)
CORRUPT = DataCorruptionError("a block", "bad checksum")
IN_USE = StoreInUseError("store")
MISSING = OSError("object 7: it is missing")
NO_SNAPSHOT = OSError(f"{METADATA_PREFIX}3 is missing")
CATALOG = TierUnavailableError("tier1", "store/catalog/files: no such file")
QUIET = Circumstances()


@pytest.mark.parametrize(
    ("error", "circumstances"),
    [
        (TIER1, Circumstances(struck_now=True)),
        (UNKNOWN, Circumstances(struck_now=True)),
        (STOPPED, Circumstances(two_owners=True)),
        (STOPPED, Circumstances(cancelled=True)),
        (TIER1, Circumstances(struck_tier1=True)),
        (TIER2, Circumstances(struck_tier2=True)),
        (TIER2, Circumstances(struck_tier2=True, sound_files=True)),
        (TIER1, Circumstances(sound_files=True, no_room=True)),
        (CORRUPT, Circumstances(rot=True)),
        (IN_USE, Circumstances(two_owners=True)),
        (MISSING, Circumstances(two_owners=True)),
        (NO_SNAPSHOT, Circumstances(two_owners=True)),
        (CATALOG, Circumstances(two_owners=True, sound_files=True)),
    ],
)
def test_an_end_that_the_world_gave_reason_for(
    error: Exception, circumstances: Circumstances
) -> None:
    assert is_allowed(error, circumstances)
    assert not is_allowed(error, QUIET), "and without that reason it is a fault"


@pytest.mark.parametrize(
    ("error", "circumstances"),
    [
        (AssertionError("order"), Circumstances(two_owners=True, rot=True, struck_now=True)),
        (CORRUPT, Circumstances(two_owners=True, struck_now=True)),
        (IN_USE, Circumstances(struck_now=True)),
        (UNKNOWN, Circumstances(cancelled=True)),
        (TIER1, Circumstances(struck_tier2=True)),
        (TIER2, Circumstances(struck_tier1=True)),
        (TIER1, Circumstances(two_owners=True, struck_now=True, sound_files=True)),
    ],
)
def test_an_end_that_other_circumstances_do_not_excuse(
    error: Exception, circumstances: Circumstances
) -> None:
    assert not is_allowed(error, circumstances)


def test_what_says_that_the_process_died_is_of_its_death() -> None:
    died = ProcessDiedError("owner.1")
    assert is_of_death(died)
    assert is_of_death(
        TierUnavailableError("tier1", f"writing the log: {type(died).__name__}: {died}")
    )
    assert not any(map(is_of_death, (TIER1, STOPPED, UNKNOWN, CORRUPT)))
