"""`users add`, and the file that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.permission import Permission
from segmentstore.users import NO_PASSWORD, PasswordHash, parse_users
from tests.cli.shell import segmentstore

READ, UPDATE = Permission.READ, Permission.READ_UPDATE
GIVEN = "prn::/scope:s/stream:t,READ;prn::/scope:u/*,READ_UPDATE"
HASH = str(NO_PASSWORD)


def test_a_user_is_added_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "users"
    added = segmentstore("users", "add", file, "a", GIVEN, stdin=b"pass:word\n")
    assert (added.code, added.out) == (0, b"added a\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert "pass" not in file.read_text()
    user = parse_users(file.read_text())["a"]
    assert user.password.matches("pass:word")
    assert not user.password.matches("pass")
    with file.open("a") as end:
        end.write("# kept\n")
    replaced = segmentstore("users", "add", file, "a", "prn::*,READ", stdin=b"other")
    assert replaced.out == b"replaced a\n"
    assert file.read_text().startswith("# kept\n")
    (user,) = parse_users(file.read_text()).values()
    assert user.password.matches("other")
    assert user.permission("prn::/scope:any") is READ


@pytest.mark.parametrize(
    ("name", "permissions", "stdin", "said"),
    [
        ("a", GIVEN, b"", "no password"),
        ("a:b", GIVEN, b"x", "may not be a name"),
        ("#a", GIVEN, b"x", "may not be a name"),
        ("", GIVEN, b"x", "may not be a name"),
        ("a\nb", GIVEN, b"x", "may not be a name"),
        ("a", "scope:s,READ", b"x", "permissions are prn::RESOURCE"),
        ("a", "prn::*,WRITE", b"x", "permissions are prn::RESOURCE"),
        ("a", "prn::*", b"x", "permissions are prn::RESOURCE"),
    ],
)
def test_what_may_not_be(
    tmp_path: Path, name: str, permissions: str, stdin: bytes, said: str
) -> None:
    result = segmentstore("users", "add", tmp_path / "users", name, permissions, stdin=stdin)
    assert result.code == ExitCode.USAGE
    assert said in result.err
    assert not (tmp_path / "users").exists()


def test_a_file_that_is_none_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("what is this\n")
    assert segmentstore("users", "add", file, "a", GIVEN, stdin=b"x").code == ExitCode.USAGE
    assert file.read_text() == "what is this\n"
    missing = tmp_path / "none" / "users"
    result = segmentstore("users", "add", missing, "a", GIVEN, stdin=b"x")
    assert result.code == ExitCode.USAGE
    assert "No such file" in result.err


@pytest.mark.parametrize(
    ("resource", "permission"),
    [
        ("prn::/scope:s/stream:t", READ),
        ("prn::/scope:s/stream:t2", None),
        ("prn::/scope:s", None),
        ("prn::/scope:u", None),
        ("prn::/scope:u/stream:t", UPDATE),
        ("prn::/scope:u2/stream:t", None),
        ("prn::/", None),
    ],
)
def test_what_a_user_may_do(resource: str, permission: Permission | None) -> None:
    user = parse_users(f"\n# users\na:{HASH}:{GIVEN}")["a"]
    assert user.permission(resource) is permission


def test_the_greatest_permission_counts_and_no_character_is_a_pattern() -> None:
    text = (
        f"a:{HASH}:prn::*,READ;prn::/scope:s.,READ_UPDATE;prn::/scope:x/**,READ_UPDATE\nb:{HASH}:"
    )
    users = parse_users(text)
    assert users["a"].permission("prn::/scope:s.") is UPDATE
    assert users["a"].permission("prn::/scope:st") is READ
    assert users["a"].permission("prn::/scope:x/stream:y") is UPDATE
    assert users["b"].permission("prn::/") is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f":{HASH}:{GIVEN}", "line 2 has no name"),
        (f"first:{HASH}:{GIVEN}", "or one that was there"),
        ("a:word:prn::*,READ", "line 2 has no hash"),
        ("a", "line 2 has no hash"),
        (f"a:{HASH.replace('scrypt', 'md5')}:", "line 2 has no hash"),
        (f"a:{HASH.replace('16384', '16383')}:", "line 2 has no hash"),
        (f"a:{HASH.replace('16384', '1048576')}:", "line 2 has no hash"),
        (f"a:{HASH.replace('$8$', '$0$')}:", "line 2 has no hash"),
        (f"a:{HASH.replace('$1$', '$17$')}:", "line 2 has no hash"),
        (f"a:{HASH[:-4]}:", "line 2 has no hash"),
        (f"a:{HASH}%:", "line 2 has no hash"),
        (f"a:{HASH}:prn::*", "line 2: permissions are"),
    ],
)
def test_a_line_that_is_none_is_named_without_its_secret(line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_users(f"first:{HASH}:\n{line}")
    assert said in str(caught.value)
    assert HASH[10:] not in str(caught.value)


def test_a_hash_is_written_and_read_and_differs_by_its_salt() -> None:
    first, second = PasswordHash.of("a", b"1" * 16), PasswordHash.of("a", b"2" * 16)
    assert first.key != second.key
    assert PasswordHash.parse(str(first)) == first
