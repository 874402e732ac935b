"""What a running store and other processes of its machine say to each other: the codec.
docs/formats/local-server.md.

Rules of this file: pure. Each received frame is either a message or a LocalProtocolError that says
what is wrong with it. A message may be longer than this version knows (what is behind is skipped),
never shorter. A number once given to a kind or a code is never given to another.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from segmentstore.contracts.checksum import Buffer

VERSION: Final = 1
MAGIC: Final = b"SSLF"
LENGTH_BYTES: Final = 4
"""Of the length that stands before each frame."""
FRAME_ROOM: Final = 4096
"""A frame is at most `append_bytes_max` and so many bytes more; before the greeting at most so
many.
"""
NAMES_BYTES_MAX: Final = 1 << 20
"""About what one answer to a listing holds; `more` says that there are further names."""
WRITER_BYTES: Final = 16

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">BI")
_NUMBER = struct.Struct(">q")
_SHORT = struct.Struct(">H")
_COUNT = struct.Struct(">I")
_EVENT = struct.Struct(">16sq")
_SEGMENT = struct.Struct(">QQQBI")
_HANDSHAKE_REPLY = struct.Struct(">HQ")


class Code(enum.IntEnum):
    """Why something was refused."""

    MALFORMED = 1
    """The message does not follow the format.

    Where frames end is not known any more if the length was wrong.
    """
    VERSION_UNKNOWN = 2
    REQUEST_UNKNOWN = 3
    TOO_LARGE = 4
    BUSY = 5
    """Too many connections, or too many writers on one. Nothing was done; later it may be."""
    HANDSHAKE_FIRST = 6

    REFUSED = 16
    """The store says no, and nothing was changed; `error` is the class of contracts/errors.py."""
    NOT_FOUND = 17
    """As REFUSED: SegmentNotFoundError."""
    EXISTS = 18
    """As REFUSED: SegmentExistsError."""
    AWAY = 19
    """The store cannot now, or stopped in the middle: ask again, and send again what carries an
    event number.
    """
    FAILED = 20
    """A fault of the store."""


class LocalProtocolError(Exception):
    """A frame that is no message.

    `request` is the request's number, 0 where that cannot be known.
    """

    def __init__(self, code: Code, detail: str, request: int = 0) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.request = request


# --- requests -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HandshakeRequest:
    """The first message of a connection."""

    version: int = VERSION


@dataclass(frozen=True, slots=True)
class LastEvent:
    """The highest event number a segment has of a writer; begins a new session of that writer.

    Answered by EventNumber.
    """

    segment: str
    writer_id: bytes


@dataclass(frozen=True, slots=True)
class Append:
    """One event of an exactly-once writer. Answered by Stored or Duplicate."""

    segment: str
    writer_id: bytes
    event_number: int
    data: Buffer


@dataclass(frozen=True, slots=True)
class Create:
    """Make an empty segment. Answered by Done."""

    segment: str


@dataclass(frozen=True, slots=True)
class Describe:
    """Ask for a segment's properties. Answered by Description."""

    segment: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Append the whole source to the target and delete the source, as one step.

    Answered by Stored or Duplicate.

    With `writer_id` it is that writer's event of this number on the target: a duplicate leaves the
    source as it is, if it is still there.
    """

    target: str
    source: str
    writer_id: bytes | None
    event_number: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a segment. Answered by Done."""

    segment: str


@dataclass(frozen=True, slots=True)
class ListNames:
    """Names that begin with `prefix` and come behind `after`, ascending. Answered by Names."""

    prefix: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class CheckMailbox:
    """Have the store poll its mailbox in Tier 2 now: there are messages.

    Answered by Done, before it checks.
    """


Request = (
    HandshakeRequest
    | LastEvent
    | Append
    | Create
    | Describe
    | Merge
    | Delete
    | ListNames
    | CheckMailbox
)

# --- answers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HandshakeReply:
    """What the other side must know of the store."""

    version: int
    store_id: str
    append_bytes_max: int


@dataclass(frozen=True, slots=True)
class EventNumber:
    """-1 for none."""

    number: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Durable, beginning at this offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The segment has this event, or a later one of the same writer; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Done:
    """It is so, durably."""


@dataclass(frozen=True, slots=True)
class Description:
    """A segment as acknowledged."""

    segment_id: int
    start_offset: int
    length: int
    sealed: bool
    container_id: int


@dataclass(frozen=True, slots=True)
class Names:
    """Ascending; `more` if there are further ones behind the last."""

    names: tuple[str, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was changed, but for `AWAY` of an append or a merge, whose outcome may be unknown."""

    code: int
    error: str
    """The class of the error."""
    message: str


Answer = HandshakeReply | EventNumber | Stored | Duplicate | Done | Description | Names | Refused

_PROSE_MAX = 4000


def encode(request: int, message: Request | Answer) -> tuple[Buffer, ...]:
    """A message as one frame, in pieces, so that an append's bytes are not copied.

    Names are such as may name a segment.
    """
    kind, body = _ENCODERS[type(message)](message)
    data: Buffer = message.data if isinstance(message, Append) else b""
    length = _HEAD.size + len(body) + len(data)
    head = _LENGTH.pack(length) + _HEAD.pack(kind, request) + body
    return (head, data) if len(data) else (head,)


def frame_length(prefix: Buffer, length_max: int) -> int:
    """What follows the four bytes before a frame. Raises LocalProtocolError."""
    length = int(_LENGTH.unpack(prefix)[0])
    if length < _HEAD.size:
        raise LocalProtocolError(
            Code.MALFORMED, f"a frame of {length} bytes has no room for its head"
        )
    if length > length_max:
        raise LocalProtocolError(
            Code.TOO_LARGE, f"a frame of {length} bytes is over the limit of {length_max}"
        )
    return length


def decode_request(frame: bytes) -> tuple[int, Request]:
    """The number and the message of a frame (without its length). Raises LocalProtocolError."""
    # The table holds nothing else.
    return _decode(frame, _REQUESTS, "request")  # type: ignore[return-value]


def decode_answer(frame: bytes) -> tuple[int, Answer]:
    """The same of what the store says."""
    return _decode(frame, _ANSWERS, "answer")  # type: ignore[return-value]


class _Body:
    """What is left of a frame."""

    def __init__(self, frame: bytes, position: int) -> None:
        self._frame = frame
        self._position = position

    def unpack(self, shape: struct.Struct) -> tuple[int, ...]:
        """Fixed fields."""
        values = shape.unpack_from(self._frame, self._position)
        self._position += shape.size
        return values

    def text(self) -> str:
        """A length and UTF-8."""
        (length,) = self.unpack(_SHORT)
        return self.bytes(length).decode()

    def bytes(self, length: int) -> bytes:
        """So many bytes."""
        end = self._position + length
        if end > len(self._frame):
            raise struct.error(
                f"{length} bytes announced, {len(self._frame) - self._position} left"
            )
        taken = self._frame[self._position : end]
        self._position = end
        return taken

    def rest(self) -> memoryview:
        """All that is left."""
        return memoryview(self._frame)[self._position :]


def _decode(
    frame: bytes, table: dict[int, Callable[[_Body], object]], what: str
) -> tuple[int, object]:
    if len(frame) < _HEAD.size:
        raise LocalProtocolError(
            Code.MALFORMED, f"a frame of {len(frame)} bytes has no room for its head"
        )
    kind, request = _HEAD.unpack_from(frame)
    decoder = table.get(kind)
    if decoder is None:
        raise LocalProtocolError(
            Code.REQUEST_UNKNOWN, f"kind {kind} is no {what} of version {VERSION}", request
        )
    try:
        return request, decoder(_Body(frame, _HEAD.size))
    except (struct.error, UnicodeDecodeError) as error:
        raise LocalProtocolError(
            Code.MALFORMED, f"{what} of kind {kind}: {error}", request
        ) from None


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


def _prose(text: str) -> bytes:
    """Words for people: cut where they get long, and never refused."""
    return _text(text[:_PROSE_MAX].encode("utf-8", "replace").decode())


def _decode_hello(body: _Body) -> HandshakeRequest:
    magic = body.bytes(len(MAGIC))
    if magic != MAGIC:
        raise struct.error(f"it begins with {magic!r}, not {MAGIC!r}")
    return HandshakeRequest(*body.unpack(_SHORT))


def _decode_last_event(body: _Body) -> LastEvent:
    writer_id = body.bytes(WRITER_BYTES)
    return LastEvent(body.text(), writer_id)


def _decode_append(body: _Body) -> Append:
    writer_id, number = body.unpack(_EVENT)
    # "16s" gives bytes.
    return Append(body.text(), writer_id, number, body.rest())  # type: ignore[arg-type]


def _decode_merge(body: _Body) -> Merge:
    (has_writer,) = body.bytes(1)
    writer_id, number = body.unpack(_EVENT)
    target = body.text()
    source = body.text()
    # "16s" gives bytes.
    writer = writer_id if has_writer else None
    return Merge(target, source, writer, number)  # type: ignore[arg-type]


def _decode_handshake_reply(body: _Body) -> HandshakeReply:
    version, append_bytes_max = body.unpack(_HANDSHAKE_REPLY)
    return HandshakeReply(version, body.text(), append_bytes_max)


def _decode_description(body: _Body) -> Description:
    segment_id, start_offset, length, sealed, container_id = body.unpack(_SEGMENT)
    return Description(segment_id, start_offset, length, bool(sealed), container_id)


def _decode_names(body: _Body) -> Names:
    (more,) = body.bytes(1)
    (count,) = body.unpack(_COUNT)
    return Names(tuple(body.text() for _ in range(count)), bool(more))


def _decode_refused(body: _Body) -> Refused:
    (code,) = body.unpack(_SHORT)
    error = body.text()
    return Refused(code, error, body.text())


_REQUESTS: dict[int, Callable[[_Body], object]] = {
    1: _decode_hello,
    2: _decode_last_event,
    3: _decode_append,
    4: lambda body: Create(body.text()),
    5: lambda body: Describe(body.text()),
    6: _decode_merge,
    7: lambda body: Delete(body.text()),
    8: lambda body: ListNames(body.text(), body.text()),
    9: lambda _body: CheckMailbox(),
}
_ANSWERS: dict[int, Callable[[_Body], object]] = {
    129: _decode_handshake_reply,
    130: lambda body: EventNumber(*body.unpack(_NUMBER)),
    131: lambda body: Stored(*body.unpack(_NUMBER)),
    132: lambda _body: Duplicate(),
    133: lambda _body: Done(),
    134: _decode_description,
    135: _decode_names,
    255: _decode_refused,
}
_NO_WRITER = bytes(WRITER_BYTES)
_ENCODERS: dict[type, Callable[..., tuple[int, bytes]]] = {
    HandshakeRequest: lambda m: (1, MAGIC + _SHORT.pack(m.version)),
    LastEvent: lambda m: (2, m.writer_id + _text(m.segment)),
    Append: lambda m: (3, _EVENT.pack(m.writer_id, m.event_number) + _text(m.segment)),
    Create: lambda m: (4, _text(m.segment)),
    Describe: lambda m: (5, _text(m.segment)),
    Merge: lambda m: (
        6,
        bytes([m.writer_id is not None])
        + _EVENT.pack(m.writer_id or _NO_WRITER, m.event_number)
        + _text(m.target)
        + _text(m.source),
    ),
    Delete: lambda m: (7, _text(m.segment)),
    ListNames: lambda m: (8, _text(m.prefix) + _text(m.after)),
    CheckMailbox: lambda _m: (9, b""),
    HandshakeReply: lambda m: (
        129,
        _HANDSHAKE_REPLY.pack(m.version, m.append_bytes_max) + _text(m.store_id),
    ),
    EventNumber: lambda m: (130, _NUMBER.pack(m.number)),
    Stored: lambda m: (131, _NUMBER.pack(m.offset)),
    Duplicate: lambda _m: (132, b""),
    Done: lambda _m: (133, b""),
    Description: lambda m: (
        134,
        _SEGMENT.pack(m.segment_id, m.start_offset, m.length, m.sealed, m.container_id),
    ),
    Names: lambda m: (
        135,
        bytes([m.more]) + _COUNT.pack(len(m.names)) + b"".join(map(_text, m.names)),
    ),
    Refused: lambda m: (255, _SHORT.pack(m.code) + _prose(m.error) + _prose(m.message)),
}
