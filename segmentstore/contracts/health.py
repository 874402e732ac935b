"""What is not well, for people: notes that `health` shows until the trouble has passed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from segmentstore.contracts.errors import describe
from segmentstore.contracts.runtime import Clock


@runtime_checkable
class MayPass(Protocol):
    """An error of a whole service, which can know that the service works again."""

    outlived: Callable[[], bool]
    """Whether the service has answered a like request since."""


def _never() -> bool:
    return False


class HealthNote:
    """Since when one thing fails, and why: one sentence.

    A failure of a whole service counts until the service answers any request again. The retry of
    the failed step may be due only a minute later, and all may be well meanwhile.
    """

    def __init__(self, what: str, clock: Clock) -> None:
        self._what = what
        self._clock = clock
        self._since_ms: int | None = None
        self._reason = ""
        self._outlived: Callable[[], bool] = _never
        self.failures = 0

    def failed(self, error: BaseException) -> None:
        """A try failed; the first of a row sets the time."""
        self.failures += 1
        if self._outlived():
            self._since_ms = None
        self._outlived = error.outlived if isinstance(error, MayPass) else _never
        self._reason = describe(error)
        if self._since_ms is None:
            self._since_ms = self._clock.time_ms()

    def succeeded(self) -> None:
        """A try succeeded: healthy again."""
        self._since_ms = None

    def describe(self) -> str | None:
        """None while healthy."""
        if self._since_ms is None or self._outlived():
            return None
        since = datetime.fromtimestamp(self._since_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"{self._what} failing since {since}: {self._reason}"


class HealthNotes:
    """What is not well with a log: a sentence for each topic."""

    def __init__(self) -> None:
        self._notes: dict[str, str] = {}

    def set(self, topic: str, sentence: str) -> None:
        """The sentence of this topic, until it is cleared."""
        self._notes[topic] = sentence

    def clear(self, topic: str) -> None:
        """All is well with this topic."""
        self._notes.pop(topic, None)

    def describe(self) -> str | None:
        """All of it; None while all is well."""
        return "; ".join(self._notes.values()) or None
