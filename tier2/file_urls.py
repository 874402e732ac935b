"""Paths of the file system in `file://` URLs, whatever bytes their names are.

A name on Linux is a row of bytes, UTF-8 or not. `pathlib` percent-encodes those bytes in a URL, and
`urllib` decodes them as text: what is no UTF-8 becomes U+FFFD, so that two folders become one. Here
bytes stay what they are.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import os
from urllib.parse import unquote_to_bytes


def path_of(quoted: str) -> str:
    """The path that the percent-encoded path of a URL means, as `os` functions take it (PEP
    383).
    """
    return os.fsdecode(unquote_to_bytes(os.fsencode(quoted)))


def printable(path: str) -> str:
    """The path for messages: a byte that is no UTF-8 as a backslash, an x and two digits."""
    return path if path.isascii() else os.fsencode(path).decode("utf-8", "backslashreplace")
