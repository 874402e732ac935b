"""When hosts came and how often they came back: a host that flaps gets no planned move.

Pure. A vanished host is absent at once: its session's timeout was the delay already. One that
leaves in order does not flap, however often it comes back: it says so in its record before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from segmentstore.cluster.assignment_map import Arrival
from segmentstore.cluster.host_record import HostRecord

FLAP_WINDOW_MS: Final = 10 * 60 * 1000
"""A host that comes back within this time of its last arrival has returned once more."""
RETURNS_MAX: Final = 2
"""A rolling restart, and another one right after it, are no flapping."""
SETTLED_MS: Final = 5 * 60 * 1000
"""How long a host that returned more often is flapping, from its last arrival on."""


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
            returns = last.returns + 1 if last is not None and _is_recent(now_ms, last) else 0
            arrival = Arrival(record.started_ms, now_ms, returns)
        # Never recent: its return is not counted.
        after[host_id] = dataclasses.replace(arrival, seen_ms=0) if record.draining else arrival
    for host_id, last in before.items():
        if host_id not in hosts and _is_recent(now_ms, last):
            after[host_id] = dataclasses.replace(last, is_present=False)
    return after


def is_flapping(now_ms: int, arrival: Arrival) -> bool:
    """Whether the host has returned too often to be the target of a planned move."""
    return arrival.returns > RETURNS_MAX and 0 <= now_ms - arrival.seen_ms < SETTLED_MS


def _is_recent(now_ms: int, last: Arrival) -> bool:
    # Another leader's clock may be behind that of the one before: then nothing is recent.
    return 0 <= now_ms - last.seen_ms < FLAP_WINDOW_MS
