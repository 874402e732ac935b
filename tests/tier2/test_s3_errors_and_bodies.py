"""What answers of a provider become, and how bodies and parts are cut: all of it pure."""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any

import pytest
from botocore import exceptions as boto
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.byte_sizes import GIB, KIB, MIB
from segmentstore.contracts.checksum import crc32c
from tier2.object_storage import ObjectRange, ObjectStorageError, StorageRefusedError
from tier2.s3.copy_upload import COPY_BYTES_MAX, COPY_BYTES_MIN, cut_ranges
from tier2.s3.parts_upload import cut, part_bytes_for
from tier2.s3.s3_client import JOIN_BYTES, PIECE_BYTES, PartsBody, body_of, checksum_of, taken_apart
from tier2.s3.s3_errors import (
    MOVES,
    S3AnswerError,
    S3RefusedError,
    S3UnavailableError,
    S3Verdict,
    error_of,
)


def error(code: str, status: int | None = 400, detail: str = "") -> ObjectStorageError:
    return error_of("name", "PutObject", "bucket", code, status, detail)


@pytest.mark.parametrize(
    ("code", "status", "verdict"),
    [
        ("NoSuchKey", 404, S3Verdict.ABSENT),
        ("404", 404, S3Verdict.ABSENT),
        ("", 404, S3Verdict.ABSENT),
        ("NoSuchUpload", 404, S3Verdict.NO_UPLOAD),
        ("InvalidRange", 416, S3Verdict.BAD_RANGE),
        ("PreconditionFailed", 412, S3Verdict.TAKEN),
        ("ConditionalRequestConflict", 409, S3Verdict.CONFLICT),
    ],
)
def test_answers_are_distinguished_from_failures(
    code: str, status: int, verdict: S3Verdict
) -> None:
    found = error(code, status)
    assert isinstance(found, S3AnswerError)
    assert found.verdict is verdict


@pytest.mark.parametrize("code", ["404", ""])
def test_a_read_without_a_code_does_not_say_absent(code: str) -> None:
    found = error_of("name", "GetObject", "bucket", code, 404, "")
    assert isinstance(found, S3UnavailableError)
    assert found.verdict is S3Verdict.FAILED


@pytest.mark.parametrize(
    ("code", "status", "verdict", "kind"),
    [
        ("SlowDown", 503, S3Verdict.THROTTLED, "SlowDown"),
        ("RequestLimitExceeded", 400, S3Verdict.THROTTLED, "SlowDown"),
        ("", 503, S3Verdict.THROTTLED, "SlowDown"),
        ("Whatever", 429, S3Verdict.THROTTLED, "SlowDown"),
        ("InternalError", 500, S3Verdict.UNCERTAIN, "InternalError"),
        ("", 502, S3Verdict.UNCERTAIN, "502"),
        ("RequestTimeout", 400, S3Verdict.UNCERTAIN, "RequestTimeout"),
        ("timeout", None, S3Verdict.UNCERTAIN, "timeout"),
        ("connection", None, S3Verdict.UNCERTAIN, "connection"),
        ("BadDigest", 400, S3Verdict.FAILED, "BadDigest"),
        ("Strange", 404, S3Verdict.FAILED, "Strange"),
        ("a code with <markup>", 400, S3Verdict.FAILED, "other"),
    ],
)
def test_failures_say_whether_they_took_effect(
    code: str, status: int | None, verdict: S3Verdict, kind: str
) -> None:
    found = error(code, status)
    assert isinstance(found, S3UnavailableError)
    assert not isinstance(found, StorageRefusedError)
    assert (found.verdict, found.kind) == (verdict, kind)


@pytest.mark.parametrize("code", MOVES)
def test_what_a_person_must_mend_is_one_sentence_with_call_code_and_move(code: str) -> None:
    found = error(code, int(code) if code.isdigit() else 403, "as the provider\n says it")
    assert isinstance(found, S3RefusedError)
    assert str(found).startswith(
        f"name: PutObject is refused with {code} (as the provider says it): "
    )
    assert "{" not in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(("code", "status"), [("XAdminUserNotFound", 404), ("WhoAreYou", 401)])
def test_an_unknown_access_key_is_a_matter_of_credentials_whatever_the_code(
    code: str, status: int
) -> None:
    found = error(code, status)
    assert isinstance(found, S3RefusedError)
    assert found.credentials
    assert found.kind == code


def test_a_403_of_an_unknown_code_is_a_refusal() -> None:
    found = error("NotToday", 403)
    assert isinstance(found, S3RefusedError)
    assert not found.credentials
    assert "give the credentials the permission for PutObject" in str(found)


def test_only_new_credentials_are_searched_for_again() -> None:
    again = {
        code
        for code in MOVES
        if isinstance(found := error(code), S3RefusedError) and found.credentials
    }
    assert {
        "ExpiredToken",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "no-credentials",
        "credentials",
    } <= again
    assert not {"AccessDenied", "NoSuchBucket", "RequestTimeTooSkewed"} & again


def test_a_page_of_markup_is_no_message() -> None:
    assert len(str(error("BadGateway", 502, "<html>" + "x" * 5000))) < 300


def test_exceptions_of_the_client_are_taken_apart() -> None:
    url = "http://host"
    for raised, code in (
        (boto.NoCredentialsError(), "no-credentials"),
        (boto.CredentialRetrievalError(provider="x", error_msg="y"), "credentials"),
        (boto.EndpointConnectionError(endpoint_url=url), "connection"),
        (boto.ConnectionClosedError(endpoint_url=url), "connection"),
        (boto.ReadTimeoutError(endpoint_url=url), "timeout"),
        (boto.ConnectTimeoutError(endpoint_url=url), "timeout"),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), "truncated"),
        (boto.ResponseStreamingError(error="x"), "truncated"),
        (boto.SSLError(endpoint_url=url, error=OSError("EOF")), "connection"),
        (
            boto.SSLError(endpoint_url=url, error=OSError("CERTIFICATE_VERIFY_FAILED")),
            "certificate",
        ),
        (boto.ProfileNotFound(profile="x"), "client"),
        (ConnectionResetError("x"), "connection"),
        (KeyError("ETag"), "odd-reply"),
        (
            boto.ChecksumError(checksum_type="x", expected_checksum="y", actual_checksum="z"),
            "ChecksumError",
        ),
    ):
        assert taken_apart(raised)[:2] == (code, None), raised
    reply: Any = {
        "Error": {"Code": "Odd", "Message": "it is"},
        "ResponseMetadata": {"HTTPStatusCode": 418},
    }
    assert taken_apart(boto.ClientError(reply, "PutObject")) == ("Odd", 418, "it is")
    assert taken_apart(boto.ClientError({}, "PutObject")) == ("", None, "")


def test_small_bodies_are_joined_and_large_ones_are_not_copied() -> None:
    assert body_of([b"", b"one"]) == b"one"
    assert body_of([b"one", memoryview(b"xtwo")[1:]]) == b"onetwo"
    small, large = bytes(JOIN_BYTES), bytes(JOIN_BYTES + 1)
    assert body_of([small]) is small
    # The socket's timeout is for each buffer as a whole: a large one goes in several.
    assert isinstance(body_of([large]), PartsBody)
    assert isinstance(body_of([memoryview(large)]), PartsBody)


@given(st.lists(st.integers(0, 7).map(bytes)), st.integers(0, 40))
def test_a_body_reads_as_a_file_does(parts: list[bytes], offset: int) -> None:
    whole = b"".join(parts)
    body = PartsBody(parts)
    assert len(body) == len(whole)
    pieces = []
    while piece := body.read(2):
        pieces.append(bytes(piece))
        assert body.tell() == sum(map(len, pieces))
    assert b"".join(pieces) == whole
    assert body.seek(offset) == min(offset, len(whole))
    assert body.read() == whole[offset:]
    assert body.read() == b""
    assert body.seek(0, 2) == len(whole)
    assert body.seek(-1, 1) == max(0, len(whole) - 1)
    assert body.read(-1) == whole[-1:]


def test_a_long_buffer_is_read_in_pieces() -> None:
    body = PartsBody([bytes(2 * PIECE_BYTES + 1)])
    assert [len(body.read(16)) for _ in range(4)] == [PIECE_BYTES, PIECE_BYTES, 1, 0]
    body.seek(PIECE_BYTES + 5)
    assert len(body.read(16)) == PIECE_BYTES - 4


def test_a_checksum_is_that_of_the_whole_body() -> None:
    assert base64.b64decode(checksum_of([b"1234", b"56789"])) == (0xE3069283).to_bytes(4, "big")
    assert crc32c(b"123456789") == 0xE3069283


@given(st.lists(st.integers(0, 9).map(bytes)), st.integers(1, 12))
def test_parts_are_cut_to_length(parts: list[bytes], part_bytes: int) -> None:
    runs = [b"".join(run) for run in cut(parts, part_bytes)]
    assert b"".join(runs) == b"".join(parts)
    assert all(len(run) == part_bytes for run in runs[:-1])
    assert len(runs) == max(1, -(-sum(map(len, parts)) // part_bytes))


def test_ten_thousand_parts_hold_any_object() -> None:
    assert part_bytes_for(GIB, 64 * MIB) == 64 * MIB
    for size in (10_000 * 8 * MIB, 10_000 * 8 * MIB + 1, 5 * 1024 * GIB):
        part_bytes = part_bytes_for(size, 8 * MIB)
        assert part_bytes * 10_000 >= size
        assert part_bytes < size / 10_000 + KIB


def test_ranges_too_long_to_copy_are_cut_evenly() -> None:
    cut_up = cut_ranges([ObjectRange("a", 3, 7), ObjectRange("b", 5, 12 * GIB + 1)], COPY_BYTES_MAX)
    assert cut_up[0] == ObjectRange("a", 3, 7)
    assert [each.name for each in cut_up] == ["a", "b", "b", "b"]
    assert all(COPY_BYTES_MIN < each.length <= COPY_BYTES_MAX for each in cut_up[1:])
    assert cut_up[1].offset == 5
    assert all(
        after.offset == before.offset + before.length for before, after in pairwise(cut_up[1:])
    )
    assert sum(each.length for each in cut_up[1:]) == 12 * GIB + 1
