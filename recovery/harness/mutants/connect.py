"""Mutants of `segmentstore.connect` (DESIGN 4.1, 4.2): the client, and the server's commands of our
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant

_CLIENT: Final = "segmentstore.client.client_connection:ClientConnection"
_PENDING: Final = "segmentstore.client.pending_replies"
_APPENDS: Final = "segmentstore.server.store_appends:StoreAppends"
_REQUESTS: Final = "segmentstore.server.store_requests"

_DURABLE: Final = "4.2 A frame is acknowledged only when it and all before it are durable."
_UNKNOWN: Final = (
    "4.2 An append whose outcome is unknown is reported as such, not as failed. What had no effect "
    "is reported as that."
)
_ATTRIBUTES: Final = "4.1 Attribute updates commit with their append or not at all."
_WORKING: Final[tuple[Mapping[str, Any], ...]] = ({"ending": "power", "operations": 160},)
_HUNT: Final = Hunt(workload="connect", cycles=_WORKING)

CONNECT: Final = (
    Mutant(
        "events-acknowledged-when-taken",
        _DURABLE,
        "The server acknowledges the events of a command as soon as the store has taken them.",
        (
            Edit(
                f"{_APPENDS}._append_events",
                "batch.left = len(batch.futures)",
                "batch.left = len(batch.futures)\n"
                "self._send(NumbersGiven(request.request_id, (DUPLICATE,) * batch.left))",
            ),
        ),
        _HUNT,
    ),
    Mutant(
        "seal-acknowledged-when-taken",
        _DURABLE,
        "The server answers a seal as soon as it is on its way.",
        (
            Edit(
                f"{_REQUESTS}:_change_segment",
                "numbers = (await store.seal(name),)",
                "numbers = ((await store.get_info(name)).length,)\n"
                'context.begin(store.seal(name), "seal")',
            ),
        ),
        _HUNT,
    ),
    Mutant(
        "event-number-not-compared",
        _ATTRIBUTES,
        "The server has the store number the events of a writer: one that is sent again is stored "
        "again.",
        (Edit(f"{_APPENDS}._append_events", "append(data, number)", "append(data)"),),
        _HUNT,
    ),
    Mutant(
        "expected-offset-not-compared",
        "4.1 In replay the offset recorded in an operation must equal the length reached so far.",
        "The server appends wherever the segment ends, whatever offset was expected.",
        (
            Edit(
                f"{_APPENDS}._append_bytes",
                "None if expected == NO_LIMIT else expected",
                "None",
            ),
        ),
        _HUNT,
    ),
    Mutant(
        "append-sent-again",
        _UNKNOWN,
        "The client sends an append twice while it waits for replies to what it sent before: "
        "the outcome of these is unknown.",
        (
            Edit(
                f"{_CLIENT}._send_joined_of",
                "self._begin(command, request_id, joined)",
                "is_again = bool(self._pending)\n"
                "self._begin(command, request_id, joined)\n"
                "if is_again:\n"
                "    self._send(command)",
            ),
        ),
        _HUNT,
    ),
    Mutant(
        "replies-in-the-order-of-requests",
        _DURABLE,
        "The client takes a reply for that of its oldest request.",
        (
            Edit(
                f"{_CLIENT}._take",
                'request_id = getattr(command, "request_id", None)',
                "request_id = next(iter(self._pending), None)",
            ),
        ),
        _HUNT,
    ),
    Mutant(
        "lost-append-had-no-effect",
        _UNKNOWN,
        "An append that was sent and has no reply when the connection is lost is said to have had "
        "no effect.",
        (
            Edit(
                f"{_PENDING}:JoinedAppends.lose",
                "self.fail(AppendOutcomeUnknownError(None, lost))",
                "self.fail(lost)",
            ),
        ),
        _HUNT,
    ),
    Mutant(
        "merge-without-its-number",
        _ATTRIBUTES,
        "A merge that is an event does not bring its number: repeated, it is done again.",
        (Edit("segmentstore.client.merge_once:merge_event", "[update]", "[]"),),
        _HUNT,
    ),
    Mutant(
        "follower-repeats-a-byte",
        "4.1 In replay the offset recorded in an operation must equal the length reached so far.",
        "A reader gives the last byte of a chunk again.",
        (
            Edit(
                "segmentstore.client.remote_sessions:RemoteReader.__anext__",
                "self.offset += len(data)",
                "self.offset += len(data) - 1",
            ),
        ),
        _HUNT,
    ),
)
