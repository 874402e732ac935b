"""Past points: a store restored as of moments at which clients had seen all of it, and compared
with what they saw.

A moment is an operation number or a time, noted with an observation while no call was under way.
The checkers show that what was seen is what was acknowledged; here what is restored must be what
was seen, byte for byte. The restore is the command line's, in a process of its own.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import segmentstore
from recovery.harness.history import History, Observation
from recovery.harness.observer import observe
from recovery.moments import shown_time

RESTORE_S: Final = 240.0
_COMPARED: Final = ("start_offset", "length", "sealed", "attributes", "content", "entries")
_SAID_MAX: Final = 2000


def draw_points(
    observations: Sequence[Observation], count: int, seed: str
) -> list[tuple[Observation, str]]:
    """So many observations, and the moment of each as the command line takes it: in turn an
    operation, and a time.

    A store of several containers has numbers of its own in each: there all are times.
    """
    noted = [each for each in observations if each.sequence_numbers]
    rng = random.Random(f"{seed}/points")
    chosen = rng.sample(noted, min(count, len(noted)))
    return [
        (each, shown_time(each.time_ms) if turn % 2 or len(each.sequence_numbers) > 1 else
         str(*each.sequence_numbers.values()))
        for turn, each in enumerate(chosen)
    ]  # fmt: skip


def check_point(
    location: Path, environment: Mapping[str, str], seen: Observation, moment: str, folder: Path
) -> list[str]:
    """Restore the store in `location` as of a moment into `folder`, which is removed again; what
    differs from what was seen then.
    """
    restored = subprocess.run(  # noqa: S603 - this very program
        [
            sys.executable,
            "-m",
            "segmentstore",
            "restore",
            str(location),
            str(folder),
            "--at",
            moment,
        ],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=RESTORE_S,
        check=False,
    )
    if restored.returncode:
        said = (restored.stdout + restored.stderr).decode(errors="replace")[-_SAID_MAX:]
        return [f"the restore at {moment} ended with {restored.returncode}: {said}"]
    found = asyncio.run(_observe(folder))
    shutil.rmtree(folder)
    return [f"restored at {moment}, {each}" for each in differences(seen, found)]


async def _observe(folder: Path) -> Observation:
    async with segmentstore.open(folder) as store:
        return await observe(store, History(), 0)


def differences(seen: Observation, found: Observation) -> Iterator[str]:
    """What differs between a store that was seen and one that is restored, segment by segment."""
    for name in sorted(seen.segments.keys() | found.segments.keys()):
        was, is_now = seen.segments.get(name), found.segments.get(name)
        if was is None or is_now is None:
            yield (
                f"{name!r} is missing, and was there then"
                if is_now is None
                else f"{name!r} is there, and was not then"
            )
            continue
        for field in _COMPARED:
            if getattr(was, field) != getattr(is_now, field):
                yield (
                    f"{field} of {name!r} is {getattr(is_now, field)!r:.60}, and was "
                    f"{getattr(was, field)!r:.60}"
                )
