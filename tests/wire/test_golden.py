"""Frames that Pravega's own codec wrote, release 0.13.0, and the commands that they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from segmentstore.wire.codec import encode, encode_parts
from segmentstore.wire.commands import (
    NO_VERSION,
    NOT_EXISTS,
    NOT_SET,
    AppendBlockEnd,
    AppendSetup,
    AuthTokenCheckFailed,
    Command,
    ConditionalAppend,
    ConditionalAttributeUpdate,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    CreateSegment,
    CreateTableSegment,
    DataAppended,
    ErrorMessage,
    Hello,
    InvalidEventNumber,
    KeepAlive,
    MergedSource,
    MergeSegments,
    MergeSegmentsBatch,
    NoSuchSegment,
    ReadSegment,
    ReadTable,
    ReadTableKeys,
    RemoveTableKeys,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentRead,
    SegmentsBatchMerged,
    SegmentsMerged,
    SetupAppend,
    StreamSegmentInfo,
    TableEntriesUpdated,
    TableKey,
    TableKeysRead,
    TableRead,
    UpdateTableEntries,
    WrongHost,
)
from tests.wire.frames import decode_frame

WRITER = bytes.fromhex("112233445566778899aabbccddeeff00")
FRAMES = {
    name: bytes.fromhex(frame)
    for name, frame in map(
        str.split, Path(__file__).with_name("golden.txt").read_text("ascii").splitlines()
    )
}
COMMANDS: dict[str, Command] = {
    "Hello": Hello(17, 5),
    "KeepAlive": KeepAlive(),
    "SetupAppend": SetupAppend(7, WRITER, "s/t/0.#epoch.0", ""),
    "AppendSetup": AppendSetup(7, "s/t/0.#epoch.0", WRITER, NOT_SET),
    "AppendBlockEnd": AppendBlockEnd(WRITER, 3, b"abc", 1, 5, 7),
    "ConditionalAppend": ConditionalAppend(WRITER, 1, 0, b"\x00\x00\x00\x00\x00\x00\x00\x03abc", 7),
    "ConditionalBlockEnd": ConditionalBlockEnd(WRITER, 1, 0, b"abc", 7),
    "DataAppended": DataAppended(WRITER, 5, NOT_SET, 7, 11),
    "ConditionalCheckFailed": ConditionalCheckFailed(WRITER, 5, 7),
    "InvalidEventNumber": InvalidEventNumber(WRITER, 7, "", 5),
    "ReadSegment": ReadSegment("s/t/0", 9, 1024, "", 7),
    "SegmentRead": SegmentRead("s/t/0", 9, True, False, b"abc", 7),
    "NoSuchSegment": NoSuchSegment(7, "s/t/0", "", -1),
    "SegmentIsSealed": SegmentIsSealed(7, "s/t/0", "", 5),
    "SegmentIsTruncated": SegmentIsTruncated(7, "s/t/0", 100, "", 9),
    "WrongHost": WrongHost(7, "s/t/0", "", ""),
    "AuthTokenCheckFailed": AuthTokenCheckFailed(7, "", 1),
    "ErrorMessage": ErrorMessage(7, "s/t/0", "bad", 0),
    "CreateSegment": CreateSegment(7, "s/t/0", 0, 0, "", 0),
    "SegmentCreated": SegmentCreated(7, "s/t/0"),
    "StreamSegmentInfo": StreamSegmentInfo(7, "s/t/0", True, False, False, 1000, 11, 0),
    "MergeSegments": MergeSegments(7, "t", "s", "", (ConditionalAttributeUpdate(WRITER, 4, 2, 1),)),
    "SegmentsMerged": SegmentsMerged(7, "t", "s", 11),
    "MergeSegmentsBatch": MergeSegmentsBatch(7, "t", ("a", "b"), ""),
    "SegmentsBatchMerged": SegmentsBatchMerged(
        7, "t", (MergedSource("a", 3), MergedSource("b", 6))
    ),
    "CreateTableSegment": CreateTableSegment(7, "tbl", "", False, 0, 0),
    "UpdateTableEntries": UpdateTableEntries(
        7, "tbl", "", ((TableKey(b"k", NOT_EXISTS), b"vv"),), -1
    ),
    "TableEntriesUpdated": TableEntriesUpdated(7, (0,)),
    "ReadTable": ReadTable(7, "tbl", "", (TableKey(b"k", NO_VERSION),)),
    "TableRead-of-an-absent-key": TableRead(7, "tbl", ((TableKey(b"k", NOT_EXISTS), b""),)),
    "ReadTableKeys": ReadTableKeys(7, "tbl", "", 10, b"c", b"", b"", b""),
    "TableKeysRead": TableKeysRead(7, "tbl", (TableKey(b"k", 3),), b"c"),
    "RemoveTableKeys-of-an-empty-key": RemoveTableKeys(
        7, "tbl", "", (TableKey(b"", NO_VERSION),), -1
    ),
    "SegmentDeleted-with-a-name-of-all-kinds": SegmentDeleted(7, "\u00e9\0\U0001f600"),
}


def test_every_frame_has_its_command() -> None:
    assert list(FRAMES) == list(COMMANDS)
    assert len(FRAMES) == 34


@pytest.mark.parametrize("name", COMMANDS)
def test_a_frame_of_pravega_is_read_and_written_as_it_is(name: str) -> None:
    command, frame = COMMANDS[name], FRAMES[name]
    read = decode_frame(frame)
    assert (type(read), read) == (type(command), command)
    assert encode(command) == frame
    assert encode(read) == frame
    assert b"".join(encode_parts(command)) == frame
