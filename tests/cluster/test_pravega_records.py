"""Nodes as Pravega's Controller writes and reads them: the bytes of the format's page."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.cluster.pravega_records import PravegaHost, decode_mapping, encode_host
from segmentstore.contracts.errors import DataCorruptionError
from tests.support.suites import examples

ROOT = Path(__file__).resolve().parents[2]
HOST = PravegaHost("127.0.0.1", 22345)


def page_bytes() -> tuple[bytes, bytes]:
    page = (ROOT / "docs/formats/pravega-nodes.md").read_text(encoding="utf-8")
    block = re.findall(r"```\n([0-9a-f \n]+)```", page)[0]
    host, mapping = block.split("\n\n")
    return bytes.fromhex(host), bytes.fromhex(mapping)


def test_the_format_page_has_these_bytes() -> None:
    host, mapping = page_bytes()
    assert encode_host(HOST) == host
    assert decode_mapping(mapping, "map") == dict.fromkeys(range(4), HOST)
    assert HOST.node_name == "127.0.0.1:22345:"


def revision(body: bytes, more: bytes = b"") -> bytes:
    count = 2 if more else 1
    return bytes((0, 0, count, 0)) + len(body).to_bytes(4) + body + more


def test_counts_of_each_size_and_later_revisions_are_read() -> None:
    numbers = range(300)
    body = b"".join(number.to_bytes(4) for number in numbers)
    later = b"\x01" + (2).to_bytes(4) + b"xx"
    for count in ((0x8000 | 300).to_bytes(2), (0xC0000000 | 300).to_bytes(4)):
        containers = revision(count + body + b"later", later)
        mapping = revision(b"\x01" + encode_host(HOST) + containers)
        assert decode_mapping(mapping, "map") == dict.fromkeys(numbers, HOST)
    assert decode_mapping(revision(b"\x00"), "map") == {}


def test_a_container_with_two_hosts_is_refused() -> None:
    one = revision(b"\x01" + (7).to_bytes(4))
    other = encode_host(PravegaHost("h", 1))
    with pytest.raises(DataCorruptionError, match="container 7 has two hosts"):
        decode_mapping(revision(b"\x02" + encode_host(HOST) + one + other + one), "map")


@settings(max_examples=examples(500))
@given(st.integers(0, 59), st.binary(max_size=8))
def test_damage_raises_nothing_else(kept: int, rest: bytes) -> None:
    data = page_bytes()[1][:kept]
    with suppress(DataCorruptionError):
        decode_mapping(data + rest, "map")
