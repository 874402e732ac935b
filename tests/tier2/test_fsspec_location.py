"""Where a URL that fsspec has to reach points, what is refused with which sentence, and which back
end is believed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from fsspec.implementations.sftp import SFTPFileSystem  # type: ignore[import-untyped]
from fsspec.registry import known_implementations  # type: ignore[import-untyped]

from segmentstore.contracts.errors import ConfigError
from tier2.fsspec_back_ends import REFUSED, back_end, modified_ms
from tier2.fsspec_location import parse_fsspec_url
from tier2.fsspec_object_storage import check_fsspec_url


def test_a_url_is_a_file_system_a_folder_and_options() -> None:
    found = parse_fsspec_url(
        "sftp://me%40here:se%3Asame@host:2222/data/a%20b/?key_filename=/keys/k&look_for_keys=false"
    )
    assert found.file_system is SFTPFileSystem
    assert found.root == "/data/a b"
    assert found.options == {
        "host": "host",
        "port": 2222,
        "username": "me@here",
        "password": "se:same",
        "key_filename": "/keys/k",
        "look_for_keys": False,
    }
    assert parse_fsspec_url("memory://a/b").file_system is MemoryFileSystem
    assert parse_fsspec_url("memory://a/b").root == "/a/b"
    hadoop = parse_fsspec_url("webhdfs://me@node:9870/data?kerberos=true")
    assert (hadoop.root, hadoop.options) == (
        "/data",
        {"host": "node", "port": 9870, "user": "me", "kerberos": True},
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("null", None),
        ("12", 12),
        ("-1", -1),
        ('"12"', "12"),
        ('"a"b"', '"a"b"'),
        ("012", "012"),
        ("1.5", "1.5"),
        ("anon", "anon"),
        ("", ""),
        ("a%26b%3Dc", "a&b=c"),
    ],
)
def test_values_of_options(text: str, value: object) -> None:
    options = parse_fsspec_url(f"memory://a?x={text}").options
    assert options == {"x": value}
    assert type(options["x"]) is type(value)


def test_what_is_shown_holds_no_secret() -> None:
    found = parse_fsspec_url("sftp://me:sesame@host/data?passphrase=sesame")
    assert found.shown == "sftp://me@host/data"
    assert "sesame" not in repr(found)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://bucket/prefix", "write s3://bucket/prefix"),
        ("s3a://bucket/prefix", "adapter of its own"),
        ("local:///data", "write file:///path"),
        ("https://host/data", "cannot be kept there"),
        ("zip://a/b", "a view of another file system"),
        ("simplecache::gs://a/b", "scheme://place/path"),
        ("oss://bucket/prefix", "oss:// needs a package that is not installed .*ossfs"),
        ("nope://a/b", "nope://"),
        ("/data", "scheme://place/path"),
        ("", "scheme://place/path"),
        ("memory:a", "scheme://place/path"),
        ("memory://a#b", "scheme://place/path"),
        ("memory://", "no folder"),
        ("sftp://host", "no folder"),
        ("sftp://host/", "no folder"),
        ("sftp://host/a%3Fb", "cannot hold"),
        ("memory://a?b", "option=value"),
        ("memory://a?x=1&x=2", "twice"),
        ("memory://a?use_listings_cache=true", "not for you to set"),
        ("sftp://[host/a", "not a URL"),
    ],
)
def test_what_is_refused_is_refused_with_its_reason(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        check_fsspec_url(url)
    assert caught.value.setting == "tier2"


def test_refusals_report_no_secret() -> None:
    for url in (
        "oss://me:sesame@b/x?token=sesame",
        "memory://a?sesame",
        "memory://a?x=sesame&x=1",
        "me:sesame@host",
    ):
        with pytest.raises(ConfigError) as caught:
            check_fsspec_url(url)
        assert "sesame" not in str(caught.value).replace("me:sesame@host", "")


def test_every_scheme_that_is_refused_is_one_that_fsspec_knows() -> None:
    assert set(REFUSED) <= set(known_implementations) | {"s3", "s3a"}


def test_of_whom_nothing_is_known_nothing_is_believed() -> None:
    stranger = back_end("nobody-knows")
    assert not stranger.atomic_create
    assert not stranger.whole
    assert not stranger.shared
    assert stranger.folders


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"mtime": datetime(2026, 1, 2, tzinfo=UTC)}, 1767312000000),
        ({"modified": datetime(2026, 1, 2, 1, tzinfo=timezone(timedelta(hours=1)))}, 1767312000000),
        # Some back ends leave the zone out.
        ({"last_modified": datetime(2026, 1, 2)}, 1767312000000),  # noqa: DTZ001
        ({"updated": "2026-01-02T00:00:00.000Z"}, 1767312000000),
        ({"modificationTime": 1767312000000}, 1767312000000),
        ({"created": 1767312000.5}, 1767312000500),
        ({"mtime": None, "updated": "yesterday", "created": 0}, 7),
        ({}, 7),
    ],
)
def test_when_a_file_changed_last_whatever_its_back_end_calls_that(
    info: dict[str, Any], expected: int
) -> None:
    assert modified_ms(info, 7) == expected
