"""Secrets of a Tier 2: none stands in its URL, and where each back end takes them from instead.

A URL goes into store.toml, into a node of ZooKeeper, on command lines and into plans of jobs. So a
new one with a secret is refused, with the way to give it otherwise; a store that was made with one
opens, and says so in its health. Pure.
"""

from __future__ import annotations

from typing import Final

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.urls import (
    FILE_SUFFIX,
    PASSWORD,
    has_secret,
    redacted,
    same_place,
    secrets_of,
)

_PAGE: Final = "docs/tier2.md#credentials"


def refuse_secrets(url: str, stored: object = None, *, setting: str = "tier2") -> None:
    """Raise ConfigError if a URL that a caller gives holds a password or a key.

    But not the one that the store was made with: a program that has always given it must still
    open the store.
    """
    if url != stored and has_secret(url):
        raise ConfigError(
            setting,
            f"{redacted(url)} holds {_named(url)}: it would be kept and shown; {_instead(url)}",
        )


def stands_for(given: object, stored: object) -> bool:
    """Whether a URL may be given for the stored one: only secrets differ, or where they are."""
    return isinstance(given, str) and isinstance(stored, str) and same_place(given, stored)


def advice(url: str, where: str) -> str | None:
    """A sentence for health if a URL that is kept in `where` holds a secret; else None."""
    if not has_secret(url):
        return None
    return (
        f"{where} holds {_named(url)} of tier2, {redacted(url)}: write the URL there "
        f"without; {_instead(url)}"
    )


def _named(url: str) -> str:
    return f"a secret ({', '.join(dict.fromkeys(secrets_of(url)))})"


def _instead(url: str) -> str:
    scheme = url.partition(":")[0].lower()
    if scheme in {"s3", "s3a"}:
        return (
            "botocore finds credentials by itself: AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, a profile in ~/.aws,"
            " or the machine's role"
        )
    if scheme == "bookkeeper":
        return (
            "name files by password_file and zookeeper_auth_file, or set the variables of "
            "docs/bookkeeper.md"
        )
    name = next((each for each in secrets_of(url) if " " not in each), PASSWORD)
    variable = f"FSSPEC_{scheme.upper()}_{name.upper()}"
    key = "name a key by key_filename=/path, or " if scheme in {"sftp", "ssh"} else ""
    return f"{key}name a file with it by {name}{FILE_SUFFIX}=/path, or set {variable} ({_PAGE})"
