"""When hosts came and how often they came back: a host that flaps gets no planned move.

Pure. A vanished host is absent at once: its session's timeout was the delay already. One that
leaves in order does not flap, however often it comes back: it says so in its record before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Final

from segmentstore.cluster.assignment_map import Arrival
from segmentstore.cluster.host_record import HostRecord

FLAP_WINDOW_MS: Final = 10 * 60 * 1000
"""A host that comes back within this time of its last arrival has returned once more."""
CALM_MS: Final = 2 * 60 * 1000
"""For each such time between two arrivals one return is forgotten."""
RETURNS_MAX: Final = 2
"""A rolling restart, and another one right after it, are no flapping."""
FLAPPING_MS: Final = 30 * 1000
"""How long a host that returned once more than that is flapping, from its last arrival on. It
doubles with each further return.
"""
FLAPPING_MS_MAX: Final = 5 * 60 * 1000


def noted_arrivals(
    now_ms: int, hosts: Mapping[str, HostRecord], before: Mapping[str, Arrival]
) -> dict[str, Arrival]:
    """The arrivals of those present, and of those that left within the window."""
    after: dict[str, Arrival] = {}
    for host_id, record in hosts.items():
        last = before.get(host_id)
        if last is not None and last.is_present and last.started_ms == record.started_ms:
            arrival = last
        else:
            arrival = Arrival(record.started_ms, now_ms, _returns(now_ms, last))
        # Never recent: its return is not counted.
        after[host_id] = dataclasses.replace(arrival, seen_ms=0) if record.draining else arrival
    for host_id, last in before.items():
        if host_id not in hosts and _is_recent(now_ms, last):
            after[host_id] = dataclasses.replace(last, is_present=False)
    return after


def flapping_hosts(
    now_ms: int, arrivals: Mapping[str, Arrival], open_hosts: Collection[str]
) -> set[str]:
    """Those of the open hosts that have returned too often to be the target of a planned move.

    None if they are more than half: then it is not they that are at fault, and the others must not
    be given everything.
    """
    found = {host_id for host_id in open_hosts if _is_flapping(now_ms, arrivals[host_id])}
    return found if 2 * len(found) <= len(open_hosts) else set()


def _is_flapping(now_ms: int, arrival: Arrival) -> bool:
    more = arrival.returns - RETURNS_MAX
    # The shift is bounded: a return more than the longest time needs changes nothing.
    span_ms = min(FLAPPING_MS << min(max(0, more - 1), 10), FLAPPING_MS_MAX)
    return more > 0 and 0 <= now_ms - arrival.seen_ms < span_ms


def _returns(now_ms: int, last: Arrival | None) -> int:
    if last is None or not _is_recent(now_ms, last):
        return 0
    return max(0, last.returns - (now_ms - last.seen_ms) // CALM_MS) + 1


def _is_recent(now_ms: int, last: Arrival) -> bool:
    # Another leader's clock may be behind that of the one before: then nothing is recent.
    return 0 <= now_ms - last.seen_ms < FLAP_WINDOW_MS
