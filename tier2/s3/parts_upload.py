"""PartsUpload: one object put in parts, from the first request to the last; BytesUpload: the
caller's bytes that way.

Rules of this file:

- an upload that did not end in a Complete that said so is aborted, whatever happened: its parts are
  billed for ever;
- parts go in parallel, each tries again by itself; when one gives up, the others finish what they
  send and no new one begins;
- a Complete without a reply may have taken effect, then or later: it is searched for, and only then
  tried again;
- a conflict (409) at Complete ends the upload: it begins again from the first part, a few times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from segmentstore.contracts.byte_sizes import KIB
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.owned_tasks import gather_owned
from tier2.object_storage import (
    NO_METADATA,
    PARTS_MAX,
    ObjectStorageError,
    StorageRefusedError,
    StorageUnavailableError,
)
from tier2.s3 import s3_calls
from tier2.s3.s3_calls import Where
from tier2.s3.s3_errors import THROTTLED_KIND, S3AnswerError, S3UnavailableError, S3Verdict
from tier2.s3.s3_outcomes import S3Outcomes, unexpected
from tier2.s3.s3_requests import S3Requests

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import CompletedPartTypeDef

PARTS_IN_PARALLEL: Final = 4
ATTEMPTS: Final = 4
"""Of a part, and of a Complete."""
THROTTLED_ATTEMPTS: Final = 24
"""The same, while the provider throttles: 19 to 39 seconds of pauses, for giving up throws
everything away.
"""
BEGINNINGS_MAX: Final = 3
ABORTS_MAX: Final = 2


class PartsUpload(ABC):
    """One upload. `stop` makes it end soon, in failure."""

    checksummed: bool
    """Whether every part carries a CRC32C."""
    parallel: ClassVar[int] = PARTS_IN_PARALLEL
    """Parts under way at once."""
    beginnings_max: ClassVar[int] = BEGINNINGS_MAX

    def __init__(
        self,
        requests: S3Requests,
        outcomes: S3Outcomes,
        where: Where,
        unique_id: bytes,
        size: int,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        self._metadata = metadata
        self._requests = requests
        self._outcomes = outcomes
        self._where = where
        self._unique_id = unique_id
        self._size = size
        self._stopped = False
        self._conditional = requests.location.conditional_writes == "required"

    def stop(self) -> None:
        """Begin no further part."""
        self._stopped = True

    async def run(self) -> None:
        """Put the object; raises as ObjectStorage.put and compose do."""
        for beginning in range(self.beginnings_max):
            if await self.check_free():
                return
            upload_id = await self._requests.send(
                "begin_upload",
                self._where.name,
                s3_calls.begin_upload(
                    self._where, self._unique_id, self._metadata, checksummed=self.checksummed
                ),
                retry=beginning > 0,
            )
            clean = False
            try:
                parts = await self.all_parts(upload_id)
                clean = await self._complete(upload_id, parts)
            except _ConflictError:
                continue
            finally:
                if not clean:
                    await self._abort(upload_id)
            await self.check_result()
            return
        raise StorageUnavailableError(
            self._where.name,
            "CompleteMultipartUpload met another request each time",
            "ConditionalRequestConflict",
        )

    async def check_free(self) -> bool:
        """Called before the upload begins: True if the object is there already, and ours."""
        return not self._conditional and await self._there_already()

    async def check_result(self) -> None:
        """Called once when the object is there; raises if it is not what was meant."""
        return

    @property
    @abstractmethod
    def part_count(self) -> int:
        """How many parts there are."""

    @abstractmethod
    async def send_part(self, upload_id: str, number: int, *, retry: bool) -> CompletedPartTypeDef:
        """One try at part `number`, from 1."""

    async def all_parts(self, upload_id: str) -> Sequence[CompletedPartTypeDef]:
        """Send every part; what Complete has to name."""
        done: dict[int, CompletedPartTypeDef] = {}
        errors: list[BaseException] = []
        numbers = iter(range(1, self.part_count + 1))

        async def worker() -> None:
            for number in numbers:
                try:
                    done[number] = await self._part(upload_id, number)
                except BaseException as error:  # noqa: BLE001 - kept, and the first is raised below
                    errors.append(error)
                if errors:
                    return

        await gather_owned(
            *(worker() for _ in range(min(self.parallel, self.part_count))), name="tier2 s3 part"
        )
        if errors:
            raise errors[0]
        return [done[number] for number in sorted(done)]

    async def _part(self, upload_id: str, number: int) -> CompletedPartTypeDef:
        attempt = 0
        while True:
            self._check_going_on()
            try:
                return await self.send_part(upload_id, number, retry=attempt > 0)
            except S3AnswerError as answer:
                raise unexpected(answer) from answer
            except StorageRefusedError:
                raise
            except StorageUnavailableError as error:
                attempt += 1
                if attempt >= _attempts_max(error) or error.kind == "closed":
                    raise
            await self._outcomes.pause(attempt)

    async def _complete(self, upload_id: str, parts: Sequence[CompletedPartTypeDef]) -> bool:
        """True: Complete said so.

        False: the object is there and ours all the same. Raises otherwise.
        """
        work = s3_calls.complete_upload(
            self._where, upload_id, parts, conditional=self._conditional
        )
        trouble: StorageUnavailableError | None = None
        attempt = 0
        while trouble is None or attempt < _attempts_max(trouble):
            if attempt:
                await self._outcomes.pause(attempt)
            self._check_going_on()
            if not self._conditional and await self._there_already():
                return False
            try:
                await self._requests.send(
                    "complete_upload", self._where.name, work, retry=attempt > 0
                )
                return True
            except S3AnswerError as answer:
                if answer.verdict is S3Verdict.CONFLICT:
                    raise _ConflictError from answer
                if answer.verdict in {S3Verdict.TAKEN, S3Verdict.NO_UPLOAD}:
                    await self._settle(trouble or unexpected(answer))
                    return False
                raise unexpected(answer) from answer
            except S3UnavailableError as error:
                if error.verdict is S3Verdict.FAILED:
                    raise
                trouble = error
                attempt += 1
                if error.verdict is S3Verdict.UNCERTAIN and await self._has_succeeded(error):
                    return False
        raise trouble

    async def _has_succeeded(self, trouble: ObjectStorageError) -> bool:
        try:
            await self._settle(trouble)
        except S3UnavailableError as error:
            if error is not trouble:
                raise
            return False
        return True

    async def _settle(self, trouble: ObjectStorageError) -> None:
        await self._outcomes.settle(self._where, self._unique_id, self._size, trouble)

    async def _there_already(self) -> bool:
        seen = await self._outcomes.find_object(self._where)
        if seen is None:
            return False
        await self._outcomes.check_ours(self._where, self._unique_id, self._size, seen)
        return True

    async def _abort(self, upload_id: str) -> None:
        """Best effort: what is left is found by listing unfinished uploads."""
        for attempt in range(ABORTS_MAX):
            if attempt:
                await self._outcomes.pause(attempt)
            try:
                await self._requests.send(
                    "abort_upload",
                    self._where.name,
                    s3_calls.abort_upload(self._where, upload_id),
                    retry=attempt > 0,
                    last=True,
                )
            except S3AnswerError:
                return  # Missing already.
            except StorageUnavailableError:
                continue
            return

    def _check_going_on(self) -> None:
        if self._stopped:
            raise StorageUnavailableError(
                self._where.name, "the put was given up by its caller", "cancelled"
            )


class BytesUpload(PartsUpload):
    """The caller's bytes in parts."""

    checksummed = True

    def __init__(
        self,
        requests: S3Requests,
        outcomes: S3Outcomes,
        where: Where,
        unique_id: bytes,
        parts: Sequence[Buffer],
        metadata: Mapping[str, str],
    ) -> None:
        super().__init__(requests, outcomes, where, unique_id, sum(map(len, parts)), metadata)
        self._parts = cut(parts, part_bytes_for(self._size, requests.location.part_bytes))

    @property
    def part_count(self) -> int:
        return len(self._parts)

    async def send_part(self, upload_id: str, number: int, *, retry: bool) -> CompletedPartTypeDef:
        part = self._parts[number - 1]
        work = s3_calls.put_part(self._where, upload_id, number, part)
        size = sum(map(len, part))
        return await self._requests.send(
            "put_part", self._where.name, work, size_sent=size, retry=retry
        )


class _ConflictError(Exception):
    """Complete met another request on the name: the upload is missing."""


def _attempts_max(error: StorageUnavailableError) -> int:
    return THROTTLED_ATTEMPTS if error.kind == THROTTLED_KIND else ATTEMPTS


def part_bytes_for(size: int, part_bytes: int) -> int:
    """The length of a part: as asked for, or so much longer that 10,000 hold the object."""
    least = -(-size // PARTS_MAX)
    return max(part_bytes, -(-least // KIB) * KIB)


def cut(parts: Sequence[Buffer], part_bytes: int) -> list[list[memoryview]]:
    """The concatenation of `parts` in runs of `part_bytes`, the last as long as is left; nothing is
    copied.
    """
    runs: list[list[memoryview]] = [[]]
    room = part_bytes
    for part in parts:
        view = memoryview(part).cast("B")
        while len(view):
            if not room:
                runs.append([])
                room = part_bytes
            runs[-1].append(view[:room])
            room -= len(runs[-1][-1])
            view = view[len(runs[-1][-1]) :]
    return runs
