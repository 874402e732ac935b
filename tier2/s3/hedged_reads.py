"""Reads that do not wait for a server that never answers: a second request beside one that is late,
and the first answer wins.

Rules of this file:

- what is late, and whether a second request may go, `ReadTimeouts` and `S3Requests.begin_beside`
  say;
- an answer is bytes, or that there are none (absent, beyond the end). A failure is none: the other
  is waited for;
- what is not waited for any more, also because the reader was cancelled, is cut off as soon as
  bytes come, else its socket's patience ends it. Until then it has its thread and its connection,
  of which there is a fixed number;
- a reply that trickles, each byte within the patience, is cut when the whole took longer than the
  slowest line would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tier2.object_storage import StorageUnavailableError
from tier2.s3 import s3_calls
from tier2.s3.s3_calls import Where
from tier2.s3.s3_client import S3Reply
from tier2.s3.s3_requests import S3Requests, Sent

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

WHOLE_S: Final = 60.0
SLOWEST_BYTES_PER_S: Final = 16 * 1024
"""Of one of many requests that share a slow line.

A read has WHOLE_S, and the time its bytes take at this rate.
"""


async def hedged_get(requests: S3Requests, where: Where, offset: int, length: int) -> bytes:
    """Exactly these bytes of an object.

    Raises what error_of makes of the first request's failure, if all failed.
    """
    read_timeouts = requests.read_timeouts
    read_timeouts.begun()

    def work(reply: S3Reply) -> Callable[[S3Client], bytes]:
        return s3_calls.get_object(where, offset, length, reply)

    waiting = [await requests.begin("get", where.name, work, size_received=length)]
    try:
        late_after_s = read_timeouts.late_after_s(length)
        if late_after_s is not None:
            done, _ = await asyncio.wait((waiting[0].running,), timeout=late_after_s)
            if (
                not done
                and (second := requests.begin_beside("get", where.name, work, length)) is not None
            ):
                waiting.append(second)
        return await _first_answer(requests, waiting, WHOLE_S + length / SLOWEST_BYTES_PER_S)
    except asyncio.CancelledError:
        for sent in waiting:
            if not sent.running.done():
                sent.reply.give_up()
        raise


async def _first_answer(requests: S3Requests, asked: list[Sent[bytes]], whole_s: float) -> bytes:
    waiting = list(asked)
    failure: StorageUnavailableError | None = None
    while waiting:
        done, _ = await asyncio.wait(
            [sent.running for sent in waiting], timeout=whole_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            for sent in waiting:
                sent.reply.cut()
            continue
        for sent in [sent for sent in waiting if sent.running in done]:
            waiting.remove(sent)
            error = sent.running.exception()
            if isinstance(error, StorageUnavailableError):
                failure = failure or error
                continue
            for other in waiting:
                requests.abandon(other)
            if sent is not asked[0]:
                sent.request.won()
            return sent.running.result()
    assert failure is not None
    raise failure
