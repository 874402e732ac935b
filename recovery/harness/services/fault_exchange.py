"""One request through the fault proxy: passed on as it is, or with one fault done to it.

Without a fault a message streams through and is never held. A fault that needs a whole body holds
that one body. Towards the server every request has a connection of its own, so that no fault
reaches beyond it.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

from recovery.harness.services.fault_messages import (
    CONTINUE,
    HEAD_BYTES_MAX,
    Body,
    Head,
    MessageError,
    read_head,
)
from recovery.harness.services.fault_rules import (
    CutUpload,
    Delay,
    DropReply,
    DropRequest,
    Fault,
    FlipBit,
    Late,
    Stall,
    Status,
    Truncate,
    Twice,
    WrongRange,
)

CONNECT_S: Final = 5.0
REPLY_S: Final = 90.0
"""The longest the server may take to begin its reply."""
REMEMBERED_RANGES: Final = 16
REMEMBERED_BYTES: Final = 8 * 1024 * 1024
_HELD_MAX: Final = 64

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class ConnectionLostError(Exception):
    """The exchange ended without a whole reply: the connection to the caller must end too."""


class Reply(NamedTuple):
    """A reply held whole; the head is as it came, its body without framing."""

    head: Head
    body: bytes


class Upstream:
    """The server behind, and what the proxy remembers of it for later faults."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.released = asyncio.Event()
        self.late: OrderedDict[int, tuple[Head, bytes]] = OrderedDict()
        """Requests that wait to be applied, by number."""
        self._late_count = 0
        self._ranges: OrderedDict[tuple[str, str], Reply] = OrderedDict()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection for one request. Raises OSError, also for a server that takes too long."""
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(
                self.host, self.port, limit=HEAD_BYTES_MAX
            )
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def reply_head(self, reader: asyncio.StreamReader) -> Head:
        """The head of the final reply; what a server says in between is left out."""
        async with asyncio.timeout(REPLY_S):
            while (head := await read_head(reader)) is not None:
                if head.status >= 200:
                    return head
        raise MessageError("the server ended the connection without a reply")

    async def apply(self, head: Head, body: bytes) -> Reply:
        """Send a request whole and take its reply whole."""
        async with self.connect() as (reader, writer):
            writer.write(head.encode() + body)
            reply = await self.reply_head(reader)
            return Reply(reply, await Body(reader, reply, method=head.method).read())

    def hold(self, head: Head, body: bytes) -> int:
        """Keep a request for later; the number it can be released by."""
        if len(self.late) >= _HELD_MAX:
            raise MessageError(f"{_HELD_MAX} late requests wait already")
        self._late_count += 1
        self.late[self._late_count] = head, body
        return self._late_count

    def remember(self, head: Head, reply: Reply) -> None:
        """Keep the reply to a ranged GET, for a WrongRange to come."""
        if reply.head.status == 206 and len(reply.body) <= REMEMBERED_BYTES:
            key = head.target, head.get("Range") or ""
            self._ranges[key] = reply
            self._ranges.move_to_end(key)
            if len(self._ranges) > REMEMBERED_RANGES:
                self._ranges.popitem(last=False)

    def another_range(self, head: Head) -> Reply | None:
        """The last reply to another range of the same object."""
        wanted = head.target, head.get("Range") or ""
        found = (
            self._ranges[key]
            for key in reversed(self._ranges)
            if key[0] == wanted[0] and key != wanted
        )
        return next(found, None)

    def is_possible(self, head: Head, fault: Fault) -> bool:
        """Whether a fault can be done to this request now."""
        return not isinstance(fault, WrongRange) or self.another_range(head) is not None


@dataclass(slots=True)
class Exchange:
    """One request of a caller's connection, its head read.

    `run` once; the connection may go on if it returns True.
    """

    upstream: Upstream
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    request: Head
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Runs what outlives the exchange, until the proxy stops."""

    async def run(self, fault: Fault | None) -> bool:
        """Do it.

        Raises ConnectionLostError, MessageError, OSError: the caller's connection is of no use any
        more.
        """
        if isinstance(fault, DropRequest):
            raise ConnectionLostError
        if self.request.get("Expect") is not None:
            self.writer.write(CONTINUE)
            self.request = self.request.without("Expect")
        match fault:
            case CutUpload(share):
                await self._cut_upload(share)
            case Late(seconds):
                await self._later(seconds)
            case Delay(seconds):
                await asyncio.sleep(seconds)
                return await self._pass_through()
            case Stall(after_effect):
                return await self._stalled(after_effect=after_effect)
            case None:
                return await self._pass_through()
            case _:
                reply = await self._bent(fault, await self._body())
                return await self._answer(reply)
        raise ConnectionLostError

    async def _bent(self, fault: Fault, body: bytes) -> Reply:
        """The reply to a request held whole, after the fault."""
        request = self.request
        match fault:
            case DropReply():
                await self.upstream.apply(request, body)
                raise ConnectionLostError
            case Twice(which):
                replies = {
                    "first": await self.upstream.apply(request, body),
                    "second": await self.upstream.apply(request, body),
                }
                return replies[which]
            case Status(status, code, after_effect):
                if after_effect:
                    await self.upstream.apply(request, body)
                return error_reply(request, status, code)
            case WrongRange(lying):
                other = self.upstream.another_range(request)
                assert other is not None, "the rule was taken"
                return _in_place_of(other, request) if lying else other
            case FlipBit("request", share):
                return await self.upstream.apply(request, flipped(body, share))
            case FlipBit(_, share):
                reply = await self.upstream.apply(request, body)
                return reply._replace(body=flipped(reply.body, share))
            case Truncate(share, lying):
                reply = await self.upstream.apply(request, body)
                short = reply.body[: int(len(reply.body) * share)]
                if not lying:
                    self.writer.write(self._head_of(reply).encode() + short)
                    await self.writer.drain()
                    raise ConnectionLostError
                return reply._replace(body=short)
        raise AssertionError(fault)

    async def _body(self) -> bytes:
        body = await Body(self.reader, self.request).read()
        if body or self.request.get("Content-Length") is not None:
            self.request = self.request.framed(len(body))
        return body

    async def _answer(self, reply: Reply) -> bool:
        self.writer.write(self._head_of(reply).encode() + reply.body)
        await self.writer.drain()
        return self._goes_on(reply.head)

    def _head_of(self, reply: Reply) -> Head:
        return reply.head if self.request.method == "HEAD" else reply.head.framed(len(reply.body))

    async def _pass_through(self, hold_reply: asyncio.Event | None = None) -> bool:
        async with self.upstream.connect() as (reader, writer):
            took_all = await self._send(writer)
            reply = await self.upstream.reply_head(reader)
            if hold_reply is not None:
                await hold_reply.wait()
            body = Body(reader, reply, method=self.request.method)
            if reply.status == 206 and body.length is not None and body.length <= REMEMBERED_BYTES:
                whole = Reply(reply, await body.read())
                self.upstream.remember(self.request, whole)
                return await self._answer(whole) and took_all
            self.writer.write(reply.encode())
            async for piece in body.wire():
                self.writer.write(piece)
                await self.writer.drain()
            return self._goes_on(reply) and not body.until_close and took_all

    async def _send(self, writer: asyncio.StreamWriter) -> bool:
        """Stream the request to the server; False if it did not want all of it: it may have replied
        nevertheless.
        """
        body = Body(self.reader, self.request)
        try:
            writer.write(self.request.encode())
            async for piece in body.wire():
                writer.write(piece)
                await writer.drain()
        except OSError:
            return False
        return True

    async def _cut_upload(self, share: float) -> None:
        """The server sees a request that never ends; what was on its way is lost."""
        body = Body(self.reader, self.request)
        left = int((body.length or 0) * share)
        async with self.upstream.connect() as (_, writer):
            writer.write(self.request.encode())
            if left:
                async for piece in body.wire():
                    writer.write(piece[:left])
                    await writer.drain()
                    left -= len(piece)
                    if left <= 0:
                        break
            writer.close()
            await writer.wait_closed()

    async def _later(self, seconds: float | None) -> None:
        body = await self._body()
        number = self.upstream.hold(self.request, body)
        if seconds is not None:
            self.spawn(self._apply_later(number, seconds))

    async def _apply_later(self, number: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        held = self.upstream.late.pop(number, None)
        if held is not None:
            try:
                await self.upstream.apply(*held)
            except (OSError, MessageError):
                pass  # Too late even for the server.

    async def _stalled(self, *, after_effect: bool) -> bool:
        if after_effect:
            return await self._pass_through(self.upstream.released)
        await self.upstream.released.wait()
        if self.reader.at_eof() or self.writer.is_closing():
            raise ConnectionLostError
        return await self._pass_through()

    def _goes_on(self, reply: Head) -> bool:
        return self.request.keeps_connection and reply.keeps_connection


def error_reply(request: Head, status: int, code: str) -> Reply:
    """What S3 says when it refuses; a HEAD is refused without a body, and so without the code."""
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{escape(code)}</Code><Message>A fault of the proxy.</Message>"
        f"<Resource>{escape(request.target)}</Resource><RequestId>fault</RequestId></Error>"
    )
    body = b"" if request.method == "HEAD" else text.encode()
    head = Head(
        f"HTTP/1.1 {status} Fault",
        (
            ("Content-Type", "application/xml"),
            ("x-amz-request-id", "fault"),
            ("Content-Length", str(len(body))),
        ),
    )
    return Reply(head, body)


def flipped(body: bytes, share: float) -> bytes:
    """The same with one bit changed, `share` of the way into it; an empty body stays."""
    if not body:
        return body
    place = min(int(len(body) * share), len(body) - 1)
    return body[:place] + bytes([body[place] ^ 0x10]) + body[place + 1 :]


def _in_place_of(other: Reply, request: Head) -> Reply:
    """The other range's bytes under the Content-Range that was asked for."""
    asked = _RANGE.fullmatch(request.get("Range") or "")
    total = (other.head.get("Content-Range") or "").rpartition("/")[2]
    if asked is None:
        raise MessageError("no range was asked for")
    return other._replace(
        head=other.head.including("Content-Range", f"bytes {asked[1]}-{asked[2]}/{total}")
    )
