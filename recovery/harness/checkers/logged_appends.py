"""Logged appends: what was acknowledged is in the log of its container once, and in its order.

Pure, over what appenders noted and what the logs hold. An append whose outcome is unknown may be
there or not, but not twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from recovery.harness.history import Violation

APPENDS: Final = "appends"


class LoggedAppend(NamedTuple):
    """One append that was acknowledged; stamps as those of acknowledgements."""

    container: int
    data: bytes
    begun: int
    ended: int


def check_appends(
    appends: Sequence[LoggedAppend], logs: Mapping[int, Sequence[bytes]]
) -> Iterator[Violation]:
    """One violation of each container and rule. O(n log n)."""
    by_container: dict[int, list[LoggedAppend]] = {}
    for each in appends:
        by_container.setdefault(each.container, []).append(each)
    for container, held in logs.items():
        if len(set(held)) < len(held):
            yield Violation(APPENDS, f"the log of container {container} has an append twice")
    for container, acknowledged in by_container.items():
        places = {data: place for place, data in enumerate(logs.get(container, ()))}
        if lost := [each for each in acknowledged if each.data not in places]:
            yield Violation(
                APPENDS,
                f"container {container}: {len(lost)} acknowledged appends are not in its log, the "
                f"first is {lost[0].data.hex()}",
            )
            continue
        latest_begun = -1
        for each in sorted(acknowledged, key=lambda each: places[each.data]):
            if each.ended < latest_begun:
                yield Violation(
                    APPENDS,
                    f"container {container}: {each.data.hex()} is behind an append that began "
                    "after its acknowledgement",
                )
                break
            latest_begun = max(latest_begun, each.begun)
