"""What may name a folder of this machine: a path.

A URL is refused by name, before a folder of that name is made.
"""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import unquote, urlsplit

from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.contracts.urls import redacted

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
"""One slash is enough: `pathlib` makes `s3:/bucket` of `s3://bucket`."""


def checked_folder(location: object, argument: str = "location") -> str:
    """The path of a folder as text.

    Raises InvalidArgumentError for anything but a path; a URL is refused with where it belongs.

    A relative folder whose name looks like that is written with `./` in front of it.
    """
    path = os.fspath(location) if isinstance(location, str | os.PathLike) else location
    if not isinstance(path, str):
        raise InvalidArgumentError(argument, location, "it is a path: str or pathlib.Path")
    if "\0" in path or not path:
        raise InvalidArgumentError(argument, path, "it is a path: not empty, and without NUL")
    found = _URL.match(path)
    if found is not None:
        raise InvalidArgumentError(argument, redacted(path), _advice(found[1].lower(), path))
    return path


def _advice(scheme: str, path: str) -> str:
    if scheme == "file":
        return f"it is a folder, and this is a URL: write {unquote(urlsplit(path).path)!r}"
    if scheme == "bookkeeper":
        return (
            "it is a folder of this machine, and this is a URL: give the URL to "
            "tier1=... (SEGMENTSTORE_TIER1),"
            " and name a folder for this process's own files. Clients of its hosts take it with "
            "zookeeper:// in front"
        )
    if scheme == "zookeeper":
        return "it is a folder of this machine, and this is a cluster: connect to it"
    return (
        f"it is a folder of this machine, and this is a URL: give the {scheme}:// URL to tier2=..."
        " (SEGMENTSTORE_TIER2), and name a folder for the log"
    )
