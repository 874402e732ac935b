"""URLs of S3: what they say, and what is wrong with those that say nothing."""

from __future__ import annotations

import pytest

from segmentstore.contracts.byte_sizes import GIB, KIB, MIB
from segmentstore.contracts.errors import ConfigError
from tier2.s3.s3_location import S3Location, parse_s3_url


def test_a_bucket_is_enough() -> None:
    location = parse_s3_url("s3://my-bucket")
    assert location == S3Location("my-bucket")
    assert (location.connections, location.bytes_in_flight) == (16, 256 * MIB)
    assert (location.part_bytes, location.multipart_bytes) == (64 * MIB, 128 * MIB)
    assert (location.payload_signing, location.conditional_writes, location.addressing) == (
        True,
        "required",
        "virtual",
    )
    assert location.secure
    assert location.url == "s3://my-bucket"


def test_every_key_is_read() -> None:
    location = parse_s3_url(
        "s3://b.x/some/pre_fix/?endpoint_url=http://127.0.0.1:9000/&region=eu-central-1"
        "&connections=3&bytes_in_flight=1GiB&part_bytes=8MiB&multipart_bytes=100KiB"
        "&payload_signing=off&conditional_writes=emulated&addressing=virtual"
    )
    assert location == S3Location(
        "b.x",
        "some/pre_fix/",
        "http://127.0.0.1:9000",
        "eu-central-1",
        "virtual",
        3,
        GIB,
        8 * MIB,
        100 * KIB,
        payload_signing=False,
        conditional_writes="emulated",
    )
    assert not location.secure
    assert (
        location.url
        == "s3://b.x/some/pre_fix?endpoint_url=http://127.0.0.1:9000&region=eu-central-1"
    )


def test_an_endpoint_of_ones_own_is_spoken_to_by_path() -> None:
    assert parse_s3_url("s3://bucket?endpoint_url=https://s3.example").addressing == "path"
    assert (
        parse_s3_url("s3://bucket?endpoint_url=https%3A%2F%2Fs3.example").endpoint_url
        == "https://s3.example"
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://", "not the name of a bucket"),
        ("s3://b", "not the name of a bucket"),
        ("s3:///prefix", "not the name of a bucket"),
        ("s3://-bucket", "not the name of a bucket"),
        ("s3://key:secret@bucket/x", "holds no credentials"),
        ("s3://host:9000/bucket", "endpoint_url=http://host:port"),
        ("s3://bucket/a//b", "is not a prefix"),
        ("s3://bucket/a/../b", "is not a prefix"),
        ("s3://bucket/a%20b", "is not a prefix"),
        ("s3://bucket/" + "x" * 501, "is not a prefix"),
        ("s3://bucket#x", "no fragment"),
        ("s3://bucket?x", "key=value"),
        (
            "s3://bucket?aws_secret_access_key=secret",
            "no key 'aws_secret_access_key', only endpoint_url, region",
        ),
        ("s3://bucket?region=eu&region=us", "stands twice"),
        ("s3://bucket?region=EU west", "not the name of a region"),
        ("s3://bucket?endpoint_url=127.0.0.1:9000", "not http://host:port"),
        ("s3://bucket?endpoint_url=ftp://host", "not http://host:port"),
        ("s3://bucket?endpoint_url=http://host:x", "not a URL"),
        ("s3://bucket?endpoint_url=http://key:secret@host", "holds no credentials"),
        ("s3://bucket?addressing=other", "not path or virtual"),
        ("s3://bucket?connections=0", "not 1 to 256"),
        ("s3://bucket?connections=1KiB", "not a whole number"),
        ("s3://bucket?connections=-1", "not a whole number"),
        ("s3://bucket?part_bytes=5MiB", "not 8388608 to"),
        ("s3://bucket?part_bytes=8MB", "not a whole number (of bytes"),
        ("s3://bucket?multipart_bytes=6GiB", "not 1 to 5368709120"),
        ("s3://bucket?payload_signing=yes", "not on or off"),
        ("s3://bucket?conditional_writes=", "not required or emulated"),
        ("s3://[", "cannot be taken apart"),
    ],
)
def test_what_is_wrong_is_named(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_s3_url(url)
    assert caught.value.setting == "tier2"
    assert said in caught.value.reason
    assert "secret@" not in str(caught.value)
    assert "=secret" not in str(caught.value)
