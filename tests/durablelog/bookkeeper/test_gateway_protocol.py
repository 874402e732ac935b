"""The bytes and texts between engine and gateway are those of the page that describes them."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

import pytest

from durablelog.bookkeeper.gateway.gateway_protocol import (
    ACK,
    BEAT,
    ENTRY,
    HANDSHAKE_REPLY,
    HELLO,
    RANGE,
    RECORD,
    custom_text,
    hello,
    parse_description,
)
from durablelog.bookkeeper.gateway.gateway_settings import GatewaySettings
from durablelog.bookkeeper.gateway.handshake import HungUpError, handshake
from durablelog.bookkeeper.ledger_store import EMPTY, OK, LedgerState, Replication
from segmentstore.contracts.ledgers import DigestType

PAGE = Path(__file__).resolve().parents[3] / "docs" / "formats" / "bookkeeper-data-plane.md"


def test_the_example_of_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    said = [
        bytes.fromhex(line)
        for line in re.findall(r"^[<>] ((?:[0-9a-f]{2} ?)+)$", text, re.MULTILINE)
    ]
    assert said == [
        hello(b"A", "sesame"),
        HANDSHAKE_REPLY.pack(OK, 1),
        ENTRY.pack(5, 2, 0) + b"hello",
        ENTRY.pack(3, 2, 1) + b"you",
        ENTRY.pack(0, 2, 2),
        ACK.pack(2, 0, 2, OK, 0),
        ACK.pack(BEAT, 1, 1, OK, 4 << 20),
        ACK.pack(2, 2, 1, -101, -1),
        hello(b"R", "sesame"),
        RANGE.pack(1, 7, 0, 0),
        RECORD.pack(OK, 5, 0) + b"hello",
        RECORD.pack(OK, 0, -1),
    ]


def test_custom_metadata_may_hold_any_bytes() -> None:
    assert custom_text({}) == ""
    assert custom_text({"store": b"x y\n", "größe": b""}) == "c3RvcmU= eCB5Cg==\nZ3LDtsOfZQ== "


def test_a_description_is_read() -> None:
    lines = [
        "12",
        "CLOSED",
        "41",
        "4242",
        "3 3 2",
        "CRC32C",
        "1700000000123",
        "2",
        "0 127.0.0.1:3181 127.0.0.1:3180",
        "17 127.0.0.1:3181 127.0.0.1:3182",
        "c3RvcmU= eCB5Cg==",
        "YQ== ",
    ]
    ledger = parse_description(lines)
    assert (ledger.ledger_id, ledger.state, ledger.last_entry, ledger.length) == (
        12,
        LedgerState.CLOSED,
        41,
        4242,
    )
    assert ledger.replication == Replication(3, 3, 2)
    assert ledger.bookies == ("127.0.0.1:3181", "127.0.0.1:3182")
    assert list(ledger.custom.items()) == [("store", b"x y\n"), ("a", b"")]
    assert [ensemble.first_entry for ensemble in ledger.ensembles] == [0, 17]
    assert ledger.ensembles[0].bookies == ("127.0.0.1:3181", "127.0.0.1:3180")
    assert (ledger.digest_type, ledger.created_ms) == (DigestType.CRC32C, 1_700_000_000_123)
    opened = parse_description(["0", "IN_RECOVERY", "-1", "0", "2 2 2", "null", "-1", "1", "0 a:1"])
    assert (opened.digest_type, opened.created_ms, opened.bookies) == (None, -1, ("a:1",))
    assert (opened.state, opened.last_entry, opened.custom) == (LedgerState.IN_RECOVERY, EMPTY, {})


def test_a_password_is_not_shown() -> None:
    settings = GatewaySettings(
        metadata_uri="zk+hierarchical://somewhere:2181/ledgers", password=b"sesame"
    )
    assert "sesame" not in repr(settings)
    assert (
        settings.client_settings().splitlines()[0]
        == "metadataServiceUri=zk+hierarchical://somewhere:2181/ledgers"
    )


def test_a_gateway_that_hangs_up_is_distinguished_from_one_that_is_away() -> None:
    """So it does on a version that it does not know, and can say no more: the store asks again."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(HELLO.size)
        writer.close()

    async def scenario(path: str) -> None:
        server = await asyncio.start_unix_server(hang_up, path)
        with pytest.raises(HungUpError, match="hung up at the handshake"):
            await handshake(path, "sesame")
        server.close()
        await server.wait_closed()

    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        asyncio.run(scenario(f"{folder}/s"))
