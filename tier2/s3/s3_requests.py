"""S3Requests: the one door through which every request to the provider goes.

In this order: bytes in flight, the shared rate, a connection, a thread. Rules of this file:

- a request is counted from when its thread has it until its outcome is known;
- a caller that is cancelled, or has its answer from a second request, leaves its thread to end by
  itself. Connection and bytes are given back then, and `close` waits for it, CLOSE_S_MAX at most;
- second requests have threads and connections of their own, a quarter as many: where all others
  hang they still go out;
- after `close` began only what was begun before may still be ended (`last=True`: an abort, a check
  of what became of a put).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.weighted_gate import WeightedGate
from tier2.object_storage import ObjectStorageError, StorageUnavailableError
from tier2.request_meter import MeteredRequest, RequestMeter
from tier2.request_statistics import ObjectStorageStatistics, Operation
from tier2.s3.adaptive_rate import RateGate
from tier2.s3.read_timeouts import ReadTimeouts
from tier2.s3.s3_client import READ_TIMEOUT_S, ClientHolder, S3Reply
from tier2.s3.s3_errors import S3UnavailableError, S3Verdict
from tier2.s3.s3_location import S3Location

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_T = TypeVar("_T")

CALL_NAMES: dict[Operation, str] = {
    "put": "PutObject",
    "get": "GetObject",
    "head": "HeadObject",
    "list": "ListObjectsV2",
    "delete": "DeleteObject",
    "begin_upload": "CreateMultipartUpload",
    "put_part": "UploadPart",
    "copy_part": "UploadPartCopy",
    "complete_upload": "CompleteMultipartUpload",
    "abort_upload": "AbortMultipartUpload",
    "list_uploads": "ListMultipartUploads",
}
"""What the provider calls them."""


CUT_AGAIN_S = 1.0
"""While closing, between two searches for replies that no caller waits for."""
CREDENTIALS_S = 30.0
"""From here on requests that wait for credentials are reported."""
CLOSE_S_MAX = 150.0
"""How long a close waits for threads, which are left to themselves behind it.

A request has a timeout wherever it waits for the provider. A program that botocore asks for
credentials has none, and a large body may pass a slow line for longer.
"""
_READS: frozenset[Operation] = frozenset(("get", "head"))
"""Whose patience is measured. What a provider does for the others may take a minute in silence."""
_LISTINGS: frozenset[Operation] = frozenset(("list", "list_uploads"))
"""Whose replies have a bound as a whole, that of PAGE_S. The bound of a read is its reader's; a
provider that puts parts together sends a space now and then, for minutes.
"""


class Sent(Generic[_T]):
    """A request under way. `leave` gives back what it has, once its thread has ended."""

    def __init__(
        self,
        running: asyncio.Future[_T],
        reply: S3Reply,
        request: MeteredRequest,
        leave: Callable[[], None],
    ) -> None:
        self.running = running
        self.reply = reply
        self.request = request
        self.leave = leave


class S3Requests:
    """Sends single requests; never tries one again."""

    def __init__(self, location: S3Location, runtime: Runtime) -> None:
        self.location = location
        self.rate_gate = RateGate(runtime.random)
        self._client = ClientHolder(location, runtime)
        self._beside_max = location.connections_beside
        self._beside = 0
        self.read_timeouts = ReadTimeouts()
        self._executor = runtime.executor("tier2-s3", location.connections + self._beside_max)
        self._connections = WeightedGate(location.connections)
        self._bytes = WeightedGate(location.bytes_in_flight)
        self._meter = RequestMeter()
        self._running: dict[asyncio.Future[Any], S3Reply] = {}
        self._now: Callable[[], float] = float
        self._closing = False
        self._closed = False

    async def send(
        self,
        operation: Operation,
        name: str,
        work: Callable[[S3Client], _T],
        *,
        size_sent: int = 0,
        size_received: int = 0,
        retry: bool = False,
        last: bool = False,
    ) -> _T:
        """Run `work`, one request about object `name`, in a thread.

        Raises what error_of makes of its failure.

        `size_sent` and `size_received` are the bytes of an object it carries: they wait for room,
        and count if it succeeds.
        """
        sent = await self.begin(
            operation,
            name,
            lambda _: work,
            size_sent=size_sent,
            size_received=size_received,
            retry=retry,
            last=last,
        )
        # Shielded: cancelling the caller must not lose sight of what its thread still does.
        return await asyncio.shield(sent.running)

    async def begin(
        self,
        operation: Operation,
        name: str,
        work: Callable[[S3Reply], Callable[[S3Client], _T]],
        *,
        size_sent: int = 0,
        size_received: int = 0,
        retry: bool = False,
        last: bool = False,
    ) -> Sent[_T]:
        """As `send`, but returns when the request is on its way.

        `work` makes what is run, which notifies the `S3Reply` when that begins.
        """
        size = size_sent + size_received
        await self._bytes.enter(size)
        try:
            await self._rate_and_connection(name, last=last)
        except BaseException:
            self._bytes.leave(size)
            raise

        def leave() -> None:
            self._connections.leave(1)
            self._bytes.leave(size)

        return self._start(operation, name, work, size_sent, size_received, leave, retry=retry)

    def begin_beside(
        self,
        operation: Operation,
        name: str,
        work: Callable[[S3Reply], Callable[[S3Client], _T]],
        size_received: int,
    ) -> Sent[_T] | None:
        """A second request beside one that is late; None where there is no room for it, or the
        provider asked for less.
        """
        throttled = self.rate_gate.rate.limit(asyncio.get_running_loop().time()) is not None
        if (
            self._closing
            or throttled
            or self._beside >= self._beside_max
            or not self.read_timeouts.may_repeat()
        ):
            return None
        self._beside += 1
        return self._start(operation, name, work, 0, size_received, self._leave_beside, hedge=True)

    def abandon(self, sent: Sent[Any]) -> None:
        """Its answer is no longer needed, for another request had it.

        It counts among the second requests until its thread ends: as many may hang, and no other
        read waits for them.
        """
        sent.reply.give_up()
        self._beside += 1
        sent.leave()
        sent.leave = self._leave_beside

    def _leave_beside(self) -> None:
        self._beside -= 1

    async def close(self) -> None:
        """Let what runs end, then give threads and connections back. Idempotent.

        What runs for CLOSE_S_MAX is left to its thread.
        """
        self.stop_new()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + CLOSE_S_MAX
        while self._running and loop.time() < until_s:
            for reply in self._running.values():
                if reply.lost:
                    reply.cut()
            # A reply that no caller waits for may begin only now, and trickle.
            await asyncio.wait(tuple(self._running), timeout=CUT_AGAIN_S)
        if self._closed:
            return
        self._closed = True
        if self._running:
            for running in tuple(self._running):
                running.cancel()
            self._executor.shutdown(wait=False, cancel_futures=True)
            return
        await loop.run_in_executor(self._executor, self._client.close)
        self._executor.shutdown()

    def stop_new(self) -> None:
        """From now on only requests with `last` are sent."""
        self._closing = True
        self.rate_gate.stop()

    def health(self) -> list[str]:
        """What requests wait for before they are sent: that has no timeout. O(connections)."""
        asked_s = [reply.asked_s for reply in self._running.values() if not reply.sent]
        waited_s = self._now() - min(asked_s) if asked_s else 0.0
        if waited_s < CREDENTIALS_S:
            return []
        since = f"{len(asked_s)} requests have had no credentials for {waited_s:.0f} s"
        move = "end the program or server that botocore asks for them, and it is asked again"
        return [f"{since}: {move}"]

    def statistics(self) -> ObjectStorageStatistics:
        """Numbers as of now."""
        return self._meter.snapshot()

    def __repr__(self) -> str:
        return (
            f"<S3Requests {self.location.url}: connections {self._connections}, bytes "
            f"{self._bytes}>"
        )

    async def _rate_and_connection(self, name: str, *, last: bool) -> None:
        self._check_open(name, last=last)
        await self.rate_gate.enter()
        await self._connections.enter(1)
        try:
            self._check_open(name, last=last)
        except ObjectStorageError:
            self._connections.leave(1)
            raise

    def _check_open(self, name: str, *, last: bool) -> None:
        if self._closed or (self._closing and not last):
            raise StorageUnavailableError(name, "the storage is closed", "closed")

    def _start(
        self,
        operation: Operation,
        name: str,
        work: Callable[[S3Reply], Callable[[S3Client], _T]],
        size_sent: int,
        size_received: int,
        leave: Callable[[], None],
        *,
        retry: bool = False,
        hedge: bool = False,
    ) -> Sent[_T]:
        timeout_s = self.read_timeouts.dead_after_s(name) if operation in _READS else READ_TIMEOUT_S
        loop = asyncio.get_running_loop()
        self._now = loop.time
        reply = S3Reply(loop.time())
        try:
            submitted = self._executor.submit(
                self._client.call,
                name,
                CALL_NAMES[operation],
                work(reply),
                timeout_s,
                reply,
                now=loop.time if operation in _LISTINGS else None,
            )
        except BaseException:
            leave()
            raise
        running = asyncio.wrap_future(submitted)
        request = self._meter.begin(operation, retry=retry, hedge=hedge)
        self._running[running] = reply

        def ended(_: asyncio.Future[_T]) -> None:
            del self._running[running]
            sent.leave()
            # Taken note of, even if the caller was cancelled meanwhile.
            error = None if running.cancelled() else running.exception()
            # What we cut ourselves is no failure of the provider.
            seconds = request.ended(None if reply.lost and reply.begun else error)
            if error is None:
                _count(request, size_sent, size_received)
                if operation == "get" and size_received:
                    self.read_timeouts.took(size_received, seconds, name)
            elif isinstance(error, S3UnavailableError):
                if error.verdict is S3Verdict.THROTTLED:
                    self.rate_gate.throttled()
                elif error.kind == "timeout" and operation in _READS and not reply.lost:
                    self.read_timeouts.timed_out(timeout_s, name)

        sent = Sent(running, reply, request, leave)
        running.add_done_callback(ended)
        return sent


def _count(request: MeteredRequest, size_sent: int, size_received: int) -> None:
    if size_sent:
        request.sent(size_sent)
    if size_received:
        request.received(size_received)
