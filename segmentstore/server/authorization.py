"""Checks of delegation tokens: which request needs which permission, and when a token runs out.

Tokens that were sound are kept for a while: clients repeat one for minutes, and a signature costs
more than the rest of a small request. An append has no token. That of its SetupAppend is checked,
and ends the connection when it runs out.

Needs the extra `server`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from segmentstore.contracts.permission import Permission
from segmentstore.contracts.runtime import Clock
from segmentstore.server.outstanding import ignore
from segmentstore.wire.commands import (
    TOKEN_EXPIRED,
    TOKEN_REFUSED,
    AuthTokenCheckFailed,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    GetTableSegmentInfo,
    MergeSegments,
    MergeSegmentsBatch,
    ReadSegment,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
)
from segmentstore.wire.tokens import ExpiredTokenError, Grants, InvalidTokenError, TokenKey

_KEPT_MAX: Final = 1_000
_READS: Final = (
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    GetTableSegmentInfo,
    ReadSegment,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
)
"""Requests that change nothing."""


class TokenAuthorization:
    """The tokens of one server's clients."""

    def __init__(self, key: TokenKey, clock: Clock) -> None:
        self._key = key
        self.clock: Final = clock
        self._sound: dict[str, tuple[str, Grants]] = {}
        """By the token, with the one object that is kept of it. All are forgotten when there are
        many.
        """

    def refusal(self, request: Any) -> AuthTokenCheckFailed | None:
        """The reply to a request that its token does not allow; None if it does."""
        needed = Permission.READ if isinstance(request, _READS) else Permission.READ_UPDATE
        try:
            grants = self._grants(getattr(request, "token", ""))
        except ExpiredTokenError as error:
            # In the place of a stack trace: clients report that text with the failure.
            return AuthTokenCheckFailed(request.request_id, str(error), TOKEN_EXPIRED)
        except InvalidTokenError:
            return AuthTokenCheckFailed(request.request_id, "", TOKEN_REFUSED)
        if all(grants.allow(name, needed) for name in _segments(request)):
            return None
        return AuthTokenCheckFailed(request.request_id, "", TOKEN_REFUSED)

    def expires_s(self, token: str) -> float | None:
        """When a token runs out that a request was just allowed with; None: never."""
        return self._sound[token][1].expires_s

    def kept(self, token: str) -> str:
        """A token that a request was just allowed with, as one object for all that have it."""
        return self._sound[token][0]

    def writer_tokens(self, end: Callable[[str], None]) -> WriterTokens:
        """Those of one connection, which `end` closes."""
        return WriterTokens(self, end)

    def _grants(self, token: str) -> Grants:
        now_s = self.clock.time_ms() / 1000
        sound = self._sound.get(token)
        if sound is not None:
            sound[1].check_time(now_s)
            return sound[1]
        grants = self._key.check(token, now_s)
        if len(self._sound) >= _KEPT_MAX:
            self._sound.clear()
        self._sound[token] = (token, grants)
        return grants


class WriterTokens:
    """When the tokens of a connection's writers run out; `end` is called once when one has.

    A writer that is set up again has the token of its last set-up.
    """

    def __init__(self, authorization: TokenAuthorization, end: Callable[[str], None]) -> None:
        self._authorization = authorization
        self._end = end
        self._ends_s: dict[bytes, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = float("inf")
        """What the timer was set for."""

    def set_up(self, writer_id: bytes, token: str) -> None:
        """A writer was set up with a sound token."""
        end_s = self._authorization.expires_s(token)
        if end_s is None:
            self._ends_s.pop(writer_id, None)
            return
        self._ends_s[writer_id] = end_s
        if end_s < self._timer_s:
            self._arm(end_s)

    def close(self) -> None:
        """The connection has ended."""
        self._ends_s.clear()
        self._end = ignore
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, end_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = end_s - self._authorization.clock.time_ms() / 1000
        self._timer_s = end_s
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._check)

    def _check(self) -> None:
        self._timer, self._timer_s = None, float("inf")
        if not self._ends_s:
            return
        end_s = min(self._ends_s.values())
        # The wall clock may have been set back since the timer was set.
        if end_s <= self._authorization.clock.time_ms() / 1000:
            self._end("the token of a writer has expired")
        else:
            self._arm(end_s)


def _segments(request: Any) -> Sequence[str]:
    """What must be allowed. The sources of a merge go, and their bytes can be read afterwards."""
    if isinstance(request, MergeSegments):
        return (request.target, request.source)
    if isinstance(request, MergeSegmentsBatch):
        return (request.target, *request.sources)
    return (getattr(request, "segment", ""),)
