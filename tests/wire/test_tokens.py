"""Delegation tokens: what is signed, what is taken, what a claim matches."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.permission import Permission
from segmentstore.wire.tokens import ExpiredTokenError, Grants, InvalidTokenError, TokenKey

SECRET = b"a key that the Controller shares with the store"
KEY = TokenKey(SECRET)
STREAM = "prn::/scope:s/stream:t"
SEGMENT = "s/t/0.#epoch.0"
NOW = 1_700_000_000


def part(value: Any) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


def signed(claims: Any, header: Any = None, secret: bytes = SECRET) -> str:
    """A token made by hand, as other programs make them."""
    text = part(header or {"alg": "HS512"}) + b"." + part(claims)
    signature = hmac.digest(secret, text, hashlib.sha512)
    return (text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def claims_of(**more: Any) -> dict[str, Any]:
    """As Pravega's Controller writes them."""
    return {"sub": "admin", "aud": "segmentstore", "iat": NOW, STREAM: "READ_UPDATE"} | more


def test_what_is_signed() -> None:
    token = KEY.sign("u", {STREAM: Permission.READ}, NOW)
    assert jwt.get_unverified_header(token) == {"alg": "HS512", "typ": "JWT"}
    assert jwt.decode(token, options={"verify_signature": False}) == {
        "sub": "u",
        "aud": "segmentstore",
        "iat": NOW,
        "exp": NOW + 600,
        STREAM: "READ",
    }
    grants = KEY.check(token, NOW)
    assert grants == Grants({"s/t": Permission.READ}, NOW + 600)
    assert grants.allow(SEGMENT, Permission.READ)
    assert not grants.allow(SEGMENT, Permission.READ_UPDATE)
    assert KEY.check(KEY.sign("u", {}, NOW, None), NOW).expires_s is None


def test_tokens_of_the_real_controller_are_taken() -> None:
    assert KEY.check(signed(claims_of()), NOW).allow(SEGMENT, Permission.READ_UPDATE)
    internal = KEY.check(signed(claims_of(**{"*": "READ_UPDATE"})), NOW)
    assert internal.allow("_system/_requeststream/0.#epoch.0", Permission.READ_UPDATE)


def test_a_token_expires() -> None:
    token = signed(claims_of(exp=NOW + 1))
    assert KEY.check(token, NOW).expires_s == NOW + 1
    with pytest.raises(ExpiredTokenError):
        KEY.check(token, NOW + 1)


DEEP = "[" * 20_000


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("", id="none"),
        pytest.param(signed(claims_of(), secret=bytes(32)), id="another key"),
        pytest.param(signed(claims_of(), {"alg": "none"}), id="alg none, signed"),
        pytest.param(
            (part({"alg": "none"}) + b"." + part(claims_of()) + b".").decode(), id="alg none"
        ),
        pytest.param(jwt.encode(claims_of(), SECRET, "HS256"), id="HS256"),
        pytest.param(signed(claims_of(aud="controller")), id="another audience"),
        pytest.param(signed({"sub": "admin", STREAM: "READ"}), id="no audience"),
        pytest.param(signed(claims_of(exp="never")), id="a time that is none"),
        pytest.param(signed(claims_of(exp=True)), id="a time that is true"),
        pytest.param(signed([]), id="no claims"),
        pytest.param(signed(claims_of())[:-4], id="cut"),
        pytest.param(
            f"{base64.urlsafe_b64encode(DEEP.encode()).decode().rstrip('=')}.e30.e30", id="deep"
        ),
        pytest.param("a.b.c", id="no base64"),
        pytest.param("é.ü.\u2028", id="no ASCII"),
    ],
)
def test_others_are_refused(token: str) -> None:
    with pytest.raises(InvalidTokenError) as caught:
        KEY.check(token, NOW)
    assert caught.value.args == ()
    assert caught.value.__suppress_context__


@given(text=st.text(max_size=50), at=st.integers(0, 400), by=st.integers(1, 255))
def test_any_text_and_any_change_give_the_one_error(text: str, at: int, by: int) -> None:
    token = signed(claims_of())
    data = bytearray(token.encode())
    data[at % len(data)] ^= by
    changed = data.decode("latin-1")
    for each in (text, changed):
        try:
            found = KEY.check(each, NOW)
        except InvalidTokenError:
            continue
        # The last character of base64 has bits that do not count.
        assert changed[:-1] == token[:-1]
        assert found == KEY.check(token, NOW)


@pytest.mark.parametrize(
    ("claim", "segment", "matches"),
    [
        ("prn::/scope:s/stream:t", "s/t/0.#epoch.0", True),
        ("prn::/scope:s/stream:t", "s/t/0.#epoch.0#transaction." + "0" * 32, True),
        ("prn::/scope:s/stream:t", "s/t2/0.#epoch.0", False),
        ("prn::/scope:s/stream:t", "s2/t/0.#epoch.0", False),
        ("prn::/scope:s", "s/t/0.#epoch.0", True),
        ("prn::/scope:s/", "s/t/0.#epoch.0", True),
        ("prn::/scope:s", "s2/t/0.#epoch.0", False),
        ("s/t_kvtable/0.#epoch.0", "s/t_kvtable/0.#epoch.0", True),
        ("prn::*", "anything", True),
        ("*", "anything", True),
        ("prn::/", "s/t/0", False),
        ("prn::/scope:*", "s/t/0", True),
    ],
)
def test_what_a_claim_matches(claim: str, segment: str, matches: bool) -> None:
    grants = KEY.check(signed({"aud": "segmentstore", claim: "READ"}), NOW)
    assert grants.allow(segment, Permission.READ) is matches
    assert not grants.allow(segment, Permission.READ_UPDATE)


def test_words_that_are_no_permission_allow_nothing() -> None:
    for word in ("NONE", "", 2, None, ["READ"]):
        assert KEY.check(signed({"aud": "segmentstore", "*": word}), NOW) == Grants({}, None)


def test_bad_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="less than 32 bytes"):
        TokenKey(b"secret")
    with pytest.raises(ConfigError, match="one of a pair"):
        TokenKey(b"-----BEGIN PUBLIC KEY-----\n" + b"A" * 64 + b"\n-----END PUBLIC KEY-----")
    assert "key that" not in repr(KEY)
