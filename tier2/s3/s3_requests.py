"""S3Requests: the one door through which every request to the provider goes.

In this order: bytes in flight, the shared rate, a connection, a thread. Rules of this file:

- a request is counted from when its thread has it until its outcome is known;
- a caller that is cancelled leaves its thread to end by itself; connection and bytes are given back then, and `close`
  waits for it;
- after `close` began only what was begun before may still be ended (`last=True`: an abort, a look at what became of a put).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import ObjectStorageError, StorageUnavailableError
from tier2.request_meter import ObjectStorageStatistics, Operation, Request, RequestMeter
from tier2.s3.adaptive_rate import RateGate
from tier2.s3.s3_client import ClientHolder
from tier2.s3.s3_errors import S3UnavailableError, Verdict
from tier2.s3.s3_location import S3Location
from tier2.s3.weighted_gate import WeightedGate

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


class S3Requests:
    """Sends single requests; never tries one again."""

    def __init__(self, location: S3Location, runtime: Runtime) -> None:
        self.location = location
        self.rate_gate = RateGate(runtime.random)
        self._client = ClientHolder(location, runtime)
        self._executor = runtime.executor("tier2-s3", location.connections)
        self._connections = WeightedGate(location.connections)
        self._bytes = WeightedGate(location.bytes_in_flight)
        self._meter = RequestMeter()
        self._running: set[asyncio.Future[Any]] = set()
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
        """Run `work`, one request about object `name`, in a thread. Raises what error_of makes of its failure.

        `size_sent` and `size_received` are the bytes of an object it carries: they wait for room, and count if it succeeds.
        """
        size = size_sent + size_received
        await self._bytes.enter(size)
        try:
            await self._rate_and_connection(name, last=last)
        except BaseException:
            self._bytes.leave(size)
            raise
        with self._meter.request(operation, retry=retry) as request:
            try:
                done = await self._run(name, operation, work, size)
            except S3UnavailableError as error:
                if error.verdict is Verdict.THROTTLED:
                    self.rate_gate.throttled()
                raise
            _count(request, size_sent, size_received)
        return done

    async def close(self) -> None:
        """Let what runs end, then give threads and connections back. Idempotent."""
        self.stop_new()
        while self._running:
            await asyncio.wait(tuple(self._running))
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._executor, self._client.close)
            self._executor.shutdown()

    def stop_new(self) -> None:
        """From now on only requests with `last` are sent."""
        self._closing = True
        self.rate_gate.stop()

    def statistics(self) -> ObjectStorageStatistics:
        """Numbers as of now."""
        return self._meter.snapshot()

    def __repr__(self) -> str:
        return f"<S3Requests {self.location.url}: connections {self._connections}, bytes {self._bytes}>"

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

    async def _run(self, name: str, operation: Operation, work: Callable[[S3Client], _T], size: int) -> _T:
        running = asyncio.wrap_future(self._executor.submit(self._client.call, name, CALL_NAMES[operation], work))
        self._running.add(running)

        def ended(_: asyncio.Future[_T]) -> None:
            self._running.discard(running)
            self._connections.leave(1)
            self._bytes.leave(size)
            if not running.cancelled():
                running.exception()  # Taken note of, even if the caller was cancelled meanwhile.

        running.add_done_callback(ended)
        # Shielded: cancelling the caller must not lose sight of what its thread still does.
        return await asyncio.shield(running)


def _count(request: Request, size_sent: int, size_received: int) -> None:
    if size_sent:
        request.sent(size_sent)
    if size_received:
        request.received(size_received)
