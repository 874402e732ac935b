"""What jobs and the owner of a container say to each other, and how it is written down
(docs/formats/mailbox.md).

Rules of this file:

- a message is JSON: a version, a type, a body, and the CRC32C of the body as this file writes it;
- nothing in a message is believed but its form. Every number is in the range its record allows,
  every list is bounded, and anything else is a MessageFormatError. Its claims are checked by the
  owner;
- a field that is not known is passed over, a version that is not known is refused;
- a message names itself: container, job and message id stand in it as in the name of its object.
  And it says for which store it is, for several may keep their objects in one place.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from segmentstore.contracts.checksum import Buffer, crc32c
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from tier2.object_names import NAME_CHARACTERS_MAX, MessageKey, message_name

VERSION: Final = 1
MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A longer message is refused unread."""
CHUNKS_MAX: Final = 32_768
"""Chunks of one proposal, old and new together."""
REPLACEMENT_CHUNKS_MAX: Final = 16_384
"""Old chunks of one replacement, and new ones: it goes through the log in one operation."""
ORPHAN_NAMES_MAX: Final = 1000
"""Names in one request."""
REASON_CHARACTERS_MAX: Final = 1000
INTEGER_MAX: Final = 2**63 - 1
"""Of every number: a signed 64-bit integer holds it, as the tables of jobs have them."""

Verdict: TypeAlias = Literal[
    "committed",
    "committed_in_part",
    "refused_changed",
    "refused_unknown_segment",
    "refused_checksum",
    "refused_missing_object",
    "refused_malformed",
    "expired",
    "condemned",
    "exported",
    "failed",
]
"""What an owner answers.

`committed`: every replacement is in the log. `committed_in_part`: some are; `detail["refused"]`
lists the others. `refused_changed`: the chunks are not those any more. `refused_unknown_segment`:
the segments are deleted. `refused_checksum`: the object or a block in it is not what was proposed.
`refused_missing_object`: it is not there. `refused_malformed`: the message breaks a rule of its
form, or claims what cannot be. `expired`: the object is too old. `condemned`: the request was
carried out, name by name in the detail. `exported`: `detail["manifest"]` is the snapshot's.
`failed`: the owner tried and could not, the reason says why; asking again may help.
"""
VERDICTS: Final[tuple[str, ...]] = get_args(Verdict)
NO_DETAIL: Final[dict[str, Any]] = {}
"""Shared by all answers without a detail, and never changed."""


class MessageFormatError(Exception):
    """Bytes are not the message they should be."""


class Replacement(NamedTuple):
    """One stretch of a segment that lies elsewhere too: the same bytes, other chunks."""

    segment_id: int
    old: tuple[ChunkRecord, ...]
    """Neighbours, exactly as the catalog had them; at least one."""
    new: tuple[ChunkRecord, ...]
    """Neighbours that cover exactly the same range, all in the proposal's object; at least one."""


class ReplaceProposal(NamedTuple):
    """An object of a job that holds bytes of segments, to be read from there from now on."""

    container_id: int
    job_id: str
    message_id: str
    object: ObjectRecord
    replacements: tuple[Replacement, ...]
    created_ms: int
    """Wall time of the job, for people."""
    store_id: str = ""
    """Of the store whose owner is meant, a UUID; empty in what older versions wrote."""

    @property
    def key(self) -> MessageKey:
        """Which message this is."""
        return MessageKey(self.container_id, self.job_id, self.message_id)


class OrphanDeletionRequest(NamedTuple):
    """Objects that a job found without a reference: the owner is to check each, and to make garbage
    of those that are unreferenced.
    """

    container_id: int
    job_id: str
    message_id: str
    names: tuple[str, ...]
    """1 to ORPHAN_NAMES_MAX."""
    older_than_ms: int
    """Wall time, milliseconds since 1970 UTC: only objects last modified before it are meant."""
    store_id: str = ""
    """Of the store whose owner is meant, a UUID; empty in what older versions wrote."""

    @property
    def key(self) -> MessageKey:
        """Which message this is."""
        return MessageKey(self.container_id, self.job_id, self.message_id)


class ExportRequest(NamedTuple):
    """The owner is to export its catalog now."""

    container_id: int
    job_id: str
    message_id: str
    store_id: str = ""
    """Of the store whose owner is meant, a UUID; empty in what older versions wrote."""

    @property
    def key(self) -> MessageKey:
        """Which message this is."""
        return MessageKey(self.container_id, self.job_id, self.message_id)


class Answer(NamedTuple):
    """What became of a message.

    It is never a licence to delete anything: that is the owner's alone.
    """

    container_id: int
    job_id: str
    message_id: str
    verdict: Verdict
    reason: str = ""
    """One sentence; empty where all is as was asked for."""
    detail: dict[str, Any] = NO_DETAIL
    store_id: str = ""
    """Of the store whose owner answers; empty in what older versions wrote."""

    @property
    def key(self) -> MessageKey:
        """Which message it answers."""
        return MessageKey(self.container_id, self.job_id, self.message_id)


Message: TypeAlias = ReplaceProposal | OrphanDeletionRequest | ExportRequest


def one_sentence(text: object) -> str:
    """What may stand as an answer's reason: on one line, and not too long."""
    said = "".join(
        each if each.isprintable() else " " for each in str(text)[:REASON_CHARACTERS_MAX]
    )
    return " ".join(said.split())


# --- writing --------------------------------------------------------------------------------------


def encode(message: Message | Answer) -> bytes:
    """The bytes of a message. ValueError for one that `parse` would refuse, with its reason."""
    kind, body = _KINDS_BY_CLASS[type(message)], _to_body(message)
    try:
        checked = _canonical(body)
        data = _canonical({"version": VERSION, "type": kind, "crc32c": f"{crc32c(checked):08x}"})[
            :-1
        ]
        data += b',"body":' + checked + b"}"
        parse(data)
    except MessageFormatError as error:
        raise ValueError(str(error)) from error
    except TypeError as error:
        raise ValueError(f"not JSON: {error}") from error
    return data


def _canonical(value: object) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def _to_body(message: Message | Answer) -> dict[str, Any]:
    if isinstance(message, ReplaceProposal):
        numbers: dict[str, int] = {}
        replacements = [
            {
                "segment_id": segment_id,
                "old": [_to_row(chunk, numbers) for chunk in old],
                "new": [_to_row(chunk, numbers) for chunk in new],
            }
            for segment_id, old, new in message.replacements
        ]
        return {
            **_to_key(message),
            "object": message.object._asdict(),
            "names": list(numbers),
            "replacements": replacements,
            "created_ms": message.created_ms,
        }
    body = message._asdict()
    if not message.store_id:
        del body["store_id"]
    return body


def _to_key(message: ReplaceProposal) -> dict[str, Any]:
    key = {
        "container_id": message.container_id,
        "job_id": message.job_id,
        "message_id": message.message_id,
    }
    return {**key, "store_id": message.store_id} if message.store_id else key


def _to_row(chunk: ChunkRecord, numbers: dict[str, int]) -> list[int]:
    number = numbers.setdefault(chunk.object_name, len(numbers))
    return [
        chunk.start_offset,
        chunk.length,
        number,
        chunk.block_offset,
        chunk.block_segment_id,
        chunk.block_start_offset,
    ]


# --- reading --------------------------------------------------------------------------------------


def parse(data: Buffer) -> Message | Answer:
    """The message in `data`. Raises MessageFormatError; O(its length)."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise MessageFormatError(f"{len(data)} bytes; the most is {MESSAGE_BYTES_MAX}")
    try:
        document = json.loads(bytes(data), parse_float=_refused, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise MessageFormatError(f"not JSON: {error}") from None
    fields = _object(document, "the message")
    version = _integer(fields, "version")
    if version != VERSION:
        raise MessageFormatError(f"version {version}; this program knows version {VERSION}")
    kind, body = _text(fields, "type", 40), _object(fields.get("body"), "body")
    recorded = _text(fields, "crc32c", 8)
    actual = f"{crc32c(_body_bytes(body)):08x}"
    if actual != recorded:
        raise MessageFormatError(f"checksum {actual} where {recorded} is recorded")
    reader = _READERS.get(kind)
    if reader is None:
        raise MessageFormatError(f"type {kind!r} is not known to this program")
    return reader(body)


def _body_bytes(body: dict[str, Any]) -> bytes:
    try:
        return _canonical(body)
    except (ValueError, RecursionError) as error:
        raise MessageFormatError(f"body: {error}") from None


def _refused(text: str) -> object:
    raise ValueError(f"{text} is not an integer")


def _read_proposal(body: dict[str, Any]) -> ReplaceProposal:
    key = _key(body)
    record = _object(body.get("object"), "object")
    stored = ObjectRecord(
        _text(record, "name", NAME_CHARACTERS_MAX),
        _integer(record, "size", 1),
        _integer(record, "created_ms"),
    )
    names = [
        _as_text(name, "names", NAME_CHARACTERS_MAX) for name in _list(body, "names", CHUNKS_MAX)
    ]
    replacements: list[Replacement] = []
    chunks = 0
    for each in _list(body, "replacements", CHUNKS_MAX):
        fields = _object(each, "a replacement")
        old, new = (_chunks(fields, side, names) for side in ("old", "new"))
        chunks += len(old) + len(new)
        if chunks > CHUNKS_MAX:
            raise MessageFormatError(f"more than {CHUNKS_MAX} chunks")
        replacements.append(Replacement(_integer(fields, "segment_id"), old, new))
    return ReplaceProposal(
        *key, stored, tuple(replacements), _integer(body, "created_ms"), _store(body)
    )


def _chunks(fields: dict[str, Any], side: str, names: list[str]) -> tuple[ChunkRecord, ...]:
    found: list[ChunkRecord] = []
    for row in _list(fields, side, REPLACEMENT_CHUNKS_MAX):
        if type(row) is not list or len(row) < 6:
            raise MessageFormatError(f"{side}: a chunk is a list of six integers")
        start, length, number, block_offset, block_segment_id, block_start = (
            _as_integer(each, side) for each in row[:6]
        )
        if length < 1 or start + length > INTEGER_MAX or block_start + length > INTEGER_MAX:
            raise MessageFormatError(f"{side}: {length} bytes from {start} are no chunk")
        if number >= len(names):
            raise MessageFormatError(f"{side}: there is no name {number}")
        if found and found[-1].end_offset != start:
            raise MessageFormatError(
                f"{side}: a chunk begins at {start}, the one before ends at {found[-1].end_offset}"
            )
        found.append(
            ChunkRecord(start, length, names[number], block_offset, block_segment_id, block_start)
        )
    return tuple(found)


def _read_orphan_deletion(body: dict[str, Any]) -> OrphanDeletionRequest:
    names = _list(body, "names", ORPHAN_NAMES_MAX)
    texts = tuple(_as_text(name, "names", NAME_CHARACTERS_MAX) for name in names)
    return OrphanDeletionRequest(*_key(body), texts, _integer(body, "older_than_ms"), _store(body))


def _read_export(body: dict[str, Any]) -> ExportRequest:
    return ExportRequest(*_key(body), _store(body))


def _read_answer(body: dict[str, Any]) -> Answer:
    verdict: Any = _text(body, "verdict", 40)
    if verdict not in VERDICTS:
        raise MessageFormatError(f"verdict {verdict!r} is not known to this program")
    reason = _text(body, "reason", REASON_CHARACTERS_MAX)
    return Answer(*_key(body), verdict, reason, _object(body.get("detail"), "detail"), _store(body))


def _key(body: dict[str, Any]) -> MessageKey:
    key = MessageKey(
        _integer(body, "container_id"), _text(body, "job_id", 16), _text(body, "message_id", 80)
    )
    try:
        message_name(key)
    except ValueError as error:
        raise MessageFormatError(str(error)) from None
    return key


def _store(body: dict[str, Any]) -> str:
    if "store_id" not in body:
        return ""
    text = _text(body, "store_id", 36)
    try:
        uuid.UUID(text)
    except ValueError:
        raise MessageFormatError(f"store_id {text!r} is not a UUID") from None
    return text


_READERS: Final[Mapping[str, Callable[[dict[str, Any]], Message | Answer]]] = {
    "replace": _read_proposal,
    "condemn": _read_orphan_deletion,
    "export": _read_export,
    "answer": _read_answer,
}
_KINDS_BY_CLASS: Final[Mapping[type, str]] = {
    ReplaceProposal: "replace",
    OrphanDeletionRequest: "condemn",
    ExportRequest: "export",
    Answer: "answer",
}


def _object(value: object, what: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise MessageFormatError(f"{what} is not an object")
    return value


def _list(fields: dict[str, Any], name: str, most: int) -> Iterable[Any]:
    value = fields.get(name)
    if type(value) is not list or not 1 <= len(value) <= most:
        raise MessageFormatError(f"{name} is not a list of 1 to {most}")
    return value


def _integer(fields: dict[str, Any], name: str, least: int = 0) -> int:
    return _as_integer(fields.get(name), name, least)


def _as_integer(value: object, name: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= INTEGER_MAX:
        raise MessageFormatError(f"{name} is not an integer of {least} to 2^63 - 1")
    return value


def _text(fields: dict[str, Any], name: str, most: int) -> str:
    return _as_text(fields.get(name), name, most)


def _as_text(value: object, name: str, most: int) -> str:
    if type(value) is not str or len(value) > most or not value.isprintable():
        raise MessageFormatError(f"{name} is not a text of at most {most} characters")
    return value
