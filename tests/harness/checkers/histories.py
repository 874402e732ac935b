"""A good history with some of everything, and the means to break it in one place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from recovery.harness.checkers.all_checks import check_history
from recovery.harness.history import Call, CallKind, History, SeenSegment, Update
from tests.harness.checkers.small_store import SmallStore

COUNTER = UUID(int=1 << 100)
VALUE = UUID(int=2 << 100)


def good() -> SmallStore:
    """A store with some of everything, reopened twice; nothing of it is a violation."""
    store = SmallStore()
    for name in ("a", "b", "m", "m#1", "d", "e"):
        store.create(name)
    for length in (10, 20, 30):
        store.append("a", length)
        store.append("b", length, 5, length)
    store.append("a", 15, expected=len(store.state["a"].content))
    store.append("m", 12)
    store.append("m#1", 8)
    store.append("m#1", 9)
    for number in range(4):
        store.event("e", 1, number)
    store.observe()
    store.append("m#1", 6)
    store.call(CallKind.MERGE, "m", source="m#1")
    store.call(CallKind.TRUNCATE, "b", offset=store.history.calls[7].size)
    store.append("d", 20)
    store.call(CallKind.DELETE, "d")
    store.create("d")
    store.append("d", 25)
    for value in (1, 2, 3):
        store.call(CallKind.UPDATE, "a", updates=(Update(COUNTER, "ACCUMULATE", value),))
    store.append("a", 10, updates=(Update(VALUE, "REPLACE", 7),))
    store.call(CallKind.READ, "a", offset=0, max_length=30)
    store.call(CallKind.INFO, "a")
    store.call(CallKind.SEAL, "b")
    store.lost("a", 11)
    store.lost("a", 12)
    store.reopen(1)
    store.observe()
    store.event("e", 1, 3)
    store.event("e", 1, 4)
    store.append("a", 13)
    store.reopen()
    store.observe()
    store.reopen()
    store.observe(again=True)
    return store


def told(history: History) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for violation in check_history(history):
        found.setdefault(violation.checker, []).append(violation.detail)
        assert str(violation).startswith(violation.checker)
    return found


def see(store: SmallStore, number: int, name: str, **changes: Any) -> SeenSegment:
    """Change what an observation says of a segment."""
    segments = store.history.observations[number].segments
    if "content" in changes and "length" not in changes:
        changes["length"] = segments[name].start_offset + len(changes["content"])
    segments[name] = replace(segments[name], **changes)
    return segments[name]


def see_from(store: SmallStore, first: int, name: str, **changes: Any) -> None:
    """Change it in an observation and all later ones."""
    for number in range(first, len(store.history.observations)):
        see(store, number, name, **changes)


def calls_of(store: SmallStore, kind: CallKind, name: str) -> list[Call]:
    return [call for call in store.history.calls if call.kind is kind and call.segment == name]


def content(store: SmallStore, number: int, name: str) -> bytes:
    return store.history.observations[number].segments[name].content
