"""URLs as people, files and logs may have them: without passwords and keys. Pure.

A URL holds a secret in two places: behind the user's name (`//user:password@host`), and as the
value of an option whose name says so (`?account_key=...`). Rules of this file:

- whatever shows a URL shows `redacted` of it; an open storage's `url` is that already;
- what is redacted is what is refused (`secrets_of`), so that the two cannot drift apart;
- a text that is no URL, or none yet, is taken for a badly typed one: better too much is hidden
  than too little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, unquote_plus

HIDDEN: Final = "***"
PASSWORD: Final = "password"  # noqa: S105 - the name of the place, not a password
FILE_SUFFIX: Final = "_file"
"""An option `<secret>_file` names a file whose first line is the secret."""

# A password may hold anything, also what has to be escaped in a URL: it ends at the last @ before
# the query, or at the last of all. What follows a host and a colon is a port, not a password.
# fsspec's chains (`simplecache::sftp://...`) are refused, but the refusal shows them.
_WITH_SCHEME: Final = re.compile(
    r"((?:[A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]*:/+[^/?#:@\[]*)"
    r":(?!\d{1,5}(?:[/?#,]|$))(?:([^?#]*)|(.*))@",
    re.DOTALL,
)
_FOLDER: Final = "file:///"
"""Behind it is a path, whatever is in it."""
_WITHOUT_SCHEME: Final = re.compile(r"([^/?#:@]+):(?!/)([^/]*)@", re.DOTALL)

_SECRET_NAME: Final = re.compile(
    r"pass(?:word|wd|phrase|code)|secret|token|credential|signature|cookie|bearer"
    r"|connection[_-]?string|(?:access|account|api|private|shared|storage|encryption)[_-]?key"
    r"|(?:^|[_.-])(?:pass|pwd|sig|sas|jwt|auth|key|pat)$",
    re.IGNORECASE,
)
_PLACE_NAME: Final = re.compile(
    r"(?:file(?:name)?|path|_id|timeout|_name|_type|_ttl|_expiry|keys)$", re.IGNORECASE
)
"""Names of what is not a secret but says where one is, or of which kind."""
_NO_SECRETS: Final = frozenset(
    (
        "",
        "true",
        "false",
        "null",
        "none",
        HIDDEN,
        "anon",
        "browser",
        "cache",
        "cloud",
        "default",
        "google_default",
    )
)
"""Values that such options have, and that reveal nothing; some are gcsfs's for `token`."""


def redacted(text: str) -> str:
    """The text with every password and key in it replaced by `***`. Idempotent."""
    place, mark, query = text.partition("?")
    found = _userinfo(text)
    if found is not None:
        end = found.end()
        if end > len(place):
            # The password reaches into what looks like a query.
            place, mark, query = text[:end], *text[end:].partition("?")[1:]
            place += text[end:].partition("?")[0]
        place = f"{found[1]}:{HIDDEN}@{place[end:]}"
    if not mark:
        return place
    return f"{place}?{'&'.join(_shown_option(option) for option in query.split('&'))}"


def secrets_of(url: str) -> tuple[str, ...]:
    """Names of the secrets in a URL: `password`, and of options that hold one; may be empty."""
    found = [PASSWORD] if _userinfo(url) is not None else []
    for option in url.partition("?")[2].split("&"):
        name, _, value = option.partition("=")
        if is_secret(unquote_plus(name), unquote_plus(value)):
            found.append(unquote_plus(name))
        elif _shown_option(option) != option:
            found.append(f"{PASSWORD} in {unquote_plus(name)}")
    return tuple(found)


def has_secret(url: str) -> bool:
    """Whether it holds a password or a key."""
    return bool(secrets_of(url))


def is_secret(name: str, value: str) -> bool:
    """Whether the value of an option must not be shown."""
    if not is_secret_name(name) or value.lower() in _NO_SECRETS:
        return False
    # The path of a file with a token in it, as gcsfs takes it: no token begins so.
    return not (
        value.startswith(("/", "~/")) and re.search(r"(?:token|credentials?)$", name) is not None
    )


def is_secret_name(name: str) -> bool:
    """Whether an option of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None and _PLACE_NAME.search(name) is None


def same_place(one: str, other: str) -> bool:
    """Whether two URLs differ at most in secrets, and in options that say in which file one is."""
    return one == other or list(_without_secrets(one)) == list(_without_secrets(other))


def _without_secrets(url: str) -> Iterator[str]:
    place, _, query = redacted(url).partition("?")
    yield place.replace(f":{HIDDEN}@", "@", 1)
    for option in query.split("&"):
        name = unquote_plus(option.partition("=")[0])
        if option and not is_secret_name(name.removesuffix(FILE_SUFFIX)):
            yield option


def _userinfo(text: str) -> re.Match[str] | None:
    """From the beginning to the @ behind a password; None if there is none, or a hidden one."""
    if text[: len(_FOLDER)].lower() == _FOLDER:
        return None
    found = _WITH_SCHEME.match(text) or _WITHOUT_SCHEME.match(text)
    if found is None or found[0].endswith(f":{HIDDEN}@"):
        return None
    return found


def _shown_option(option: str) -> str:
    name, _, value = option.partition("=")
    if is_secret(unquote_plus(name), unquote_plus(value)):
        return f"{name}={HIDDEN}"
    if "@" in (plain := unquote(value)) and redacted(plain) != plain:
        # A URL in a URL, as the endpoint of a service.
        return f"{name}={redacted(plain)}"
    return option
