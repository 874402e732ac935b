"""What became of a put: the one place where doubt is settled, by searching for one's own unique id
in the object's metadata.

A lost reply, a name that is suddenly taken, an upload that is suddenly missing: each may be one's
own success, seen from behind. Rules of this file:

- ours: the put has succeeded, whichever of its requests did it, and however late;
- another's: ObjectExistsError;
- absent, or no answer: the trouble that led here is raised, and the caller tries again with the
  same unique id;
- ours, but not of the size that was sent: a server kept a body that was cut on the way. It is
  removed, for only we can.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from segmentstore.contracts.backoff import backoff_s
from tier2.object_storage import ObjectExistsError, ObjectStorageError, StorageUnavailableError
from tier2.s3.s3_calls import SeenObject, Where, delete_object, head_object, peek_object
from tier2.s3.s3_errors import S3AnswerError, S3Verdict
from tier2.s3.s3_requests import S3Requests

PAUSE_S: Final = 0.1
"""Before the second of a few tries; doubles, and is spread by half to both sides."""
PAUSE_MAX_S: Final = 2.0
DOUBTED_MAX: Final = 1000

_HEAD_SAYS_TOO_LITTLE: Final = range(400, 500)


class S3Outcomes:
    """Checks objects, and remembers of which names it is not known whether a put landed."""

    def __init__(self, requests: S3Requests, source: random.Random) -> None:
        self._requests = requests
        self._random = source
        self._doubted: dict[str, None] = {}

    async def find_object(self, where: Where, *, last: bool = False) -> SeenObject | None:
        """The object as it is now; None if there is none. Two requests where the first says no."""
        try:
            return await self._requests.send("head", where.name, head_object(where), last=last)
        except S3AnswerError as answer:
            if answer.verdict is not S3Verdict.ABSENT:
                raise unexpected(answer) from answer
        except StorageUnavailableError as error:
            if not (error.kind.isdigit() and int(error.kind) in _HEAD_SAYS_TOO_LITTLE):
                raise
        # An answer to a HEAD has no body: "no such object" and "no such bucket" look the same.
        try:
            return await self._requests.send(
                "get", where.name, peek_object(where), retry=True, last=last
            )
        except S3AnswerError as answer:
            if answer.verdict is S3Verdict.ABSENT:
                return None
            raise unexpected(answer) from answer

    def doubts(self, name: str) -> bool:
        """Whether an earlier put of this name may have landed: checking is cheaper than sending it
        again.
        """
        return name in self._doubted

    def doubt(self, name: str) -> None:
        """A put of this name may have landed."""
        self._doubted.pop(name, None)
        self._doubted[name] = None
        if len(self._doubted) > DOUBTED_MAX:
            del self._doubted[next(iter(self._doubted))]

    async def settle(
        self, where: Where, unique_id: bytes, size: int, trouble: ObjectStorageError
    ) -> None:
        """Return if the object is there and ours; raise ObjectExistsError, or `trouble`."""
        self.doubt(where.name)
        try:
            seen = await self.find_object(where, last=True)
        except StorageUnavailableError:
            raise trouble from None
        if seen is None:
            raise trouble
        await self.check_ours(where, unique_id, size, seen)

    async def check_ours(self, where: Where, unique_id: bytes, size: int, seen: SeenObject) -> None:
        """Return if what was seen is our object, whole; ObjectExistsError if it is another's."""
        if seen.unique_id != unique_id.hex():
            self._doubted.pop(where.name, None)
            raise ObjectExistsError(where.name, "taken by an object with another unique id")
        if seen.stored.size != size:
            await self._requests.send("delete", where.name, delete_object(where), last=True)
            raise StorageUnavailableError(
                where.name,
                f"{seen.stored.size} bytes were kept where {size} were sent",
                "truncated",
            )
        self._doubted.pop(where.name, None)

    async def pause(self, attempt: int) -> None:
        """Between tries of one request; `attempt` counts those that failed, from 1."""
        await asyncio.sleep(backoff_s(self._random, attempt, PAUSE_S, PAUSE_MAX_S))


def unexpected(answer: S3AnswerError) -> StorageUnavailableError:
    """An answer that makes no sense for the call: the store's trouble, to be tried again."""
    return StorageUnavailableError(
        answer.name, f"an answer that makes no sense: {answer}", answer.code
    )
