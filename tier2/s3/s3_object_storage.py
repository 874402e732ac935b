"""S3ObjectStorage: Tier 2 in a bucket of S3 or of what speaks like it.

What is promised, and what it costs, is in docs/tier2.md. Rules of this file:

- one call is one request wherever that can be: a put below `multipart_bytes`, a read, a delete, a
  page of a listing;
- put-if-absent is the provider's `If-None-Match: *`; one's own object is known by the unique id in
  its metadata;
- nothing is tried again here but parts of an upload and conflicts: the caller knows how urgent it
  is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

from segmentstore.contracts.byte_sizes import MIB
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import note_end
from tier2.object_names import check_object_name, is_name_part, new_probe_name
from tier2.object_storage import (
    NO_METADATA,
    InvalidRangeError,
    ObjectNotFoundError,
    ObjectRange,
    ObjectStorage,
    StorageUnavailableError,
    StoredObject,
    UnfinishedUpload,
    WholeObject,
    check_metadata,
    check_ranges,
)
from tier2.request_statistics import ObjectStorageStatistics
from tier2.s3 import s3_calls
from tier2.s3.copy_upload import COPY_BYTES_MIN, CopyUpload
from tier2.s3.hedged_reads import hedged_get
from tier2.s3.parts_upload import BytesUpload, PartsUpload
from tier2.s3.s3_calls import Page, Where
from tier2.s3.s3_check import check_promises
from tier2.s3.s3_errors import S3AnswerError, S3UnavailableError, S3Verdict
from tier2.s3.s3_location import S3Location
from tier2.s3.s3_outcomes import S3Outcomes, unexpected
from tier2.s3.s3_requests import S3Requests
from tier2.s3.stream_upload import STREAM_BYTES_MIN, StreamUpload
from tier2.unique_ids import check_unique_id

PAGE_OBJECTS = 1000
CONFLICTS_MAX = 5
CLOSE_TIMEOUT_S = 10.0
"""At a close: for uploads in parts to end, and again for their aborts.

What hangs longer is left to a listing.
"""


class S3ObjectStorage(ObjectStorage):
    """Objects under a bucket's prefix.

    Nothing is touched before the first call; credentials are searched for then.

    A call that is cancelled while its request runs leaves that to its thread, and `close` waits for
    it; an upload in parts is given up and aborted.
    """

    def __init__(
        self, location: S3Location, runtime: Runtime, *, page_objects: int = PAGE_OBJECTS
    ) -> None:
        self.location = location
        self._random = runtime.random
        self._page_objects = page_objects
        self._requests = S3Requests(location, runtime)
        self._outcomes = S3Outcomes(self._requests, runtime.random)
        self._conditional = location.conditional_writes == "required"
        self._uploads: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return self.location.url

    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        where = self._where(name)
        check_unique_id(unique_id)
        metadata = check_metadata(metadata)
        size = sum(map(len, parts))
        if not size:
            raise ValueError(f"object {name} would be empty")
        if self._outcomes.doubts(name) or not self._conditional:
            seen = await self._outcomes.find_object(where)
            if seen is not None:
                await self._outcomes.check_ours(where, unique_id, size, seen)
                return
        if size >= self.location.multipart_bytes:
            await self._upload(
                BytesUpload(self._requests, self._outcomes, where, unique_id, parts, metadata)
            )
        else:
            await self._put_whole(where, parts, unique_id, size, metadata)

    @property
    def upload_bytes_min(self) -> int:
        return STREAM_BYTES_MIN

    async def upload(
        self,
        name: str,
        parts: AsyncGenerator[Buffer, None],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        try:
            where = self._where(name)
            check_unique_id(unique_id)
            metadata = check_metadata(metadata)
        except ValueError:
            await parts.aclose()
            raise
        await self._upload(
            StreamUpload(self._requests, self._outcomes, where, unique_id, parts, metadata)
        )

    @property
    def get_bytes_best(self) -> int:
        # A GET of 1 MiB costs twice the CPU of one of 8 MiB, by the byte.
        return 8 * MIB

    @property
    def compose_bytes_min(self) -> int | None:
        return COPY_BYTES_MIN

    async def compose(self, name: str, ranges: Sequence[ObjectRange], unique_id: bytes) -> None:
        where = self._where(name)
        check_unique_id(unique_id)
        check_ranges(ranges, COPY_BYTES_MIN)
        await self._upload(
            CopyUpload(self._requests, self._outcomes, where, unique_id, ranges, self._where)
        )

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        where = self._where(name)
        if offset < 0 or length < 1:
            raise ValueError(f"range of {length} bytes at {offset}")
        try:
            return await hedged_get(self._requests, where, offset, length)
        except S3AnswerError as answer:
            if answer.verdict is S3Verdict.ABSENT:
                raise ObjectNotFoundError(name, "no such object") from answer
            if answer.verdict is S3Verdict.BAD_RANGE:
                raise InvalidRangeError(
                    name, f"bytes {offset} to {offset + length} reach beyond the end"
                ) from answer
            raise unexpected(answer) from answer

    async def get_whole(self, name: str, bytes_max: int) -> WholeObject:
        where = self._where(name)
        try:
            return await self._requests.send(
                "get", name, s3_calls.get_whole_object(where, bytes_max)
            )
        except S3AnswerError as answer:
            if answer.verdict is S3Verdict.ABSENT:
                raise ObjectNotFoundError(name, "no such object") from answer
            # An object without bytes has no range.
            there = await self.head(name) if answer.verdict is S3Verdict.BAD_RANGE else None
            if there is None or there.size:
                raise unexpected(answer) from answer
            return WholeObject(b"", there.metadata)

    async def head(self, name: str) -> StoredObject | None:
        seen = await self._outcomes.find_object(self._where(name))
        return None if seen is None else seen.stored

    async def delete(self, name: str) -> None:
        try:
            await self._requests.send("delete", name, s3_calls.delete_object(self._where(name)))
        except S3AnswerError as answer:
            if answer.verdict is not S3Verdict.ABSENT:
                raise unexpected(answer) from answer

    async def list(
        self, prefix: str = "", start_after: str = ""
    ) -> AsyncIterator[Sequence[StoredObject]]:
        more, token = True, ""
        after = self.location.prefix + start_after if start_after else ""
        while more:
            found, more, token = await self._page(prefix, after, token)
            if found:
                after = found[-1][0]
            cut = len(self.location.prefix)
            page = [
                StoredObject(key[cut:], size, modified)
                for key, size, modified in found
                if _is_name(key[cut:])
            ]
            if page:
                yield page

    async def list_unfinished(self, prefix: str = "") -> Sequence[UnfinishedUpload]:
        bucket, under = self.location.bucket, self.location.prefix
        found: list[UnfinishedUpload] = []
        after: tuple[str, str] | None = ("", "")
        while after is not None:
            work = s3_calls.list_uploads(bucket, under + prefix, after, self._page_objects)
            try:
                page, after = await self._requests.send("list_uploads", prefix, work)
            except S3AnswerError as answer:
                raise unexpected(answer) from answer
            found += page
        cut = [
            upload._replace(name=upload.name[len(under) :])
            for upload in found
            if upload.name.startswith(under)
        ]
        return [upload for upload in cut if _is_name(upload.name)]

    async def abort_unfinished(self, upload: UnfinishedUpload) -> None:
        work = s3_calls.abort_upload(self._where(upload.name), upload.upload_id)
        try:
            await self._requests.send("abort_upload", upload.name, work)
        except S3AnswerError as answer:
            if answer.verdict not in {S3Verdict.NO_UPLOAD, S3Verdict.ABSENT}:
                raise unexpected(answer) from answer

    async def check(self) -> None:
        probe = new_probe_name(self._random)
        await check_promises(self._requests, self._outcomes, self._where(probe), self._random)

    async def close(self) -> None:
        self._requests.stop_new()
        while self._uploads:
            _, hanging = await asyncio.wait(tuple(self._uploads), timeout=CLOSE_TIMEOUT_S)
            for upload in hanging:
                upload.cancel()
        await self._requests.close()

    def health(self) -> Sequence[str]:
        return self._requests.health()

    def statistics(self) -> ObjectStorageStatistics:
        return self._requests.statistics()

    def __repr__(self) -> str:
        return f"<S3ObjectStorage {self.url}: {self._requests!r}>"

    async def _put_whole(
        self,
        where: Where,
        parts: Sequence[Buffer],
        unique_id: bytes,
        size: int,
        metadata: Mapping[str, str],
    ) -> None:
        work = s3_calls.put_object(where, parts, unique_id, metadata, conditional=self._conditional)
        for attempt in range(CONFLICTS_MAX):
            if attempt:
                await self._outcomes.pause(attempt)
            try:
                await self._requests.send(
                    "put", where.name, work, size_sent=size, retry=attempt > 0
                )
                return
            except S3AnswerError as answer:
                if answer.verdict is S3Verdict.TAKEN:
                    await self._outcomes.settle(where, unique_id, size, unexpected(answer))
                    return
                if answer.verdict is not S3Verdict.CONFLICT:
                    raise unexpected(answer) from answer
            except S3UnavailableError as trouble:
                if trouble.verdict is not S3Verdict.UNCERTAIN:
                    raise
                await self._outcomes.settle(where, unique_id, size, trouble)
                return
        raise StorageUnavailableError(
            where.name,
            f"PutObject met another request {CONFLICTS_MAX} times",
            "ConditionalRequestConflict",
        )

    async def _upload(self, upload: PartsUpload) -> None:
        """Run an upload as a task of this storage's own: it must abort what it began, even if the
        caller has ended.
        """
        task = own_task(upload.run(), name="tier2 s3 upload")
        self._uploads.add(task)
        task.add_done_callback(self._uploads.discard)
        task.add_done_callback(note_end)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            upload.stop()
            raise

    async def _page(self, prefix: str, after: str, token: str) -> Page:
        under, count = self.location.prefix + prefix, self._page_objects
        work = s3_calls.list_objects(self.location.bucket, under, after, count, token)
        try:
            return await self._requests.send("list", prefix, work)
        except S3AnswerError as answer:
            raise unexpected(answer) from answer

    def _where(self, name: str) -> Where:
        return Where(check_object_name(name), self.location.bucket, self.location.prefix + name)


def _is_name(name: str) -> bool:
    """Whether this storage can have made it: folders that a console shows are objects too, of names
    ending in a slash.
    """
    return bool(name) and all(is_name_part(part) for part in name.split("/"))
