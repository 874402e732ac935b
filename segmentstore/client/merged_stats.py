"""Statistics of several hosts as those of one store. Pure.

Counts and sizes are added up. Of times, and of what describes the cluster, the largest counts; of
texts the first. Each container is as the host has it that serves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from segmentstore.stats_types import StoreStats

_LARGEST: Final = frozenset(
    {
        "longest_turn_s", "hosts", "map_epoch", "unassigned", "moves_under_way",
        "arrival_s", "start_s", "stop_s",
    }
)  # fmt: skip
_BY_CONTAINER: Final = frozenset({"containers", "container_states"})
_RUNNING: Final = "running"


def merged_stats(of_hosts: Sequence[StoreStats]) -> StoreStats:
    """Of one or more hosts."""
    stats = [cast("Mapping[str, Any]", each) for each in of_hosts]
    merged = {
        key: _by_container([each[key] for each in stats])
        if key in _BY_CONTAINER
        else _merged(key, [each[key] for each in stats])
        for key in stats[0]
    }
    return cast("StoreStats", merged)


def _by_container(tables: Sequence[Mapping[int, Mapping[str, Any]]]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for table in tables:
        for number, entry in table.items():
            if number not in found or entry["state"] == _RUNNING:
                found[number] = entry
    return dict(sorted(found.items()))


def _merged(key: str, values: Sequence[Any], *, largest: bool = False) -> Any:
    there = [each for each in values if each is not None]
    if not there:
        return None
    first = there[0]
    largest = largest or key in _LARGEST or key.endswith("_ms")
    if isinstance(first, Mapping):
        keys = dict.fromkeys(name for each in there for name in each)
        return {
            name: _merged(name, [each[name] for each in there if name in each], largest=largest)
            for name in keys
        }
    if isinstance(first, bool):
        return any(there) if key == "leads" else all(there)
    if isinstance(first, int | float):
        return max(there) if largest else sum(there)
    if isinstance(first, tuple):
        return tuple(map(sum, zip(*there, strict=False)))
    if isinstance(first, list):
        return list(dict.fromkeys(item for each in there for item in each))
    return first
