"""The check at the creation of a store: whether this bucket keeps what Tier 2 is promised.

A probe object is written, written again (which must be refused), read, checked, listed,
overwritten in parts (which must be refused) and deleted; about twelve requests. Whatever is wrong
is said in one sentence: which call, which answer, what to do. The probe is removed whatever
happens, as far as that can be done.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from tier2.object_storage import StorageRefusedError, StorageUnavailableError
from tier2.request_statistics import Operation
from tier2.s3 import s3_calls
from tier2.s3.s3_calls import Where
from tier2.s3.s3_errors import S3AnswerError, S3UnavailableError, S3Verdict
from tier2.s3.s3_outcomes import S3Outcomes
from tier2.s3.s3_requests import CALL_NAMES, S3Requests
from tier2.unique_ids import UNIQUE_ID_BYTES

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

PROBE: Final = b"This object only shows that objects can be kept here. It may be deleted.\n"
CONFLICTS_MAX: Final = 5

_T = TypeVar("_T")


async def check_promises(
    requests: S3Requests, outcomes: S3Outcomes, where: Where, source: random.Random
) -> None:
    """Raise StorageRefusedError if the store cannot keep Tier 2's promises, StorageUnavailableError
    if it does not answer.
    """
    await _Check(requests, outcomes, where, source).run()


class _Check:
    def __init__(
        self, requests: S3Requests, outcomes: S3Outcomes, where: Where, source: random.Random
    ) -> None:
        self._requests = requests
        self._outcomes = outcomes
        self._where = where
        self._id, self._other_id = (
            source.getrandbits(8 * UNIQUE_ID_BYTES).to_bytes(UNIQUE_ID_BYTES, "big") for _ in "12"
        )
        self._conditional = requests.location.conditional_writes == "required"

    async def run(self) -> None:
        where = self._where
        put = s3_calls.put_object(where, [PROBE], self._id, conditional=self._conditional)
        await self._send("put", put)
        try:
            if self._conditional:
                again = s3_calls.put_object(where, [b"other"], self._other_id, conditional=True)
                await self._must_be_taken("put", again)
            await self._read()
            await self._listed()
            await self._upload_in_parts()
        except BaseException:
            await self._delete_quietly()
            raise
        await self._send("delete", s3_calls.delete_object(where))
        if await self._outcomes.find_object(where) is not None:
            raise self._refused(
                "DeleteObject", "says done and the object is still there: turn off what keeps it"
            )

    async def _read(self) -> None:
        data = await self._send("get", s3_calls.get_object(self._where, 5, 20))
        if data != PROBE[5:25]:
            raise self._refused(
                "GetObject", "gives other bytes than were put: the store cannot be used"
            )
        seen = await self._outcomes.find_object(self._where)
        if seen is None or seen.stored.size != len(PROBE):
            raise self._refused(
                "HeadObject", "does not show what was just put: the store cannot be used"
            )
        if seen.unique_id != self._id.hex():
            raise self._refused(
                "HeadObject",
                "does not give back the metadata that was put: the store cannot be used",
            )

    async def _listed(self) -> None:
        page = await self._send(
            "list", s3_calls.list_objects(self._where.bucket, self._where.key, "", 10)
        )
        if [key for key, _, _ in page.objects] != [self._where.key]:
            raise self._refused(
                "ListObjectsV2", "does not show what was just put: the store cannot be used"
            )
        work = s3_calls.list_uploads(self._where.bucket, self._where.key, ("", ""), 10)
        await self._send("list_uploads", work)

    async def _upload_in_parts(self) -> None:
        where = self._where
        upload_id = await self._send(
            "begin_upload", s3_calls.begin_upload(where, self._other_id, checksummed=True)
        )
        try:
            part = await self._send("put_part", s3_calls.put_part(where, upload_id, 1, [b"other"]))
            if self._conditional:
                complete = s3_calls.complete_upload(where, upload_id, [part], conditional=True)
                await self._must_be_taken("complete_upload", complete)
        finally:
            # A store that took the completion, or ended the upload when it refused it, has nothing
            # to abort.
            try:
                await self._requests.send(
                    "abort_upload", where.name, s3_calls.abort_upload(where, upload_id)
                )
            except S3AnswerError:
                pass

    async def _must_be_taken(self, operation: Operation, work: Callable[[S3Client], None]) -> None:
        call = CALL_NAMES[operation]
        for attempt in range(CONFLICTS_MAX):
            if attempt:
                await self._outcomes.pause(attempt)
            try:
                await self._requests.send(operation, self._where.name, work)
            except S3AnswerError as answer:
                if answer.verdict is S3Verdict.TAKEN:
                    return
                if answer.verdict is S3Verdict.CONFLICT:
                    continue
                raise self._refused(
                    call, f"answers If-None-Match with {answer.code}: {_EMULATE}"
                ) from answer
            except S3UnavailableError as error:
                if error.verdict is S3Verdict.FAILED:
                    raise self._refused(
                        call, f"answers If-None-Match with {error.kind}: {_EMULATE}"
                    ) from error
                raise
            raise self._refused(call, f"overwrites an object in spite of If-None-Match: {_EMULATE}")
        raise StorageUnavailableError(
            self._where.name, f"{call} met another request", "ConditionalRequestConflict"
        )

    async def _send(self, operation: Operation, work: Callable[[S3Client], _T]) -> _T:
        call = CALL_NAMES[operation]
        try:
            return await self._requests.send(operation, self._where.name, work)
        except S3AnswerError as answer:
            raise self._refused(
                call, f"answers {answer.code} where it must not: the store cannot be used"
            ) from answer
        except S3UnavailableError as error:
            if error.verdict is S3Verdict.FAILED:
                raise self._refused(call, f"is not taken ({error.kind}): {error}") from error
            raise

    async def _delete_quietly(self) -> None:
        try:
            await self._requests.send(
                "delete", self._where.name, s3_calls.delete_object(self._where), last=True
            )
        except (S3AnswerError, StorageUnavailableError):
            pass

    def _refused(self, call: str, what: str) -> StorageRefusedError:
        return StorageRefusedError(
            self._where.name, f"{self._requests.location.url}: {call} {what}", "check"
        )


_EMULATE: Final = (
    "use another store, or conditional_writes=emulated with its weaker promise (docs/tier2.md)"
)
