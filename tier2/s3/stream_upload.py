"""StreamUpload: an object in parts that come one after another, while those before are sent.

Rules of this file:

- two parts are held at most; nothing is sent a second time that is not held any more, so a conflict
  at Complete is the end of the upload;
- the source of the parts is closed before the upload ends, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from segmentstore.contracts.byte_sizes import MIB
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.owned_tasks import own_task
from tier2.object_storage import ObjectExistsError, PartSizes
from tier2.s3 import s3_calls
from tier2.s3.parts_upload import PartsUpload
from tier2.s3.s3_calls import Where
from tier2.s3.s3_outcomes import S3Outcomes
from tier2.s3.s3_requests import S3Requests

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import CompletedPartTypeDef

HELD_MAX: Final = 2
"""Parts: two that are sent, or one and the next that comes."""
STREAM_BYTES_MIN: Final = 5 * MIB
"""The provider makes no part but the last smaller."""


class StreamUpload(PartsUpload):
    """Parts of a generator, with a CRC32C each."""

    checksummed = True
    beginnings_max = 1

    def __init__(
        self,
        requests: S3Requests,
        outcomes: S3Outcomes,
        where: Where,
        unique_id: bytes,
        parts: AsyncGenerator[Buffer, None],
        metadata: Mapping[str, str],
    ) -> None:
        super().__init__(requests, outcomes, where, unique_id, 0, metadata)
        self._parts = parts
        self._pull: asyncio.Task[Buffer | None] | None = None
        self._held: dict[int, Buffer] = {}

    def stop(self) -> None:
        super().stop()
        if self._pull is not None:
            self._pull.cancel()

    async def run(self) -> None:
        async with aclosing(self._parts):
            await super().run()

    async def check_free(self) -> bool:
        # What is there cannot be compared with what is still to come.
        if not self._conditional and await self._outcomes.find_object(self._where) is not None:
            raise ObjectExistsError(self._where.name, "taken before the upload began")
        return False

    @property
    def part_count(self) -> int:
        return 1

    async def all_parts(self, upload_id: str) -> Sequence[CompletedPartTypeDef]:
        done: dict[int, CompletedPartTypeDef] = {}
        sending: dict[int, asyncio.Task[CompletedPartTypeDef]] = {}
        sizes = PartSizes(self._where.name, STREAM_BYTES_MIN)
        try:
            while (part := await self._next()) is not None:
                sizes.add(len(part))
                self._size = sizes.total
                self._held[sizes.count] = part
                del part
                work = self._part(upload_id, sizes.count)
                sending[sizes.count] = own_task(work, name="tier2 s3 part")
                await self._collect(sending, done, HELD_MAX - 1)
            sizes.end()
            await self._collect(sending, done, 0)
        except BaseException:
            super().stop()
            raise
        finally:
            if sending:
                # An abort beside a part that still arrives could leave that part behind.
                await asyncio.wait(sending.values())
            for task in sending.values():
                if not task.cancelled():
                    task.exception()  # Taken note of: the first error is raised.
            self._held.clear()
        return [done[number] for number in sorted(done)]

    async def send_part(self, upload_id: str, number: int, *, retry: bool) -> CompletedPartTypeDef:
        part = self._held[number]
        # A view, so that it is sent as a body which drops it afterwards.
        work = s3_calls.put_part(self._where, upload_id, number, [memoryview(part)])
        size = len(part)
        del part
        return await self._requests.send(
            "put_part", self._where.name, work, size_sent=size, retry=retry
        )

    async def _collect(
        self,
        sending: dict[int, asyncio.Task[CompletedPartTypeDef]],
        done: dict[int, CompletedPartTypeDef],
        left: int,
    ) -> None:
        """Wait until at most `left` parts are being sent. Raises what sending one raised."""
        while len(sending) > left:
            await asyncio.wait(sending.values(), return_when=asyncio.FIRST_COMPLETED)
            for number in [each for each, task in sending.items() if task.done()]:
                done[number] = sending[number].result()
                del sending[number], self._held[number]

    async def _next(self) -> Buffer | None:
        """The next part; None behind the last."""
        self._check_going_on()
        self._pull = own_task(_pulled(self._parts), name="tier2 s3 next part")
        try:
            return await self._pull
        except asyncio.CancelledError:
            if not self._pull.done():
                self._pull.cancel()
                await asyncio.wait((self._pull,))
            self._check_going_on()
            raise
        finally:
            self._pull = None


async def _pulled(parts: AsyncGenerator[Buffer, None]) -> Buffer | None:
    return await anext(parts, None)
