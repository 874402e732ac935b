"""OutcomeWatch: what passes on one link of a client of ours, against what its calls ended in.

An append that was answered has its answer; one that was never sent had no effect; one that was sent
and has no answer is of unknown outcome. So are other changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from recovery.harness.history import Call, CallKind
from recovery.harness.records import parse_records
from recovery.harness.workloads.wire_writers import WireFaultError
from segmentstore.wire.formats import REPLIES, REQUESTS
from segmentstore.wire.frame_decoder import FrameDecoder
from segmentstore.wire.store_commands import (
    DELETE,
    FLUSH,
    SEAL,
    TRUNCATE,
    AppendBytes,
    AppendEvents,
    ChangeSegment,
    MakeSegment,
    MergeSegment,
    MergeSegmentList,
    NumbersGiven,
    RequestRefused,
    SegmentsGiven,
    UpdateAttributes,
)
from segmentstore.wire.store_formats import STORE_REPLIES, STORE_REQUESTS

UNKNOWN: Final = "AppendOutcomeUnknownError"
NOT_SENT: Final = "StoreDisconnectedError"
_CHANGES: Final = {
    SEAL: CallKind.SEAL,
    TRUNCATE: CallKind.TRUNCATE,
    DELETE: CallKind.DELETE,
    FLUSH: CallKind.FLUSH,
}
_WATCHED: Final = (
    *(CallKind.APPEND, CallKind.EVENT, CallKind.CREATE, CallKind.MERGE, CallKind.UPDATE),
    *_CHANGES.values(),
)

_Key = tuple[object, ...]


class _Request:
    """One that was sent, and what has come back."""

    __slots__ = ("answered", "keys", "refused")

    def __init__(self, keys: Sequence[_Key]) -> None:
        self.keys = keys
        self.answered = 0
        """The first so many have a result."""
        self.refused = False

    def is_open(self, key: _Key) -> bool:
        """Whether there is no result for it."""
        return key in self.keys[self.answered :]


class OutcomeWatch:
    """Of one link."""

    def __init__(self) -> None:
        self._requests = FrameDecoder({**REQUESTS, **STORE_REQUESTS})
        self._replies = FrameDecoder({**REPLIES, **STORE_REPLIES})
        self._by_id: dict[int, _Request] = {}
        self._by_key: dict[_Key, list[_Request]] = {}

    def sent(self, data: bytes) -> None:
        """The client has written."""
        for command in self._requests.feed(data):
            keys = list(_keys_of(command))
            if keys:
                request = self._by_id[getattr(command, "request_id", 0)] = _Request(keys)
                for key in keys:
                    self._by_key.setdefault(key, []).append(request)

    def received(self, data: bytes) -> None:
        """Bytes have reached the client."""
        for reply in self._replies.feed(data):
            request = self._by_id.get(getattr(reply, "request_id", 0))
            if request is None:
                continue
            if isinstance(reply, RequestRefused):
                request.refused = True
            elif isinstance(reply, NumbersGiven) and request.keys[0][0] is CallKind.EVENT:
                request.answered += len(reply.numbers)
            elif isinstance(reply, NumbersGiven | SegmentsGiven):
                request.answered = len(request.keys)

    def check(self, calls: Iterable[Call]) -> None:
        """Raise WireFaultError if a call that was made on the link ended in what it must not."""
        for call in calls:
            if call.kind not in _WATCHED or not call.segment:
                continue
            key = _key_of(call)
            requests = self._by_key.get(key, [])
            if call.error == UNKNOWN and not any(each.is_open(key) for each in requests):
                what = "has its answer" if requests else "was never sent"
                raise WireFaultError(f"{call.kind} {call.number} {what}, and is said to be unknown")
            if call.error == NOT_SENT and call.kind is CallKind.APPEND and requests:
                detail = "was sent, and is said to have had no effect"
                raise WireFaultError(f"{call.kind} {call.number} {detail}")


def _key_of(call: Call) -> _Key:
    if call.kind is CallKind.APPEND:
        # Sent once, unlike an event and what the other kinds ask for.
        return call.kind, call.number
    if call.kind is CallKind.EVENT:
        return call.kind, call.writer, call.event
    if call.kind is CallKind.MERGE:
        return call.kind, call.segment, call.source
    return call.kind, call.segment


def _keys_of(command: Any) -> Iterable[_Key]:
    """What a request asks to change."""
    if isinstance(command, AppendBytes):
        pieces = parse_records(bytes(command.data))
        return dict.fromkeys(
            (CallKind.APPEND, piece.origin.first) for piece in pieces if piece.origin is not None
        )
    if isinstance(command, AppendEvents):
        return [
            (CallKind.EVENT, piece.origin.first, piece.origin.second)
            for event in command.events
            for piece in parse_records(bytes(event.data))
            if piece.origin is not None
        ]
    if isinstance(command, ChangeSegment):
        return [(_CHANGES[command.change], command.segment)]
    if isinstance(command, MakeSegment):
        return [(CallKind.CREATE, command.segment)]
    if isinstance(command, MergeSegment):
        return [(CallKind.MERGE, command.target, command.source)]
    if isinstance(command, MergeSegmentList):
        return [(CallKind.MERGE, command.target, source) for source in command.sources]
    if isinstance(command, UpdateAttributes):
        return [(CallKind.UPDATE, command.segment)]
    return []
