"""What the Controller knows of a reader group: its configuration, and which streams it subscribes
to. Pure. All else of a group is in its stream, among the clients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from segmentstore.controller.names import ScopedName, check_scope_name, check_stream_name
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.stream_model import (
    StreamConfiguration,
    StreamCut,
    cut_from_row,
    cut_to_row,
)

SUBSCRIBED_MAX: Final = 10_000
"""Streams whose retention waits for one group: their rows are written, and removed, together."""
_NO_RETENTION: Final = 0


@dataclass(frozen=True, slots=True)
class GroupConfiguration:
    """As clients sent it. `retention`: 0 none, 1 manual, 2 automatic release of what was read."""

    uuid: str
    refresh_ms: int = 0
    checkpoint_ms: int = 0
    checkpoints_max: int = 0
    retention: int = _NO_RETENTION
    generation: int = 0
    rollover_bytes: int = 0
    starting: tuple[tuple[ScopedName, StreamCut], ...] = ()
    ending: tuple[tuple[ScopedName, StreamCut], ...] = ()

    @property
    def subscribed(self) -> tuple[ScopedName, ...]:
        """Streams whose retention waits for the group."""
        if self.retention == _NO_RETENTION:
            return ()
        return tuple(dict.fromkeys(stream for stream, _ in self.starting))

    @property
    def of_stream(self) -> StreamConfiguration:
        """That of the group's own stream."""
        return StreamConfiguration(rollover_bytes=self.rollover_bytes)

    def check(self) -> Self:
        """Return it; raise RefusedRequestError if no group can have it."""
        self.of_stream.check()
        if len(self.subscribed) > SUBSCRIBED_MAX:
            detail = f"it subscribes to {len(self.subscribed)} streams, at most {SUBSCRIBED_MAX}"
            raise RefusedRequestError(Reason.BAD_ARGUMENT, detail)
        for scope, stream in self.subscribed:
            check_scope_name(scope)
            check_stream_name(stream)
        return self

    def with_generation(self, generation: int) -> Self:
        return dataclasses.replace(self, generation=generation)

    def to_row(self) -> dict[str, Any]:
        row = {
            each.name: getattr(self, each.name)
            for each in dataclasses.fields(self)
            if each.name not in ("starting", "ending")
        }
        return row | {"starting": _to_row(self.starting), "ending": _to_row(self.ending)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        cuts = {name: _from_row(row[name]) for name in ("starting", "ending")}
        return cls(**{**row, **cuts})


def _to_row(cuts: Iterable[tuple[ScopedName, StreamCut]]) -> list[list[Any]]:
    return [[*stream, cut_to_row(cut)] for stream, cut in cuts]


def _from_row(row: Iterable[Any]) -> tuple[tuple[ScopedName, StreamCut], ...]:
    return tuple((ScopedName(scope, stream), cut_from_row(cut)) for scope, stream, cut in row)
