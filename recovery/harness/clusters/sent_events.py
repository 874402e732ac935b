"""What clients of a run send, what they were answered, and whether the segments have it. Pure.

Every event has the numbers of its sender and of itself, and its bytes follow from both. So a
segment is checked against the answers alone, event by event.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

_HEADER: Final = struct.Struct(">IHQ")
"""Length of all of it, sender, number."""
_FILLED_MAX: Final = 480
_SHOWN: Final = 5


@dataclass(slots=True)
class Sender:
    """One that sends to one segment; its events are numbered from 0."""

    number: int
    segment: str
    exactly_once: bool
    """By a writer; else by plain appends, one after the other."""
    sent: int = 0
    acknowledged: dict[int, int | None] = field(default_factory=dict)
    """The offsets by number; None where the client did not learn it."""
    last_acknowledged: int = -1
    unknown: set[int] = field(default_factory=set)
    """Appends that ended in AppendOutcomeUnknownError."""
    errors: list[str] = field(default_factory=list)
    """All other errors, of which none is allowed."""
    longest_wait_s: float = 0.0
    """For an acknowledgement, since this was last reset."""

    def acknowledge(self, number: int, offset: int | None, waited_s: float) -> None:
        """An event was acknowledged, at an offset if the client has learned it."""
        self.acknowledged[number] = offset
        self.last_acknowledged = number
        self.longest_wait_s = max(self.longest_wait_s, waited_s)


class FollowedSegment:
    """What a reader that follows a segment was given."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.length = 0
        self._digest = hashlib.sha256()
        self.error: str | None = None

    def add(self, data: bytes) -> None:
        """The next bytes."""
        self._digest.update(data)
        self.length += len(data)

    def agrees(self, content: bytes) -> bool:
        """Whether these are the bytes that it got, and no more."""
        return len(content) == self.length and (
            hashlib.sha256(content).digest() == self._digest.digest()
        )


@dataclass(frozen=True, slots=True)
class FoundEvent:
    """An event as a segment has it."""

    sender: int
    number: int
    offset: int


def event_bytes(sender: int, number: int) -> bytes:
    """Event `number` of a sender, 46 to 526 bytes."""
    digest = hashlib.sha256(_HEADER.pack(0, sender, number)).digest()
    filled = digest * (1 + (digest[0] % 16) * (_FILLED_MAX // 16) // len(digest))
    return _HEADER.pack(_HEADER.size + len(filled), sender, number) + filled


def events_in(content: bytes) -> Iterator[FoundEvent]:
    """The events of a segment. Raises ValueError where it has other bytes than were sent."""
    view, offset = memoryview(content), 0
    while offset < len(content):
        if len(content) - offset < _HEADER.size:
            raise ValueError(f"it ends within an event, at {offset}")
        length, sender, number = _HEADER.unpack_from(content, offset)
        if view[offset : offset + length] != event_bytes(sender, number):
            raise ValueError(f"at {offset} are not the bytes of event {number} of {sender}")
        yield FoundEvent(sender, number, offset)
        offset += length


def violations(segment: str, content: bytes, senders: Sequence[Sender]) -> list[str]:
    """What is wrong with a segment, given the answers that its senders got.

    All acknowledged events are there once, in the order of each sender, at the offsets of the
    acknowledgements. So two owners of a container that both acknowledged would be seen: their
    offsets would overlap, or the events of one would be missing.
    """
    try:
        found = list(events_in(content))
    except ValueError as error:
        return [f"{segment}: {error}"]
    wrong = [
        f"{segment}: an event of {each.sender}, which sends to others, at {each.offset}"
        for each in found
        if each.sender not in {sender.number for sender in senders}
    ]
    for sender in senders:
        own = [each for each in found if each.sender == sender.number]
        wrong += (f"{segment}: sender {sender.number}: {text}" for text in _wrong(sender, own))
    return wrong


def _wrong(sender: Sender, found: Sequence[FoundEvent]) -> Iterator[str]:
    offsets = {each.number: each.offset for each in found}
    if len(offsets) != len(found):
        yield f"{len(found) - len(offsets)} events are there twice"
    lost = sorted(sender.acknowledged.keys() - offsets.keys())
    if lost:
        yield f"{len(lost)} acknowledged events are missing: {lost[:_SHOWN]}"
    moved = [
        number
        for number, offset in sender.acknowledged.items()
        if offset is not None and offsets.get(number, offset) != offset
    ]
    if moved:
        yield f"{len(moved)} events are not where they were acknowledged: {moved[:_SHOWN]}"
    if unsent := [number for number in offsets if number >= sender.sent]:
        yield f"events that were never sent: {unsent[:_SHOWN]}"
    # An append of unknown outcome may come behind later ones.
    sure = [
        each.number for each in found if sender.exactly_once or each.number in sender.acknowledged
    ]
    if sure != sorted(sure):
        yield "its events are in another order"
    if sender.exactly_once and len(offsets) != max(offsets, default=-1) + 1:
        yield "there is a gap in its events"
