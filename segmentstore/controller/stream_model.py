"""What the Controller knows of a stream: its configuration, segments, epochs and the change that is
not finished. Values only, with their form as rows (docs/formats/controller-tables.md).

An epoch is a set of segments that tile the keys [0, 1); each scale begins the next one. A row has
the segments of the active epoch; `EpochRecord`s have the history.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from segmentstore.controller import names
from segmentstore.controller.refusals import Reason, RefusedRequestError

SEGMENTS_MAX: Final = 4000
"""Segments of one epoch: a row with all of them, and a cut through them, fits into an entry of a
table.
"""
_TAGS_MAX: Final = 128
_TAG_LENGTH_MAX: Final = 256
_INT64_MAX: Final = 2**63 - 1

StreamCut = Mapping[int, int]
"""Offset by segment id. Of a whole cut the segments tile [0, 1)."""


class StreamSegment(NamedTuple):
    """A segment and the keys [low, high) whose events it takes."""

    segment_id: int
    low: float
    high: float

    @property
    def epoch(self) -> int:
        """In which it was created."""
        return names.epoch_of(self.segment_id)


class ScalingPolicy(NamedTuple):
    """How many segments a stream has. `kind`: 0 fixed, 1 by KB/s, 2 by events/s."""

    kind: int = 0
    rate: int = 0
    factor: int = 0
    segments: int = 1


FIXED_ONE: Final = ScalingPolicy()
"""One segment, unless a client scales the stream."""


class StreamRetention(NamedTuple):
    """How much of a stream is kept. `kind`: 1 time in ms, 2 size in bytes.

    With subscribers at least `param` and at most `most` (0: no bound), otherwise `param`.
    """

    kind: int
    param: int
    most: int


@dataclass(frozen=True, slots=True)
class StreamConfiguration:
    """What the creator of a stream chooses."""

    scaling: ScalingPolicy = FIXED_ONE
    retention: StreamRetention | None = None
    tags: tuple[str, ...] = ()
    aggregation_ms: int = 0
    rollover_bytes: int = 0

    def check(self) -> Self:
        """Return it; raise RefusedRequestError if no stream can have it."""
        policy, retention = self.scaling, self.retention
        for name, value, low, high in (
            ("scaling policy", policy.kind, 0, 2),
            ("scaling rate", policy.rate, 0, _INT64_MAX),
            ("scaling factor", policy.factor, 0, _INT64_MAX),
            ("number of segments", policy.segments, 1, SEGMENTS_MAX),
            ("number of tags", len(self.tags), 0, _TAGS_MAX),
            ("timestamp aggregation time-out", self.aggregation_ms, 0, _INT64_MAX),
            ("rollover size", self.rollover_bytes, 0, _INT64_MAX),
            ("retention policy", retention.kind if retention else 1, 1, 2),
            ("retention parameter", retention.param if retention else 0, 0, _INT64_MAX),
            ("retention maximum", retention.most if retention else 0, 0, _INT64_MAX),
        ):
            if not low <= value <= high:
                raise RefusedRequestError(
                    Reason.BAD_ARGUMENT, f"{name} {value} is outside {low} to {high}"
                )
        if any(not 1 <= len(tag) <= _TAG_LENGTH_MAX for tag in self.tags):
            raise RefusedRequestError(
                Reason.BAD_ARGUMENT, f"a tag has 1 to {_TAG_LENGTH_MAX} characters"
            )
        return self

    def to_row(self) -> dict[str, Any]:
        return {
            "scaling": list(self.scaling),
            "retention": list(self.retention) if self.retention else None,
            "tags": list(self.tags),
            "aggregation_ms": self.aggregation_ms,
            "rollover_bytes": self.rollover_bytes,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        retention = row["retention"]
        return cls(
            scaling=ScalingPolicy(*row["scaling"]),
            retention=StreamRetention(*retention) if retention else None,
            tags=tuple(row["tags"]),
            aggregation_ms=row["aggregation_ms"],
            rollover_bytes=row["rollover_bytes"],
        )


class ChangeKind(enum.StrEnum):
    """What is being done to a stream."""

    CREATE = "create"
    UPDATE = "update"
    TRUNCATE = "truncate"
    SCALE = "scale"
    SCALE_SEAL = "scale-seal"
    """The second half of a scale: the new epoch is recorded, the old segments are to be sealed."""
    SEAL = "seal"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class StreamChange:
    """A change that was decided, and is not finished. Which fields it has depends on its kind."""

    kind: ChangeKind
    configuration: StreamConfiguration | None = None
    """The new one, of an update."""
    cut: StreamCut = field(default_factory=dict)
    """Where a truncation ends."""
    sealed: tuple[int, ...] = ()
    """Segments that a scale seals."""
    created: tuple[StreamSegment, ...] = ()
    """Segments that a scale creates."""
    request_id: str = ""
    """Of the deletion."""

    def to_row(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "configuration": self.configuration.to_row() if self.configuration else None,
            "cut": cut_to_row(self.cut),
            "sealed": list(self.sealed),
            "created": segments_to_row(self.created),
            "request": self.request_id,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        configuration = row["configuration"]
        return cls(
            kind=ChangeKind(row["kind"]),
            configuration=StreamConfiguration.from_row(configuration) if configuration else None,
            cut=cut_from_row(row["cut"]),
            sealed=tuple(row["sealed"]),
            created=segments_from_row(row["created"]),
            request_id=row.get("request", ""),
        )


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream as its row says."""

    configuration: StreamConfiguration
    created_ms: int
    epoch: int = 0
    """The active one."""
    active: tuple[StreamSegment, ...] = ()
    """Segments of the active epoch by key. Of a sealed stream: the last ones."""
    next_number: int = 0
    """Of the next segment that a scale creates."""
    cut: StreamCut = field(default_factory=dict)
    """Where the last truncation ended; empty: none yet."""
    sealed: bool = False
    change: StreamChange | None = None
    """What is not finished. Nothing else begins before it is."""
    request_id: str = ""
    """Of the creation."""

    @property
    def exists(self) -> bool:
        """Whether clients see it: from the end of its creation to the beginning of its deletion."""
        kinds = (ChangeKind.CREATE, ChangeKind.DELETE)
        return self.change is None or self.change.kind not in kinds

    @property
    def head_cut(self) -> StreamCut:
        """Where the stream begins, empty at epoch 0.

        A truncation counts from its beginning: its segments may be deleted already.
        """
        truncating = self.change is not None and self.change.kind is ChangeKind.TRUNCATE
        return self.change.cut if truncating and self.change else self.cut

    def with_change(self, kind: ChangeKind, **fields: Any) -> Self:
        """The stream as it is when a change of it begins."""
        return dataclasses.replace(self, change=StreamChange(kind, **fields))

    def to_row(self) -> dict[str, Any]:
        return {
            "configuration": self.configuration.to_row(),
            "created_ms": self.created_ms,
            "epoch": self.epoch,
            "active": segments_to_row(self.active),
            "next_number": self.next_number,
            "cut": cut_to_row(self.cut),
            "sealed": self.sealed,
            "change": self.change.to_row() if self.change else None,
            "request": self.request_id,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(
            configuration=StreamConfiguration.from_row(row["configuration"]),
            created_ms=row["created_ms"],
            epoch=row["epoch"],
            active=segments_from_row(row["active"]),
            next_number=row["next_number"],
            cut=cut_from_row(row["cut"]),
            sealed=row["sealed"],
            change=StreamChange.from_row(row["change"]) if row["change"] else None,
            request_id=row.get("request", ""),
        )


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """How an epoch differs from the one before it."""

    epoch: int
    created: tuple[StreamSegment, ...]
    """Segments that began with it, by key."""
    sealed: tuple[int, ...]
    """Segments of the epoch before that ended with it."""
    time_ms: int

    def to_row(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "created": segments_to_row(self.created),
            "sealed": list(self.sealed),
            "time_ms": self.time_ms,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(
            epoch=row["epoch"],
            created=segments_from_row(row["created"]),
            sealed=tuple(row["sealed"]),
            time_ms=row["time_ms"],
        )


def even_segments(count: int, first: int = 0) -> tuple[StreamSegment, ...]:
    """`count` segments of epoch 0 that divide [0, 1) evenly, numbered from `first` on."""
    return tuple(
        StreamSegment(names.make_segment_id(first + place, 0), place / count, (place + 1) / count)
        for place in range(count)
    )


def segments_to_row(segments: Sequence[StreamSegment]) -> list[list[int | float]]:
    """Id, low and high of each."""
    return [list(segment) for segment in segments]


def segments_from_row(row: Sequence[Sequence[Any]]) -> tuple[StreamSegment, ...]:
    """As `segments_to_row` gave them."""
    return tuple(StreamSegment(*segment) for segment in row)


def cut_to_row(cut: StreamCut) -> list[list[int]]:
    """Id and offset of each segment."""
    return [[segment_id, offset] for segment_id, offset in sorted(cut.items())]


def cut_from_row(row: Sequence[Sequence[int]]) -> dict[int, int]:
    """As `cut_to_row` gave it."""
    return {int(segment_id): int(offset) for segment_id, offset in row}
