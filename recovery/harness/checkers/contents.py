"""Contents: what was seen of a segment over time, cut into records; only what is new is parsed.

The content of a segment id only grows at its end and is cut at its head, so one list of pieces
serves all that was seen of it. Rules of this file: it compares and cuts, and checks nothing; what
does not fit goes to `breaks`.
"""

from __future__ import annotations

from bisect import bisect_right

from recovery.harness.history import Observation, SeenSegment
from recovery.harness.records import Piece, parse_records


class Chain:
    """One segment id through all observations that have it."""

    __slots__ = (
        "again",
        "at",
        "begins",
        "breaks",
        "complete",
        "head",
        "lengths",
        "name",
        "pieces",
        "seen",
        "segment_id",
    )

    def __init__(self, name: str, segment_id: int) -> None:
        self.name = name
        self.segment_id = segment_id
        self.seen: list[tuple[Observation, SeenSegment]] = []
        self.lengths: list[int] = []
        """Of `seen`, never shrinking."""
        self.begins: list[int] = []
        """Stamps at which the observations began."""
        self.pieces: list[Piece] = []
        """All that was ever seen, by offset; truncated pieces stay."""
        self.at: dict[tuple[bool, int, int], int] = {}
        """Origin of a record to the offset at which it lies first."""
        self.again: dict[tuple[bool, int, int], list[int]] = {}
        """Origin to further offsets."""
        self.head = 0
        """The first offset that was ever seen."""
        self.complete = True
        """True if no byte was truncated before it was seen."""
        self.breaks: list[str] = []
        """Where a content does not go on from the one before it."""

    def add(self, number: int, observation: Observation, seen: SeenSegment) -> None:
        """What observation `number` has of it.

        Parses what is new; compares the rest, about 10 GB a second.
        """
        if self.seen:
            before = self.seen[-1][1]
            problem = _break(before, seen)
            if problem:
                self.breaks.append(
                    f"segment {self.name!r} (id {self.segment_id}), observation {number}: {problem}"
                )
                self._forget()
                self._parse(seen.content, seen.start_offset)
            elif before.length < seen.start_offset:
                self.complete = False
                self._parse(seen.content, seen.start_offset)
            elif before.length < seen.length:
                # A piece that is no record may be the beginning of one.
                last = self.pieces.pop() if self.pieces and self.pieces[-1].origin is None else None
                begin = max(seen.start_offset, before.length if last is None else last.offset)
                self._parse(seen.content[begin - seen.start_offset :], begin)
        else:
            self.head = seen.start_offset
            self.complete = seen.start_offset == 0
            self._parse(seen.content, seen.start_offset)
        self.seen.append((observation, seen))
        self.lengths.append(max(seen.length, self.lengths[-1] if self.lengths else 0))
        self.begins.append(observation.begun)

    def first_after(self, stamp: int) -> tuple[Observation, SeenSegment] | None:
        """The first that was seen in an observation begun after a stamp."""
        place = bisect_right(self.begins, stamp)
        return self.seen[place] if place < len(self.seen) else None

    def last_before(self, stamp: int) -> tuple[Observation, SeenSegment] | None:
        """The last that was seen in an observation begun before a stamp."""
        place = bisect_right(self.begins, stamp)
        return self.seen[place - 1] if place else None

    def seen_first(self, offset: int) -> int:
        """Place in `seen` of the first that has the byte at an offset."""
        return bisect_right(self.lengths, offset)

    def has(self, origin: tuple[bool, int, int], offset: int) -> bool:
        """True if the record of this origin lies at this offset."""
        return self.at.get(origin) == offset or offset in self.again.get(origin, ())

    def _forget(self) -> None:
        self.pieces.clear()
        self.at.clear()
        self.again.clear()

    def _parse(self, content: bytes, start: int) -> None:
        at, add = self.at, self.pieces.append
        for piece in parse_records(content, start):
            add(piece)
            origin = piece[2]
            if origin is None:
                continue
            if at.setdefault(origin, piece[0]) != piece[0]:
                self.again.setdefault(origin, []).append(piece[0])


def _break(before: SeenSegment, seen: SeenSegment) -> str:
    """Why the content seen does not go on from the one before; "" if it does."""
    if seen.length < before.length:
        return f"its length went back from {before.length} to {seen.length}"
    if seen.start_offset < before.start_offset:
        return f"its start offset went back from {before.start_offset} to {seen.start_offset}"
    if (
        len(before.content) != before.length - before.start_offset
        or before.length <= seen.start_offset
    ):
        return ""
    old = before.content
    if seen.start_offset > before.start_offset:
        old = old[seen.start_offset - before.start_offset :]
    if seen.content.startswith(old):
        return ""
    differs = next(
        (
            place
            for place, pair in enumerate(zip(old, seen.content, strict=False))
            if pair[0] != pair[1]
        ),
        -1,
    )
    if differs < 0:
        return (
            f"only {len(seen.content)} of the {len(old)} bytes from offset "
            f"{seen.start_offset} on are there again"
        )
    return f"the byte at offset {seen.start_offset + differs} has changed"
