"""FsspecLocation: where a Tier-2 URL points that fsspec has to reach, and with which options.

`scheme://[user@]host[:port]/path?option=value`: everything before the `?` is read as fsspec reads
it, each option goes to the file system's constructor. The values true, false, null, whole numbers,
and anything in double quotes are read as JSON; all else is text. An option that the file system
does not have is refused by name. Nothing here connects anywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

import fsspec  # type: ignore[import-untyped]

from segmentstore.contracts.errors import ConfigError
from tier2.fsspec_back_ends import REFUSED, BackEnd, back_end
from tier2.fsspec_options import SFTP_SCHEMES, known_options, secret_of_file

SETTING: Final = "tier2"

_OURS: Final = frozenset(("asynchronous", "loop", "skip_instance_cache", "use_listings_cache"))
"""Options the adapter sets itself."""
_JSON: Final = re.compile(r'true|false|null|-?(?:0|[1-9][0-9]*)|".*"', re.DOTALL)
_SPECIAL: Final = re.compile(r"[?#]")


@dataclass(frozen=True, slots=True)
class FsspecLocation:
    """A file system, and a folder in it."""

    scheme: str
    file_system: type[Any]
    """fsspec's class for the scheme."""
    root: str
    """The folder, as this file system writes it; no slash at the end."""
    shown: str
    """The URL without password and options: for people, logs and errors."""
    options: Mapping[str, Any] = field(repr=False)
    """For the constructor: from the host part and the query; may hold secrets."""
    secret_files: Mapping[str, str] = field(default_factory=dict)
    """For the constructor as well: options whose value is the first line of a file, and the file's
    path.
    """

    @property
    def back_end(self) -> BackEnd:
        """What is known of it."""
        return back_end(self.scheme)


def parse_fsspec_url(url: str, *, new: bool = False) -> FsspecLocation:
    """The location of a URL. Raises ConfigError("tier2", ...); its message holds no option's value.

    With `new` also for options that the file system would pass over in silence: stores were made
    with such.
    """
    try:
        parts = urlsplit(url)
        netloc = _without_password(parts)
    except ValueError as error:
        raise ConfigError(SETTING, f"this is not a URL: {error}") from None
    shown = urlunsplit((parts.scheme, netloc, parts.path, "", "")) or "''"
    scheme = parts.scheme
    if not scheme or "://" not in url or "::" in url.partition("?")[0] or parts.fragment:
        raise ConfigError(SETTING, f"{shown} is not of the form scheme://place/path?option=value")
    if scheme in REFUSED:
        raise ConfigError(SETTING, f"{scheme}:// is not taken: {REFUSED[scheme]}")
    try:
        path = unquote(parts.path, errors="strict")
    except UnicodeDecodeError:
        # Not U+FFFD in its place: two folders would become one.
        raise ConfigError(SETTING, f"{shown}: the percent-encoded path is not UTF-8") from None
    if _SPECIAL.search(path) or "\0" in path:
        raise ConfigError(SETTING, f"{shown}: fsspec's paths cannot hold ? and #")
    file_system = _class_of(scheme)
    bare = f"{scheme}://{parts.netloc}{path}"
    root = str(file_system._strip_protocol(bare)).rstrip("/")
    if not root:
        raise ConfigError(SETTING, f"{shown} names no folder for objects")
    given = _query_options(parts, shown)
    known = known_options(scheme, file_system, strict=not new)
    secret_files = {}
    for key in tuple(given):
        name = secret_of_file(key, known)
        if name is not None:
            secret_files[name] = _path_of_secret(key, given.pop(key), shown)
            if name in given:
                raise ConfigError(SETTING, f"{shown}: the options {name} and {key} are both there")
        elif known is not None and key not in known:
            raise ConfigError(
                SETTING,
                f"{shown}: {scheme}:// has no option {key!r}, only {', '.join(sorted(known))}",
            )
    options = {**_host_options(file_system, bare), **given}
    return FsspecLocation(scheme, file_system, root, shown, options, secret_files)


def _path_of_secret(key: str, path: object, shown: str) -> str:
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise ConfigError(SETTING, f"{shown}: {key} is not the absolute path of a file")
    return path


def _class_of(scheme: str) -> type[Any]:
    if scheme in SFTP_SCHEMES:
        # By its class: where the package `sshfs` is installed it takes the name, and ignores ranges
        # and "create". Here, because it loads paramiko.
        from fsspec.implementations.sftp import (  # type: ignore[import-untyped]  # noqa: PLC0415
            SFTPFileSystem,
        )

        found: type[Any] = SFTPFileSystem
        return found
    try:
        found = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise ConfigError(
            SETTING, f"{scheme}:// needs a package that is not installed ({error})"
        ) from None
    except ValueError:
        raise ConfigError(
            SETTING, f"no adapter and no fsspec file system is known for {scheme}://"
        ) from None
    return found


def _host_options(file_system: type[Any], bare: str) -> dict[str, Any]:
    options: dict[str, Any] = dict(file_system._get_kwargs_from_urls(bare))
    return {
        key: unquote(value) if isinstance(value, str) else value for key, value in options.items()
    }


def _query_options(parts: SplitResult, shown: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigError(SETTING, f"{shown}: what follows the ? is not option=value&...") from None
    for key, value in pairs:
        if key in _OURS:
            raise ConfigError(SETTING, f"{shown}: the option {key} is not for you to set")
        if key in options:
            raise ConfigError(SETTING, f"{shown}: the option {key} is there twice")
        try:
            options[key] = json.loads(value) if _JSON.fullmatch(value) else value
        except ValueError:
            options[key] = value
    return options


def _without_password(parts: SplitResult) -> str:
    user, at, host = parts.netloc.rpartition("@")
    return f"{user.partition(':')[0]}{at}{host}"
