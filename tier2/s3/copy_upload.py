"""CopyUpload: an object composed of ranges of others, which the provider copies by itself.

Rules of this file:

- a range that the provider would not copy (a short last one) passes through here;
- a range that reaches beyond its object's end leaves nothing behind, also on stores that copy what
  there is of it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from hashlib import md5
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from segmentstore.contracts.byte_sizes import GIB, MIB
from tier2.object_storage import PARTS_MAX, InvalidRangeError, ObjectNotFoundError, ObjectRange
from tier2.s3 import s3_calls
from tier2.s3.parts_upload import PartsUpload
from tier2.s3.s3_calls import Where
from tier2.s3.s3_errors import S3AnswerError, S3UnavailableError, S3Verdict
from tier2.s3.s3_outcomes import S3Outcomes
from tier2.s3.s3_requests import S3Requests

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import CompletedPartTypeDef

COPY_BYTES_MIN: Final = 5 * MIB
"""The provider copies ranges only from objects larger than this, and makes no part but the last
smaller.
"""
COPY_BYTES_MAX: Final = 5 * GIB
COPIES_IN_PARALLEL: Final = 12
"""They carry no bytes of ours: what bounds them is latency.

Fewer than the connections there are by default.
"""


class CopyUpload(PartsUpload):
    """Ranges of other objects, copied by the provider; a short last one comes through here."""

    checksummed = False
    """Stores differ in whether a copied part has a checksum of its own, and Complete must name all
    or none.
    """
    parallel = COPIES_IN_PARALLEL

    def __init__(
        self,
        requests: S3Requests,
        outcomes: S3Outcomes,
        where: Where,
        unique_id: bytes,
        ranges: Sequence[ObjectRange],
        place: Callable[[str], Where],
    ) -> None:
        super().__init__(requests, outcomes, where, unique_id, sum(each.length for each in ranges))
        self._ranges = cut_ranges(ranges, COPY_BYTES_MAX)
        if len(self._ranges) > PARTS_MAX:
            raise ValueError(
                f"an object is composed of at most {PARTS_MAX} ranges, not {len(self._ranges)}"
            )
        self._place = place

    @property
    def part_count(self) -> int:
        return len(self._ranges)

    async def send_part(self, upload_id: str, number: int, *, retry: bool) -> CompletedPartTypeDef:
        each = self._ranges[number - 1]
        source = self._place(each.name)
        try:
            if each.length > COPY_BYTES_MIN or number < self.part_count:
                work = s3_calls.copy_part(
                    self._where, upload_id, number, source, each.offset, each.length
                )
                return await self._requests.send("copy_part", each.name, work, retry=retry)
            return await self._send_through_here(upload_id, number, source, each, retry=retry)
        except S3AnswerError as answer:
            if answer.verdict is S3Verdict.ABSENT:
                # Some stores say so without a code, as a proxy does that finds no store.
                await self._check_source(source, each)
            if answer.verdict is S3Verdict.BAD_RANGE:
                raise _beyond(each) from answer
            raise
        except S3UnavailableError as error:
            # Some stores call a range beyond the end an invalid argument.
            if error.verdict is S3Verdict.FAILED and error.kind in {
                "InvalidArgument",
                "InvalidRequest",
            }:
                await self._check_source(source, each)
            raise

    async def check_result(self) -> None:
        """Some stores copy what there is of a range that reaches beyond the end."""
        seen = await self._outcomes.find_object(self._where, last=True)
        if (
            seen is not None
            and seen.stored.size != self._size
            and seen.unique_id == self._unique_id.hex()
        ):
            await self._requests.send(
                "delete", self._where.name, s3_calls.delete_object(self._where), last=True
            )
            raise InvalidRangeError(
                self._where.name,
                f"composed of {self._size} bytes it has {seen.stored.size}: a range ends too late",
            )

    async def _send_through_here(
        self, upload_id: str, number: int, source: Where, each: ObjectRange, *, retry: bool
    ) -> CompletedPartTypeDef:
        get = s3_calls.get_object(source, each.offset, each.length)
        data = await self._requests.send(
            "get", each.name, get, size_received=each.length, retry=retry
        )
        digest = b64encode(md5(data, usedforsecurity=False).digest()).decode("ascii")
        put = s3_calls.put_plain_part(self._where, upload_id, number, data, digest)
        return await self._requests.send(
            "put_part", self._where.name, put, size_sent=each.length, retry=retry
        )

    async def _check_source(self, source: Where, each: ObjectRange) -> None:
        seen = await self._outcomes.find_object(source)
        if seen is None:
            raise ObjectNotFoundError(each.name, "no such object")
        if seen.stored.size < each.offset + each.length:
            raise _beyond(each)


def _beyond(each: ObjectRange) -> InvalidRangeError:
    return InvalidRangeError(
        each.name, f"bytes {each.offset} to {each.offset + each.length} reach beyond the end"
    )


def cut_ranges(ranges: Sequence[ObjectRange], bytes_max: int) -> list[ObjectRange]:
    """The same bytes in ranges of at most `bytes_max`, those of one range about equally long."""
    found: list[ObjectRange] = []
    for each in ranges:
        count = -(-each.length // bytes_max)
        edges = [each.offset + each.length * number // count for number in range(count + 1)]
        found += [ObjectRange(each.name, start, end - start) for start, end in pairwise(edges)]
    return found
