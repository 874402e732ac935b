"""Offsets of a stream: how far each segment has been read, as Spark keeps it in its checkpoint.

    {"version": 1, "segments": {"0/12": 4096, ...}, "begun": {"0/12": 0}, "snapshots": {"0":
    "<epoch>-<sequence number>"},
     "waiting": {"0/12": [65536, "logs/a"]}, "store": "<id of the store>"}

Segments go by container and id: a name that was deleted and made again is another segment. Rules of
this file:

- what is read between two offsets depends on nothing but them: where the reading of a segment began
  stands in the first offset that has it (`begun`);
- a segment that a later snapshot does not have will never come again, and leaves; so the offsets
  stay as small as the store. `snapshots` says as of when, and an older snapshot that turns up
  changes nothing;
- what a snapshot had and the limit of a batch left for later is remembered (`waiting`): if its
  segment goes before it was read, that is loss. The field is not there where nothing waits, nor in
  offsets of programs from before it; those pass over it;
- ids mean something in one store alone (`store`): another one at the same place has them too, for
  other bytes. The field is not there in offsets of programs from before it, and comes with the
  next change;
- nothing new, nothing changed: Spark begins a batch whenever the offset is another.

Pure.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tier2.spark.source.errors import SourceError

VERSION: Final = 1
_KEY: Final = re.compile(r"(\d{1,10})/(\d{1,19})")
_POSITION: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})")


class OffsetFormatError(SourceError):
    """What the checkpoint holds is no offset of this source.

    The caller's move: another checkpoint, or a newer program.
    """


class OffsetOrderError(SourceError):
    """A batch would go backwards: an older catalog has taken a newer one's place.

    The operator's move: export the catalog again, and begin with another checkpoint.
    """


class OffsetStoreError(SourceError):
    """The checkpoint is of a stream over another store than the one that is read.

    The caller's move: that store's URL or `storeId`, or another checkpoint for this one.
    """

    def __init__(self, theirs: str, ours: str) -> None:
        super().__init__(
            f"the checkpoint is of a stream over store {theirs}, and the catalog is of store "
            f"{ours}: what was read there says nothing of the bytes here. Name that store, or "
            "begin with another checkpoint (startingOffsets says where)"
        )


class SegmentKey(NamedTuple):
    """Which segment, for ever."""

    container_id: int
    segment_id: int


class Position(NamedTuple):
    """As of when a snapshot is; they are ordered so."""

    epoch: int
    sequence_number: int


class WaitingSegment(NamedTuple):
    """What a snapshot had of a segment, and a batch left for later."""

    stored: int
    """Where its bytes in Tier 2 ended."""
    name: str
    """For a caller that is notified that it is missing: the catalog does not know it any more then.
    """
    merged_into: int | None = None
    """Id of the segment that its bytes were last seen in, or on their way into, until one that is
    read has them.
    """


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Everything before these places has been read."""

    ends: Mapping[SegmentKey, int] = field(default_factory=dict)
    begun: Mapping[SegmentKey, int] = field(default_factory=dict)
    """Of segments that the offset before this one does not have: where reading them begins."""
    snapshots: Mapping[int, Position] = field(default_factory=dict)
    """By container: the latest snapshot that has changed anything here."""
    waiting: Mapping[SegmentKey, WaitingSegment] = field(default_factory=dict)
    """Of segments in `ends`: those with rows left for later."""
    store_id: str = ""
    """Of the store whose segments these are; empty: an offset from before it was noted, or of no
    segment.
    """

    def to_json(self) -> dict[str, Any]:
        """For Spark: dictionaries, texts and numbers alone, always in the same order."""
        document: dict[str, Any] = {
            "version": VERSION,
            "segments": _texts(self.ends),
            "begun": _texts(self.begun),
            "snapshots": {
                str(container_id): f"{position.epoch:016x}-{position.sequence_number:016x}"
                for container_id, position in sorted(self.snapshots.items())
            },
        }
        if self.waiting:
            document["waiting"] = {
                _text(key): [
                    left.stored,
                    left.name,
                    *([] if left.merged_into is None else [left.merged_into]),
                ]
                for key, left in sorted(self.waiting.items())
            }
        if self.store_id:
            document["store"] = self.store_id
        return document


def parse_offset(document: Mapping[str, Any]) -> StreamOffset:
    """What `to_json` made. Raises OffsetFormatError."""
    version = document.get("version")
    if version != VERSION:
        raise OffsetFormatError(
            f"offset of version {version!r}; this program reads version {VERSION}"
        )
    try:
        return StreamOffset(
            _keys(document["segments"]),
            _keys(document["begun"]),
            {
                int(container_id): _position(text)
                for container_id, text in document["snapshots"].items()
            },
            {_key(text): _waiting(left) for text, left in document.get("waiting", {}).items()},
            str(uuid.UUID(document["store"])) if "store" in document else "",
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise OffsetFormatError(f"no offset of this source: {error!r}") from None


def _texts(places: Mapping[SegmentKey, int]) -> dict[str, int]:
    return {_text(key): place for key, place in sorted(places.items())}


def _text(key: SegmentKey) -> str:
    return f"{key.container_id}/{key.segment_id}"


def _keys(places: Mapping[str, Any]) -> dict[SegmentKey, int]:
    return {_key(text): _number(place) for text, place in places.items()}


def _key(text: str) -> SegmentKey:
    match = _KEY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no segment")
    return SegmentKey(int(match[1]), int(match[2]))


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no place, and no id")
    return value


def _waiting(document: Sequence[Any]) -> WaitingSegment:
    stored, name, *merged_into = document
    if type(name) is not str or len(merged_into) > 1:
        raise ValueError(f"{document!r} waits for nothing")
    return WaitingSegment(_number(stored), name, *map(_number, merged_into))


def _position(text: str) -> Position:
    match = _POSITION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no position of a snapshot")
    return Position(int(match[1], 16), int(match[2], 16))


# --- the next offset ------------------------------------------------------------------------------


class SegmentStep(NamedTuple):
    """One segment's step."""

    start: int
    end: int


def next_offset(
    before: StreamOffset,
    steps: Mapping[SegmentKey, SegmentStep],
    missing: frozenset[SegmentKey],
    positions: Mapping[int, Position],
    waiting: Mapping[SegmentKey, WaitingSegment] | None = None,
    *,
    store_id: str = "",
) -> StreamOffset:
    """The offset after these steps; `before` itself if none of them moves, nothing is missing and
    the same rows wait.

    `missing`: segments that the snapshots at `positions` do not have any more. `waiting`: all that
    does; a segment that is not in `before` has a step. `store_id`: of the snapshots' store.
    """
    waiting = waiting or {}
    moved = {key: step for key, step in steps.items() if step.end > step.start}
    left = [key for key in before.ends if key in missing]
    if not moved and not left and waiting == before.waiting:
        return before
    ends = {key: place for key, place in before.ends.items() if key not in missing}
    ends.update({key: step.end for key, step in moved.items()})
    # One whose turn has not come is known from now on too: its beginning is where what it can lose
    # begins.
    ends.update({key: steps[key].end for key in waiting if key not in ends})
    begun = {key: steps[key].start for key in ends if key not in before.ends}
    others = {
        key for key in {*waiting, *before.waiting} if waiting.get(key) != before.waiting.get(key)
    }
    changed = {key.container_id for key in (*moved, *left, *others)}
    news = {
        container_id: position
        for container_id, position in positions.items()
        if container_id in changed
    }
    return StreamOffset(ends, begun, {**before.snapshots, **news}, waiting, store_id)


def steps_between(start: StreamOffset, end: StreamOffset) -> dict[SegmentKey, SegmentStep]:
    """What is read from one offset to the next, by segment; only what is not empty."""
    steps = {}
    for key, place in sorted(end.ends.items()):
        begin = start.ends.get(key, end.begun.get(key, 0))
        if place > begin:
            steps[key] = SegmentStep(begin, place)
    return steps


def check_order(start: StreamOffset, end: StreamOffset) -> None:
    """Raise OffsetOrderError if `end` lies before `start` somewhere: what lies between would be
    read twice.
    """
    for container_id, position in start.snapshots.items():
        later = end.snapshots.get(container_id)
        if later is not None and later < position:
            raise OffsetOrderError(
                f"container {container_id}: a batch would end at an older catalog than it begins at"
            )
    for key, place in start.ends.items():
        if end.ends.get(key, place) < place:
            raise OffsetOrderError(
                f"segment {_text(key)}: a batch would end at {end.ends[key]} and begin at {place}"
            )


def check_store(offset: StreamOffset, store_id: str) -> None:
    """Raise OffsetStoreError if the offset is of another store than the snapshots.

    `store_id` is empty where there are none, and says nothing then.
    """
    if offset.store_id and store_id and offset.store_id != store_id:
        raise OffsetStoreError(offset.store_id, store_id)


def admit(backlogs: Mapping[SegmentKey, int], budget: int | None) -> dict[SegmentKey, int]:
    """How many bytes of each backlog a batch may take: all, or `budget` bytes shared in proportion.

    All of the budget is given out: what rounding leaves goes to the largest.
    """
    total = sum(backlogs.values())
    if budget is None or total <= budget:
        return {key: backlog for key, backlog in backlogs.items() if backlog}
    shares = {key: budget * backlog // total for key, backlog in backlogs.items()}
    left = budget - sum(shares.values())
    for key in sorted(backlogs, key=lambda key: (-backlogs[key], key)):
        more = min(left, backlogs[key] - shares[key])
        shares[key] += more
        left -= more
    return {key: share for key, share in shares.items() if share}


def fill(backlogs: Mapping[SegmentKey, int], budget: int) -> dict[SegmentKey, int]:
    """How many bytes of each backlog a budget has room for: of the shortest all, and of the one it
    ends in a part.
    """
    shares: dict[SegmentKey, int] = {}
    for key in sorted(backlogs, key=lambda key: (backlogs[key], key)):
        share = min(backlogs[key], budget)
        if share:
            shares[key] = share
        budget -= share
    return shares
