"""Replies that are no answer, credentials, bounds and throttling: what the S3 adapter does when
things are not well.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from recovery.harness.services.s3_servers import credentials
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.byte_sizes import MIB
from segmentstore.contracts.runtime import Runtime
from tests.contracts.object_storage_contract import unique_id
from tests.support.loop_clock import LoopClock
from tests.tier2.s3_transport import (
    FaultyTransport,
    S3World,
    answers,
    forged,
    run_case,
    run_case_with_threads,
    says,
    waits,
)
from tier2.object_storage import (
    InvalidRangeError,
    ObjectRange,
    StorageRefusedError,
    StorageUnavailableError,
)
from tier2.request_statistics import Operation
from tier2.s3 import s3_requests
from tier2.s3.s3_client import READ_TIMEOUT_S
from tier2.s3.s3_errors import error_of
from tier2.s3.s3_object_storage import CLOSE_TIMEOUT_S, S3ObjectStorage


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in credentials().items():
        monkeypatch.setenv(key, value)


def test_refused_credentials_are_searched_for_again() -> None:
    async def case(world: S3World) -> None:
        holder = world.storage._requests._client
        assert holder.clients_created == 0
        world.transport.fail("put", says(403, "AccessDenied"), says(400, "ExpiredToken"))
        with pytest.raises(StorageRefusedError) as caught:
            await world.storage.put("x", [b"1"], unique_id(1))
        assert caught.value.kind == "AccessDenied"
        assert holder.clients_created == 0
        with pytest.raises(StorageRefusedError) as caught:
            await world.storage.put("x", [b"1"], unique_id(1))
        assert caught.value.kind == "ExpiredToken"
        await world.storage.put("x", [b"1"], unique_id(1))
        assert holder.clients_created == 1
        assert world.raw() == {"x": b"1"}

    run_case(case)


def test_without_credentials_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(world: S3World) -> None:
        storage = S3ObjectStorage(
            world.location, Runtime(clock=LoopClock(), executor=inline_executor)
        )
        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(key)
        with pytest.raises(StorageRefusedError) as caught:
            await storage.head("x")
        assert "no-credentials (Unable to locate credentials): set AWS_ACCESS_KEY_ID" in str(
            caught.value
        )
        for key, value in credentials().items():
            monkeypatch.setenv(key, value)
        # A new client for every request that is refused would cost more than the requests.
        with pytest.raises(StorageRefusedError):
            await storage.head("x")
        await asyncio.sleep(6)
        with pytest.raises(StorageRefusedError):
            await storage.head("x")
        assert await storage.head("x") is None
        await storage.close()

    run_case(case)


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind"),
    [
        (206, b"345", {"Content_Range": "bytes 3-6/10"}, "truncated"),
        (206, b"3456", {"Content_Range": "bytes 3-6/10", "Content_Length": "9"}, "truncated"),
        (206, b"4567", {"Content_Range": "bytes 4-7/10"}, "wrong-range"),
        (206, b"345", {"Content_Range": "bytes 3-5/10"}, "wrong-range"),
        (206, b"3456", {"Content_Range": "nonsense"}, "wrong-range"),
        (206, b"3456", {}, "wrong-range"),
        (200, b"0123456789", {}, "wrong-range"),
        (500, b"<html>what?</html>", {}, "500"),
        (200, b"", {}, "wrong-range"),
    ],
)
def test_a_reply_that_is_not_the_bytes_asked_for_is_no_answer(
    status: int, body: bytes, headers: dict[str, str], kind: str
) -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("get", answers(status, body, **headers))
        with pytest.raises(StorageUnavailableError) as caught:
            await world.storage.get_range("x", 3, 4)
        assert caught.value.kind == kind
        assert world.storage.statistics().operations["get"].errors == {kind: 1}

    run_case(case)


class _Endless(BytesIO):
    """A body without an end, of which so many bytes may be read at once."""

    bytes_max = 64

    def read(self, amount: int | None = -1) -> bytes:
        assert amount is not None
        assert 0 < amount <= self.bytes_max
        return bytes(amount)


def test_of_a_reply_that_is_too_long_one_byte_more_is_read() -> None:
    def endless(transport: FaultyTransport, request: AWSPreparedRequest) -> AWSResponse:
        reply = forged(206, b"", Content_Range="bytes 3-6/10", Content_Length="1000000000")
        reply.raw = _Endless()
        return reply

    async def case(world: S3World) -> None:
        world.transport.fail("get", endless, endless)
        with pytest.raises(StorageUnavailableError, match="more bytes came where 4") as caught:
            await world.storage.get_range("x", 3, 4)
        assert caught.value.kind == "wrong-range"
        with pytest.raises(StorageUnavailableError, match="31 bytes came of 10"):
            await world.storage.get_whole("x", 30)

    run_case(case)


_CUT_XML = b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTr'
_ODD_TIME = (
    b"<ListBucketResult><Contents><Key>x</Key><Size>1</Size>"
    b"<LastModified>soon</LastModified></Contents></ListBucketResult>"
)
_ODD_SIZE = _ODD_TIME.replace(b"<Size>1<", b"<Size>some<")


@pytest.mark.parametrize(
    ("call", "body", "headers"),
    [
        ("list", _CUT_XML, {}),
        ("list", _ODD_TIME, {}),
        ("list", _ODD_SIZE, {}),
        ("list_uploads", _CUT_XML, {}),
        ("head", b"", {"Last_Modified": "soon"}),
        ("get", b"3456", {"Content_Range": "bytes 3-6/10", "Last_Modified": "soon"}),
        ("put", b"", {"x_amz_object_size": "some"}),
    ],
)
def test_a_reply_that_boto3_cannot_take_apart_is_no_answer(
    call: Operation, body: bytes, headers: dict[str, str]
) -> None:
    async def case(world: S3World) -> None:
        storage = world.storage
        calls: dict[Operation, Callable[[], Awaitable[object]]] = {
            "list": lambda: anext(storage.list()),
            "list_uploads": storage.list_unfinished,
            "head": lambda: storage.head("x"),
            "get": lambda: storage.get_range("x", 3, 4),
            "put": lambda: storage.put("x", [b"1"], unique_id(1)),
        }
        world.transport.fail(call, answers(200, body, **headers))
        with pytest.raises(StorageUnavailableError) as caught:
            await calls[call]()
        assert caught.value.kind in {"odd-reply", "500"}

    run_case(case)


@pytest.mark.parametrize("body", [b"", b"<html><h1>404 Not Found</h1></html>", b"not found"])
def test_a_proxy_that_finds_no_store_does_not_say_that_an_object_is_absent(body: bytes) -> None:
    async def case(world: S3World) -> None:
        storage = world.storage
        await storage.put("x", [b"0123"], unique_id(1))
        missing = answers(404, body)
        world.transport.fail("head", answers(404, b""))
        world.transport.fail("get", missing, missing)
        for call in (storage.get_range("x", 0, 4), storage.head("x")):
            with pytest.raises(StorageUnavailableError) as caught:
                await call
            assert caught.value.kind == "404"
        await storage.put("large", [bytes(6 * MIB)], unique_id(2))
        world.transport.fail("copy_part", missing)
        with pytest.raises(StorageUnavailableError, match="makes no sense"):
            await storage.compose("copy", [ObjectRange("large", 0, 6 * MIB)], unique_id(3))
        assert await storage.get_range("x", 0, 4) == b"0123"

    run_case(case)


def test_a_range_beyond_the_end_is_distinguished_from_one_that_went_wrong() -> None:
    async def case(world: S3World) -> None:
        for reply in (answers(206, b"89", Content_Range="bytes 8-9/10"), says(416, "InvalidRange")):
            world.transport.fail("get", reply)
            with pytest.raises(InvalidRangeError):
                await world.storage.get_range("x", 8, 4)
        # A server that knows no ranges is right by chance where the range is the object.
        world.transport.fail("get", answers(200, b"0123"))
        assert await world.storage.get_range("x", 0, 4) == b"0123"
        assert world.storage.statistics().errors == 0

    run_case(case)


def test_an_unusable_endpoint_is_reported() -> None:
    async def case(world: S3World) -> None:
        for location, said in (
            (replace(world.location, endpoint_url="http://in valid"), "is refused with client"),
            (replace(world.location, bucket="no bucket"), "is refused with client"),
        ):
            storage = S3ObjectStorage(location, Runtime(executor=inline_executor))
            with pytest.raises(StorageRefusedError) as caught:
                await storage.get_range("x", 0, 1)
            assert said in str(caught.value)
            await storage.close()

    run_case(case)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    async def case(world: S3World) -> None:
        storage = S3ObjectStorage(
            replace(world.location, endpoint_url="http://127.0.0.1:1"), Runtime()
        )
        with pytest.raises(StorageUnavailableError) as caught:
            await storage.put("x", [b"1"], unique_id(1))
        assert caught.value.kind == "connection"
        assert not isinstance(caught.value, StorageRefusedError)
        await storage.close()

    run_case_with_threads(case)


def test_requests_and_bytes_under_way_are_bounded() -> None:
    async def case(world: S3World) -> None:
        await asyncio.gather(
            *(world.storage.put(f"{n}", [bytes(1000)], unique_id(n)) for n in range(12))
        )
        gates = world.storage._requests
        most = 0

        async def get(number: int) -> None:
            nonlocal most
            data = await world.storage.get_range(f"{number}", 0, 1000)
            most = max(most, gates._bytes.inside, gates._connections.inside * 1000)
            assert len(data) == 1000

        await asyncio.gather(*(get(number) for number in range(12)))
        assert most <= 3000
        assert (gates._bytes.inside, gates._connections.inside) == (0, 0)

    run_case_with_threads(case, connections=3, bytes_in_flight=2500)


def test_a_throttled_storage_closes_at_once() -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("get", *[says(503, "SlowDown")] * 100)
        reads = [asyncio.create_task(world.storage.get_range("x", 0, 1)) for _ in range(30)]
        loop = asyncio.get_running_loop()
        await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        reads += [asyncio.create_task(world.storage.get_range("x", 0, 1)) for _ in range(30)]
        await asyncio.sleep(0.1)
        begun = loop.time()
        await world.storage.close()
        await asyncio.wait(reads)
        assert loop.time() - begun < 1
        kinds = {
            error.kind
            for read in reads
            if isinstance(error := read.exception(), StorageUnavailableError)
        }
        assert kinds == {"SlowDown", "closed"}

    run_case(case)


class _BlackHole(Executor):
    """An upload in parts can begin; every other call is a timeout after a minute."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        done: Future[Any] = Future()
        if len(arguments) > 1 and arguments[1] != "CreateMultipartUpload":
            error = error_of(arguments[0], arguments[1], "bucket", "timeout", None, "no answer")
            asyncio.get_running_loop().call_later(READ_TIMEOUT_S, done.set_exception, error)
        else:
            done.set_result(call(*arguments))
        return done


def test_an_upload_in_parts_into_a_black_hole_does_not_hold_a_close_for_minutes() -> None:
    async def body() -> None:
        runtime = Runtime(clock=LoopClock(), executor=lambda _name, _count: _BlackHole())
        world = S3World(runtime=runtime, multipart_bytes=1)
        upload = asyncio.create_task(world.storage.put("x", [b"1"], unique_id(1)))
        await asyncio.sleep(5)
        assert world.transport.sent["begin_upload"]
        upload.cancel()
        await asyncio.wait((upload,))
        begun = asyncio.get_running_loop().time()
        await world.storage.close()
        assert asyncio.get_running_loop().time() - begun <= READ_TIMEOUT_S + 2 * CLOSE_TIMEOUT_S

    run_virtual(body())


def test_a_burst_of_throttling_is_waited_out_by_an_upload() -> None:
    async def case(world: S3World) -> None:
        loop = asyncio.get_running_loop()
        # The attempts of a part last 19 seconds at least, by the lower bounds of their pauses.
        over = loop.time() + 15

        def throttled(transport: FaultyTransport, request: Any) -> Any:
            busy = loop.time() < over
            return says(503, "SlowDown")(transport, request) if busy else transport.forward(request)

        world.transport.fail("put_part", *[throttled] * 100)
        world.transport.fail("complete_upload", *[throttled] * 100)
        await world.storage.put("x", [b"1"], unique_id(1))
        assert 0 <= loop.time() - over < 10
        assert world.transport.sent["put_part"] < 40
        assert world.storage.statistics().requests("begin_upload") == 1
        assert world.raw() == {"x": b"1"}

    run_case(case, multipart_bytes=1)


def test_a_close_leaves_a_thread_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_requests, "CLOSE_S_MAX", 0.1)
    monkeypatch.setattr(s3_requests, "CUT_AGAIN_S", 0.1)

    async def case(world: S3World) -> None:
        # As in a program that is asked for credentials, and waits for a person.
        hangs, go_on = asyncio.Event(), threading.Event()
        world.transport.fail("put", waits(hangs, go_on))
        put = asyncio.ensure_future(world.storage.put("x", [b"1"], unique_id(1)))
        await hangs.wait()
        put.cancel()
        try:
            async with asyncio.timeout(30):
                await world.storage.close()
            assert put.cancelled()
            with pytest.raises(StorageUnavailableError, match="the storage is closed"):
                await world.storage.head("x")
        finally:
            go_on.set()

    run_case_with_threads(case)
