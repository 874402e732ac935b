"""HTTP/1.1 as the fault proxy must know it: heads, where messages end, and which S3 request a head
is.

Rules of this file:

- bytes that are not understood are refused (MessageError), never guessed at: a proxy that loses
  count of a message would inject faults that no rule asked for;
- names of headers keep their spelling on the wire, for a signature may cover them;
- everything read has a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qs, urlsplit

from tier2.request_statistics import Operation

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 256 * 1024 * 1024
"""Of a body held whole, which only some faults need."""
PIECE_BYTES = 256 * 1024
"""Read and passed on at once."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_BODILESS_STATUS = (204, 304)


class MessageError(Exception):
    """What came is not HTTP/1.1 as far as this proxy speaks it, or ended in the middle of a
    message.
    """


@dataclass(frozen=True, slots=True)
class Head:
    """First line and headers of a request or a reply."""

    first_line: str
    headers: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str | None:
        """The first header of this name, in whatever case it is spelled."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def without(self, *names: str) -> Self:
        """The same without these headers."""
        gone = {name.lower() for name in names}
        return type(self)(
            self.first_line, tuple(each for each in self.headers if each[0].lower() not in gone)
        )

    def including(self, name: str, value: str) -> Self:
        """The same with this header, in place of any of the same name."""
        rest = self.without(name)
        return type(self)(rest.first_line, (*rest.headers, (name, value)))

    def framed(self, length: int) -> Self:
        """The same for a body of `length` bytes sent in one piece."""
        return self.without("Transfer-Encoding", "Trailer").including("Content-Length", str(length))

    def encode(self) -> bytes:
        """As it goes over the wire."""
        lines = [self.first_line, *(f"{name}: {value}" for name, value in self.headers)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    @property
    def method(self) -> str:
        """Of a request."""
        return self.first_line.split(" ")[0]

    @property
    def target(self) -> str:
        """Path and query of a request, as they were sent."""
        return self.first_line.split(" ")[1]

    @property
    def status(self) -> int:
        """Of a reply."""
        return int(self.first_line.split(" ")[1])

    @property
    def keeps_connection(self) -> bool:
        """Whether another message may follow on the same connection."""
        return (self.get("Connection") or "").lower() != "close" and "HTTP/1.1" in self.first_line


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next head; None if the connection ended before it. Raises MessageError."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise MessageError("the connection ended within a head") from None
        return None
    except asyncio.LimitOverrunError:
        raise MessageError(f"a head of more than {HEAD_BYTES_MAX} bytes") from None
    first_line, *lines = raw.decode("latin-1").strip("\r\n").split("\r\n")
    if "HTTP/1." not in first_line or first_line.count(" ") < 2:
        raise MessageError(f"{first_line[:80]!r} does not begin a message")
    headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise MessageError(f"{line[:80]!r} is not a header")
        headers.append((name, value.strip()))
    return Head(first_line, tuple(headers))


class Body:
    """The body that follows a head, to be read once. `method` is the request's, for a reply."""

    def __init__(
        self, reader: asyncio.StreamReader, head: Head, *, method: str | None = None
    ) -> None:
        self._reader = reader
        self.until_close = False
        """The body ends with the connection: nothing else says where."""
        self.length: int | None = 0
        """None: not known before it has come."""
        if method is not None and (method == "HEAD" or head.status in _BODILESS_STATUS):
            return
        declared = head.get("Content-Length")
        if "chunked" in (head.get("Transfer-Encoding") or "").lower():
            self.length = None
        elif declared is not None:
            if not declared.isdigit():
                raise MessageError(f"Content-Length {declared!r} is not a number")
            self.length = int(declared)
        elif method is not None:
            self.length, self.until_close = None, True

    async def wire(self) -> AsyncIterator[bytes]:
        """The bytes as they came, with the framing of chunks."""
        async for piece, _ in self._pieces():
            yield piece

    async def read(self, bytes_max: int = BODY_BYTES_MAX) -> bytes:
        """All of it, without framing. Raises MessageError if it is longer than `bytes_max`."""
        found = bytearray()
        async for piece, is_payload in self._pieces():
            if is_payload:
                found += piece
            if len(found) > bytes_max:
                raise MessageError(f"a body of more than {bytes_max} bytes")
        return bytes(found)

    async def _pieces(self) -> AsyncIterator[tuple[bytes, bool]]:
        """Pieces, each with whether it is payload or framing."""
        if self.until_close:
            while piece := await self._reader.read(PIECE_BYTES):
                yield piece, True
        elif self.length is not None:
            async for piece in self._counted(self.length):
                yield piece, True
        else:
            size = -1
            while size:
                line = await self._line()
                size = _chunk_size(line)
                yield line, False
                async for piece in self._counted(size):
                    yield piece, True
                if size:
                    yield await self._line(), False
            while (line := await self._line()) != b"\r\n":
                yield line, False
            yield line, False

    async def _counted(self, length: int) -> AsyncIterator[bytes]:
        while length:
            piece = await self._reader.read(min(length, PIECE_BYTES))
            if not piece:
                raise MessageError(f"the connection ended {length} bytes before its body did")
            length -= len(piece)
            yield piece

    async def _line(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise MessageError("a chunk has no end") from None


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise MessageError(f"{line[:40]!r} is not the size of a chunk") from None


def operation_of(head: Head) -> Operation | None:
    """Which S3 request a head begins, in path style; None for what is not one of an object
    storage's.
    """
    parts = urlsplit(head.target)
    query = parse_qs(parts.query, keep_blank_values=True)
    has_key = "/" in parts.path.strip("/")
    match head.method:
        case "HEAD":
            return "head" if has_key else None
        case "GET" if "uploads" in query:
            return "list_uploads"
        case "GET" if has_key:
            return None if "uploadId" in query else "get"
        case "GET":
            return "list" if query.keys() & {"list-type", "prefix", "marker"} or not query else None
        case "PUT" if "uploadId" in query:
            return "put_part" if head.get("x-amz-copy-source") is None else "copy_part"
        case "PUT":
            return "put" if has_key else None
        case "POST" if "uploads" in query:
            return "begin_upload"
        case "POST" if "uploadId" in query:
            return "complete_upload"
        case "POST" if "delete" in query:
            return "delete"
        case "DELETE" if "uploadId" in query:
            return "abort_upload"
        case "DELETE":
            return "delete" if has_key else None
    return None
