"""Faults between boto3 and a real server, without a proxy: a session that loses, repeats, holds
back and forges.

FaultyTransport stands where botocore's http session stands, in front of it. Faults are asked for by
operation and used up in order; what is not asked for goes through untouched.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import random
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache
from http.client import HTTPMessage
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from botocore.awsrequest import AWSPreparedRequest, AWSResponse, HeadersDict
from botocore.exceptions import ConnectionClosedError

from recovery.harness.services.s3_servers import Moto, S3Server
from recovery.harness.services.shared import shared_server
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock
from tier2.request_statistics import Operation
from tier2.s3.read_timeouts import READ_TIMEOUTS_S
from tier2.s3.s3_client import READ_TIMEOUT_S, ClientHolder, make_client
from tier2.s3.s3_location import S3Location, parse_s3_url
from tier2.s3.s3_object_storage import PAGE_OBJECTS, S3ObjectStorage

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

Fault = Callable[["FaultyTransport", AWSPreparedRequest], AWSResponse]

_buckets = itertools.count()


class FaultyTransport:
    """In front of a client's own http session."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._faults: defaultdict[Operation, deque[Fault]] = defaultdict(deque)
        self.sent: Counter[Operation] = Counter()
        self.late: list[AWSPreparedRequest] = []

    def fail(self, operation: Operation, *faults: Fault) -> None:
        """Play these faults on the next requests of this kind, one each."""
        self._faults[operation] += faults

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        operation = operation_of(request)
        self.sent[operation] += 1
        waiting = self._faults[operation]
        return waiting.popleft()(self, request) if waiting else self.forward(request)

    def forward(self, request: AWSPreparedRequest) -> AWSResponse:
        body: Any = request.body
        if hasattr(body, "seek"):
            body.seek(0)
        response: AWSResponse = self._session.send(request)
        return response

    def release(self) -> None:
        """Apply what was held back."""
        for request in self.late:
            self.forward(request).content  # noqa: B018 - read to its end
        self.late.clear()

    def close(self) -> None:
        """The session behind it is closed by its creator."""


def operation_of(request: AWSPreparedRequest) -> Operation:
    parts = urlsplit(request.url)
    query = parse_qs(parts.query, keep_blank_values=True)
    method = request.method
    if "uploads" in query:
        return "begin_upload" if method == "POST" else "list_uploads"
    if "uploadId" in query:
        if method == "PUT":
            return "copy_part" if "x-amz-copy-source" in request.headers else "put_part"
        return "complete_upload" if method == "POST" else "abort_upload"
    if "list-type" in query:
        return "list"
    kinds: dict[str, Operation] = {"PUT": "put", "GET": "get", "HEAD": "head", "DELETE": "delete"}
    return kinds[method]


def cut(transport: FaultyTransport, request: AWSPreparedRequest) -> AWSResponse:
    """The connection breaks before anything arrives."""
    raise ConnectionClosedError(error=None, request=request, endpoint_url=request.url)


def reply_lost(transport: FaultyTransport, request: AWSPreparedRequest) -> AWSResponse:
    """The request takes effect; its reply never comes."""
    transport.forward(request).content  # noqa: B018 - read to its end
    return cut(transport, request)


def late(transport: FaultyTransport, request: AWSPreparedRequest) -> AWSResponse:
    """The connection breaks; the request takes effect when `release` is called."""
    transport.late.append(request)
    return cut(transport, request)


def twice(transport: FaultyTransport, request: AWSPreparedRequest) -> AWSResponse:
    """The request takes effect twice; the second reply comes."""
    transport.forward(request).content  # noqa: B018 - read to its end
    return transport.forward(request)


def passes(transport: FaultyTransport, request: AWSPreparedRequest) -> AWSResponse:
    """Nothing happens to it."""
    return transport.forward(request)


def waits(event: asyncio.Event, go_on: threading.Event) -> Fault:
    """It succeeds, and waiting callers are notified of it; its reply comes when it may go on.

    Asked for on the event's loop, sent from a thread.
    """
    loop = asyncio.get_running_loop()

    def fault(transport: FaultyTransport, request: AWSPreparedRequest) -> AWSResponse:
        loop.call_soon_threadsafe(event.set)
        answer = transport.forward(request)
        assert go_on.wait(60)
        return answer

    return fault


class _Raw(BytesIO):
    """What botocore reads a body from."""

    def stream(self, amount: int = 65536, **_: object) -> Any:
        while piece := self.read(amount):
            yield piece


def forged(status: int, body: bytes, **headers: str) -> AWSResponse:
    message = HTTPMessage()
    fields = {"Content-Length": str(len(body))} | {
        key.replace("_", "-"): value for key, value in headers.items()
    }
    for key, value in fields.items():
        message[key] = value
    shown: Any = HeadersDict(message.items())
    return AWSResponse("http://nowhere", status, shown, _Raw(body))


def says(status: int, code: str, *, after_effect: bool = False) -> Fault:
    """The server's own answer of this status and code, before or after the request took effect."""

    def fault(transport: FaultyTransport, request: AWSPreparedRequest) -> AWSResponse:
        if after_effect:
            transport.forward(request).content  # noqa: B018 - read to its end
        body = (
            f"<Error><Code>{code}</Code><Message>it is said</Message></Error>".encode()
            if code
            else b""
        )
        return forged(status, body)

    return fault


def answers(status: int, body: bytes, **headers: str) -> Fault:
    """A reply of any kind."""
    return lambda _transport, _request: forged(status, body, **headers)


class S3World:
    """A storage on a bucket of its own, with a faulty transport, and a plain client to check around
    it.
    """

    def __init__(
        self,
        *,
        kind: type[S3Server] = Moto,
        page_objects: int = PAGE_OBJECTS,
        runtime: Runtime | None = None,
        **changes: Any,
    ) -> None:
        server = shared_server(kind)
        self.plain = plain_client(kind)
        self.bucket = f"s3-bucket-{next(_buckets)}"
        self.plain.create_bucket(Bucket=self.bucket)
        self.location: S3Location = replace(
            parse_s3_url(server.location(self.bucket, "some/prefix")), **changes
        )
        self.storage = S3ObjectStorage(
            self.location, runtime or Runtime(), page_objects=page_objects
        )
        holder: ClientHolder = self.storage._requests._client
        client: Any
        client, session = shared_client(kind)
        holder._clients = dict.fromkeys((*READ_TIMEOUTS_S, READ_TIMEOUT_S), client)
        self.transport = FaultyTransport(session)
        client._endpoint.http_session = self.transport

    def raw(self) -> dict[str, bytes]:
        found = self.plain.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        return {
            each["Key"].removeprefix("some/prefix/"): self.plain.get_object(
                Bucket=self.bucket, Key=each["Key"]
            )["Body"].read()
            for each in found
        }

    def unfinished(self) -> int:
        return len(self.plain.list_multipart_uploads(Bucket=self.bucket).get("Uploads", []))


@cache
def plain_client(kind: type[S3Server]) -> S3Client:
    """One for the whole process: making one takes longer than a test."""
    client = shared_server(kind).client()
    atexit.register(client.close)
    return client


@cache
def shared_client(kind: type[S3Server]) -> tuple[S3Client, Any]:
    """As the adapter makes it, with its own http session."""
    client: Any = make_client(parse_s3_url(shared_server(kind).location("any")))
    session = client._endpoint.http_session
    atexit.register(session.close)
    return client, session


def run_case(case: Callable[[S3World], Awaitable[None]], **changes: Any) -> None:
    """Run a case in virtual time: requests are real and take none of it, pauses cost nothing."""

    async def body() -> None:
        world = S3World(
            runtime=Runtime(clock=LoopClock(), executor=inline_executor, random=random.Random(1)),
            **changes,
        )
        try:
            await case(world)
        finally:
            await world.storage.close()

    run_virtual(body())


def run_case_with_threads(case: Callable[[S3World], Awaitable[None]], **changes: Any) -> None:
    """As run_case, in real threads and real time."""

    async def body() -> None:
        world = S3World(**changes)
        try:
            await case(world)
        finally:
            await world.storage.close()

    asyncio.run(body())
