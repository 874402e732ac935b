"""Events whose order within a key can be checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

KEYS: Final = 17


def event_of(number: int) -> tuple[str, str]:
    """A key and an event. The number of the event is in it, and grows within a key."""
    key = f"key{number % KEYS}"
    return key, f"{key} {number}"


def by_key(events: Iterable[str]) -> dict[str, list[str]]:
    """The events of each key, in their order."""
    sorted_out: dict[str, list[str]] = {}
    for event in events:
        sorted_out.setdefault(event.split()[0], []).append(event)
    return sorted_out


def numbered(count: int) -> list[str]:
    """Events 0 to `count`."""
    return [event_of(number)[1] for number in range(count)]
