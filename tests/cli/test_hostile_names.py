"""Names that would speak to a terminal: not taken by a restore, and shown harmless by every
command.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from durablelog.operations import CreateOperation
from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.errors import InvalidNameError
from segmentstore.contracts.visible import visible
from tests.cli.shell import ROOT, segmentstore
from tests.recovery.planted import make_store, metadata_of, put_into_log
from tests.store.harness import open_lazy, read_all, run
from tier2.object_builder import ObjectBuilder
from tier2.object_names import object_name

CLEAR = "\x1b[2J\x1b[31mred"
"""A terminal that gets it is cleared, and red."""
REFUSED = [CLEAR, "two\nlines", "c1\x9b2J", "\x07bell", "back\rover", "nul\0"]
"""No caller may name a segment so."""
SHOWN = {
    "[red]markup[/red]": "[red]markup[/red]",
    ":warning: emoji": ":warning: emoji",
    "bidi\u202eevil": "bidi\\u202eevil",
    "line\u2028end": "line\\u2028end",
    "joined\u200dhere": "joined\\u200dhere",
    "tag\U000e0041": "tag\\U000e0041",
    "grüße/日本": "grüße/日本",
}
"""Names that segments may have, as people see them."""


def plant(bucket: Path, names: list[str], *, raw: bytes | None = None) -> None:
    """An object of container 0 as its owner would have written it: a block for each name, of the
    segments 1, 2, ...
    """
    builder = ObjectBuilder(0, 1, 64)
    for segment_id, name in enumerate(names, 1):
        builder.add(segment_id, 0, [b"data of %d" % segment_id], segment_name=name)
    body = b"".join(bytes(part) for part in builder.parts)
    if raw is not None:
        # In the place of a name of as many bytes, which is that of the last block; with the
        # checksum that belongs to it.
        place = body.rindex(names[-1].encode())
        begin = body.rindex(b"SSBLOCK\n")
        (header_length,) = struct.unpack_from(">I", body, begin + 8)
        header = bytearray(body[begin : begin + header_length - 4])
        header[place - begin : place - begin + len(raw)] = raw
        body = (
            body[:begin]
            + header
            + crc32c(header).to_bytes(4, "big")
            + body[begin + header_length :]
        )
    path = bucket / object_name(0, 1, "flush", os.urandom(16))
    path.parent.mkdir(parents=True)
    path.write_bytes(body)


def create_as_of_old(store: Path, name: str) -> int:
    """A segment of an unchecked name; its id."""
    number = metadata_of(store).sequence_number + 1
    put_into_log(store, CreateOperation(name, sequence_number=number))
    return number


def listed(store: Path) -> dict[str, Any]:
    return {row["name"]: row for row in segmentstore("ls", store, "--json").json_lines()}


def assert_harmless(text: str) -> None:
    assert [each for each in text if not each.isprintable() and each != "\n"] == []


def test_refused_names_are_replaced_by_a_restore_and_reported(tmp_path: Path) -> None:
    names = ["good", *REFUSED, *SHOWN, "abcdefgh"]
    plant(tmp_path / "bucket", names, raw=b"ab\xff\xfe\x1b[1m")
    report = segmentstore(
        "restore", (tmp_path / "bucket").as_uri(), tmp_path / "new", "--dry-run", "--json"
    ).json()
    notes = " ".join(note for each in report["containers"][0]["segments"] for note in each["notes"])
    assert all(repr(name) in notes for name in REFUSED)
    new = tmp_path / "new"
    shown = segmentstore("restore", (tmp_path / "bucket").as_uri(), new)
    assert shown.code == ExitCode.DONE
    text = shown.out.decode()
    assert_harmless(text)
    for name in REFUSED:
        # A table folds long lines: what is compared is what a person reads of it.
        assert visible(repr(name))[1:-1].split()[0].split("[")[0] in text
    assert text.count("no segment may have") == len(REFUSED) + 1
    made_up = {f"recovered/00000000/{id_}" for id_ in (*range(2, 2 + len(REFUSED)), len(names))}

    async def body() -> None:
        async with open_lazy(new, tier2=(tmp_path / "bucket").as_uri()) as store:
            assert {info.name async for info in store.list_segments()} == {"good", *SHOWN, *made_up}
            # Not a byte is lost, and all of them can be read and deleted.
            for segment_id, name in enumerate(names, 1):
                called = made if (made := f"recovered/00000000/{segment_id}") in made_up else name
                assert await read_all(store, called) == b"data of %d" % segment_id
                await store.delete(called)

    run(body())


def test_a_copy_of_the_metadata_is_not_believed_its_names_either(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    segment_id = create_as_of_old(store, CLEAR)
    assert segmentstore("checkpoint", store).code == ExitCode.DONE
    (store / "tier2").rename(tmp_path / "bucket")
    shown = segmentstore("restore", (tmp_path / "bucket").as_uri(), tmp_path / "new")
    assert shown.code == ExitCode.DONE
    assert_harmless(shown.out.decode())
    assert set(listed(tmp_path / "new")) == {"a", "b", "c", f"recovered/00000000/{segment_id}"}


def test_a_segment_of_old_with_such_a_name_is_read_and_deleted(tmp_path: Path) -> None:
    """As an earlier restore made it: the log has it, so it is."""
    store = make_store(tmp_path / "store")
    create_as_of_old(store, CLEAR)
    shown = segmentstore("ls", store)
    assert "\\x1b[2J" in shown.out.decode()
    assert_harmless(shown.out.decode())
    assert CLEAR in listed(store)

    async def body() -> None:
        async with open_lazy(store) as opened:
            await opened.append(CLEAR, b"x")
            assert await read_all(opened, CLEAR) == b"x"
            await opened.delete(CLEAR)
            with pytest.raises(InvalidNameError):
                await opened.create_segment(CLEAR + "2")

    run(body())


def test_every_command_shows_names_harmless_on_a_terminal(tmp_path: Path) -> None:
    async def body() -> None:
        async with open_lazy(tmp_path / "s") as store:
            for name in SHOWN:
                await store.create_segment(name)
                await store.append(name, b"x")
            await store.flush()

    run(body())
    for arguments in (("ls",), ("log",), ("objects",), ("verify",), ("info", "bidi\u202eevil")):
        shown = segmentstore(arguments[0], tmp_path / "s", *arguments[1:])
        assert shown.code == ExitCode.DONE
        assert_harmless(shown.out.decode())
    said = segmentstore("ls", tmp_path / "s").out.decode()
    assert all(shown in said for shown in SHOWN.values())
    refused = segmentstore("cat", tmp_path / "s", "gone\u202e")
    assert refused.code == ExitCode.REFUSED
    assert_harmless(refused.err)
    assert set(listed(tmp_path / "s")) == set(SHOWN)


def test_what_a_real_terminal_gets(tmp_path: Path) -> None:
    async def body() -> None:
        async with open_lazy(tmp_path / "s") as store:
            for name in SHOWN:
                await store.create_segment(name)

    run(body())
    master, slave = os.openpty()
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "segmentstore", "ls", str(tmp_path / "s")],
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"},
            stdout=slave,
            stderr=slave,
            stdin=subprocess.DEVNULL,
        )
        os.close(slave)
        got = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # EIO: the child is missing
                break
            if not piece:
                break
            got += piece
        assert child.wait() == ExitCode.DONE
    finally:
        os.close(master)
    text = got.decode()
    assert all(shown in text for shown in SHOWN.values())
    # rich's own bold and frames are there; nothing of a name is.
    assert not any(
        each in text for each in ("\u202e", "\u2028", "\u200d", "\U000e0041", "\x1b[31m", "⚠")
    )


def test_json_is_exact_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": "".join(SHOWN) + CLEAR + "\x9b\udcff\x7f"}
    output.print_json(value)
    said = capsys.readouterr().out
    assert json.loads(said) == value
    assert_harmless(said)
    assert "日本" in said


def test_titles_cells_and_messages_are_one_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    bad = f"[bold]{CLEAR}\n:smile:"
    output.out().print(output.table(bad, ("a", "b"), [(bad, Path(bad)), (None, [bad])]))
    output.out().print(output.pairs(bad, {bad: bad}))
    output.out().print(bad)
    output.print_error(bad)
    shown = capsys.readouterr()
    assert_harmless(shown.out + shown.err)
    assert shown.out.count("[bold]\\x1b[2J\\x1b[31mred\\n:smile:") >= 6
    assert shown.err == "segmentstore: [bold]\\x1b[2J\\x1b[31mred\\n:smile:\n"
