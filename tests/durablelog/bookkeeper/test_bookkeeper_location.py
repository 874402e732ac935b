"""What a bookkeeper:// URL may say, and that everything else is refused by a sentence that names
it.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.bookkeeper_url import is_bookkeeper_url
from durablelog.bookkeeper.ledger_store import Replication
from segmentstore.contracts.byte_sizes import GIB, KIB, MIB
from segmentstore.contracts.errors import ConfigError

parse = BookKeeperLocation.parse


def test_hosts_and_a_path_are_enough() -> None:
    location = parse("bookkeeper://zoo1:2181,zoo2:2182,zoo3/stores/one")
    assert location == BookKeeperLocation(
        hosts=("zoo1:2181", "zoo2:2182", "zoo3:2181"), path="/stores/one"
    )
    assert location.replication == Replication(3, 3, 2)
    assert location.degraded is None
    assert location.ledger_bytes == GIB
    assert location.metadata_uri == "zk+null://zoo1:2181;zoo2:2182;zoo3:2181/ledgers"
    assert location.url == "bookkeeper://zoo1:2181,zoo2:2182,zoo3:2181/stores/one"


def test_every_key_is_taken() -> None:
    location = parse(
        "bookkeeper://[::1]:2181/s?ensemble=5&write_quorum=4&ack_quorum=3&degraded=2/2/2"
        "&ledger_bytes=64MiB&ledgers=/bk/ledgers&gateway=127.0.0.1:9999"
        "&password_file=/etc/a%26b&zookeeper_auth_file=/etc/zk&acl=creator"
        "&session_timeout_s=30&zookeeper_scheme=sasl&client_settings=/etc/bk.properties"
    )
    assert location == BookKeeperLocation(
        hosts=("[::1]:2181",),
        path="/s",
        replication=Replication(5, 4, 3),
        degraded=Replication(2, 2, 2),
        ledger_bytes=64 * MIB,
        ledgers_root="/bk/ledgers",
        gateway="127.0.0.1:9999",
        password_file="/etc/a&b",
        zookeeper_auth_file="/etc/zk",
        acl="creator",
        session_timeout_s=30,
        zookeeper_scheme="sasl",
        client_settings="/etc/bk.properties",
    )
    assert location.metadata_uri == "zk+null://[::1]:2181/bk/ledgers"


@pytest.mark.parametrize(
    ("query", "replication"),
    [
        ("", (3, 3, 2)),
        ("ensemble=1", (1, 1, 1)),
        ("ensemble=2", (2, 2, 2)),
        ("ensemble=5", (5, 3, 2)),
        ("write_quorum=5", (5, 5, 3)),
        ("ack_quorum=3", (3, 3, 3)),
        ("ensemble=4&ack_quorum=4", (4, 4, 4)),
        ("ensemble=3&write_quorum=2", (3, 2, 2)),
    ],
)
def test_what_is_not_said_of_the_replication_follows(
    query: str, replication: tuple[int, int, int]
) -> None:
    assert parse(f"bookkeeper://h/s?{query}".removesuffix("?")).replication == replication


REFUSED = [
    ("bookkeeper:///s", "host"),
    ("bookkeeper://h", "the path is missing"),
    ("bookkeeper://h/", "the path is missing"),
    ("bookkeeper://h//s", "slashes"),
    ("bookkeeper://h/a//b", "slashes"),
    ("bookkeeper://h/a/../b", "slashes"),
    ("bookkeeper://h/a/./b", "slashes"),
    ("bookkeeper://h/a%20b", "names of"),
    ("bookkeeper://h/a%2F..%2Fb", "names of"),
    ("bookkeeper://h/" + "a" * 300, "names of"),
    ("bookkeeper://h/zookeeper/s", "ZooKeeper's own"),
    ("bookkeeper://h/ledgers", "BookKeeper's own"),
    ("bookkeeper://h/ledgers/s", "BookKeeper's own"),
    ("bookkeeper://h/s?ledgers=/s/ledgers", "lie in the path"),
    ("bookkeeper://h/s?ledgers=ledgers", "names of"),
    ("bookkeeper://h:0/s", "'h:0'"),
    ("bookkeeper://h:65536/s", "'h:65536'"),
    ("bookkeeper://h:x/s", "'h:x'"),
    ("bookkeeper://h,,i/s", "''"),
    ("bookkeeper://h,h:2181/s", "twice"),
    ("bookkeeper://h_!/s", "'h_!'"),
    ("bookkeeper://h/s#x", "fragment"),
    ("bookkeeper://h/s\n", "no line breaks or tabs"),
    ("bookkeeper://h1,\th2/s", "no line breaks or tabs"),
    ("bookkeeper://h/s?", None),
    ("bookkeeper://h/s?ensemble", "key=value"),
    ("bookkeeper://h/s?colour=red", "'colour'"),
    ("bookkeeper://h/s?ensemble=3&ensemble=3", "twice"),
    ("bookkeeper://h/s?ensemble=0", "ensemble='0'"),
    ("bookkeeper://h/s?ensemble=65", "ensemble='65'"),
    ("bookkeeper://h/s?ensemble=-1", "ensemble='-1'"),
    ("bookkeeper://h/s?ensemble=%D9%A3", "ensemble="),
    ("bookkeeper://h/s?ensemble=2&write_quorum=3", "ensemble=2, write_quorum=3"),
    ("bookkeeper://h/s?write_quorum=2&ack_quorum=3", "ack_quorum=3"),
    ("bookkeeper://h/s?degraded=2/2", "degraded='2/2'"),
    ("bookkeeper://h/s?degraded=2/1/2", "degraded=2/1/2"),
    ("bookkeeper://h/s?degraded=3/3/2", "fewer bookies"),
    ("bookkeeper://h/s?ledger_bytes=1", "ledger_bytes='1'"),
    ("bookkeeper://h/s?ledger_bytes=9999999GiB", "ledger_bytes="),
    ("bookkeeper://h/s?gateway=h", "host:port"),
    ("bookkeeper://h/s?gateway=:1", "host:port"),
    ("bookkeeper://h/s?password_file=x", "absolute"),
    ("bookkeeper://h/s?zookeeper_auth_file=", "absolute"),
    ("bookkeeper://h/s?acl=world", "acl='world'"),
    ("bookkeeper://h/s?session_timeout_s=0", "session_timeout_s='0'"),
    ("zookeeper://h/s", "not a bookkeeper:// URL"),
]


@pytest.mark.parametrize(("url", "said"), REFUSED)
def test_what_is_wrong_is_named(url: str, said: str | None) -> None:
    if said is None:
        parse(url)
        return
    with pytest.raises(ConfigError) as caught:
        parse(url)
    assert caught.value.setting == "tier1"
    assert said in caught.value.reason


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    for url in (
        "bookkeeper://user:secret@h/s",
        "bookkeeper://secret@h:1,i:2/s",
        "bookkeeper://h,u:secret@i/s",
    ):
        with pytest.raises(ConfigError) as caught:
            parse(url)
        assert "holds no credentials" in caught.value.reason
        assert "SEGMENTSTORE_BOOKKEEPER_PASSWORD" in caught.value.reason
        assert "secret" not in str(caught.value)


def test_sizes_have_units() -> None:
    for text, size in (("65536", 65536), ("64KiB", 64 * KIB), ("2GiB", 2 * GIB)):
        assert parse(f"bookkeeper://h/s?ledger_bytes={text}").ledger_bytes == size


@given(st.text(alphabet=st.sampled_from("abc:/@?&=#,.[]%0129 -_é\0"), max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        location = parse("bookkeeper://" + text)
    except ConfigError:
        return
    assert parse(location.url).path == location.path
    assert location.hosts


def test_the_scheme_alone_says_whether_it_is_one() -> None:
    assert is_bookkeeper_url("bookkeeper://h/s")
    assert is_bookkeeper_url("bookkeeper:nonsense")
    assert not is_bookkeeper_url("file")
    assert not is_bookkeeper_url("memory")
