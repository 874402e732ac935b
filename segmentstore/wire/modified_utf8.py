"""Java's modified UTF-8: how strings of the protocol are written.

It differs from UTF-8 in two things: NUL is C0 80, and a character outside the BMP is two surrogates
of 3 bytes each. Pravega's Rust client writes UTF-8 itself, so both are read. Surrogates without
their other half are Java strings as well: they are read and written, and every check of a name
refuses them.
"""

from __future__ import annotations

import re
from typing import Final

_SUPPLEMENTARY: Final = re.compile("[\U00010000-\U0010ffff]")


def encode_text(text: str) -> bytes:
    """The text as Java writes it, without its length."""
    if text.isascii():
        return text.encode().replace(b"\0", b"\xc0\x80")
    halved = _SUPPLEMENTARY.sub(_surrogates, text)
    return halved.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def decode_text(data: bytes) -> str:
    """The text of modified or ordinary UTF-8. Raises UnicodeDecodeError for anything else."""
    if data.isascii():
        return data.decode("ascii")
    # C0 begins no character of UTF-8 and stands inside none.
    text = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    # By way of UTF-16 the halves of a character become one.
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def _surrogates(found: re.Match[str]) -> str:
    code = ord(found.group()) - 0x10000
    return chr(0xD800 | code >> 10) + chr(0xDC00 | code & 0x3FF)
