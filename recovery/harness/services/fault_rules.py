"""What can go wrong between an object storage and its server, and the rules that say when it does.

A test queues rules; each request takes at most one fault: that of the oldest rule that matches it
and has not been used up. There is no chance in it: which requests fail follows from the rules and
from the order in which requests come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Literal

from recovery.harness.services.fault_messages import Head
from tier2.request_statistics import Operation


@dataclass(frozen=True, slots=True)
class DropRequest:
    """The connection ends when the request's head has come. The server gets nothing of it."""


@dataclass(frozen=True, slots=True)
class CutUpload:
    """The connections on both sides end when this share of the request's body has been passed
    on.
    """

    share: float = 0.5


@dataclass(frozen=True, slots=True)
class DropReply:
    """The server does what was asked; the connection ends instead of its reply."""


@dataclass(frozen=True, slots=True)
class Twice:
    """The server gets the same request twice, one after the other; the caller gets this one's
    reply.
    """

    reply: Literal["first", "second"] = "second"


@dataclass(frozen=True, slots=True)
class Late:
    """The connection ends when the whole request has come; the server gets it `seconds` later, or
    at `release_late`.
    """

    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """An error reply, as S3 writes it: instead of the request, or instead of the reply to what was
    done.
    """

    status: int
    code: str
    after_effect: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """Only this share of the reply's body comes.

    `lying`: and the Content-Length says that this is all of it.
    """

    share: float = 0.5
    lying: bool = False


@dataclass(frozen=True, slots=True)
class WrongRange:
    """A ranged GET is answered with the bytes of another range of the same object.

    It must have been read through the proxy before, whole at most 8 MiB; until then the rule waits.
    `lying`: Content-Range says what was asked for, not what came.
    """

    lying: bool = False


@dataclass(frozen=True, slots=True)
class FlipBit:
    """One bit of the body, `share` of the way into it, changes on its way."""

    where: Literal["request", "reply"] = "reply"
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class Delay:
    """The request is passed on so much later, and nothing else happens to it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing moves until `release`; then the request is passed on, if the caller still waits."""

    after_effect: bool = False


Fault = (
    DropRequest
    | CutUpload
    | DropReply
    | Twice
    | Late
    | Status
    | Truncate
    | WrongRange
    | FlipBit
    | Delay
    | Stall
)

SLOW_DOWN: Final = Status(503, "SlowDown")
INTERNAL_ERROR: Final = Status(500, "InternalError")
INTERNAL_ERROR_AFTER_EFFECT: Final = Status(500, "InternalError", after_effect=True)
EXPIRED_TOKEN: Final = Status(400, "ExpiredToken")
"""400, as S3 has it: only the code in the body distinguishes it from a malformed request; a HEAD
has no body.
"""


@dataclass(slots=True, eq=False)
class Rule:
    """One entry of the queue. `taken` may be read from any thread."""

    operations: tuple[Operation, ...]
    """Empty: any request, those that are no object storage's included."""
    fault: Fault
    times: int | None
    """None: until it is removed."""
    skip: int
    when: Callable[[Head], bool] | None
    taken: int = field(default=0, init=False)
    """Requests this fault was done to."""
    _passed: int = field(default=0, init=False)

    def matches(self, operation: Operation | None, head: Head) -> bool:
        """Whether this request is the rule's to take; counts it among the skipped if it is not
        yet.
        """
        if self.times is not None and self.taken >= self.times:
            return False
        if self.operations and operation not in self.operations:
            return False
        if self.when is not None and not self.when(head):
            return False
        if self._passed < self.skip:
            self._passed += 1
            return False
        return True


class FaultRules:
    """The queue. Added to by a test's thread, asked by the proxy's."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._rules: list[Rule] = []

    def add(self, rule: Rule) -> Rule:
        """Put a rule behind those there are."""
        with self._lock:
            self._rules.append(rule)
        return rule

    def remove(self, rules: Iterable[Rule] | None = None) -> None:
        """Take these rules out, or all; what they began goes on."""
        with self._lock:
            gone = list(self._rules if rules is None else rules)
            self._rules = [rule for rule in self._rules if rule not in gone]

    def take(
        self, operation: Operation | None, head: Head, is_possible: Callable[[Fault], bool]
    ) -> Fault | None:
        """The fault this request suffers, None for none."""
        with self._lock:
            for rule in self._rules:
                if is_possible(rule.fault) and rule.matches(operation, head):
                    rule.taken += 1
                    return rule.fault
        return None

    def unused(self) -> list[Rule]:
        """Rules that were meant for so many requests and met fewer: a test that ends with some
        proved less than it says.
        """
        with self._lock:
            return [rule for rule in self._rules if rule.taken < (rule.times or 1)]
