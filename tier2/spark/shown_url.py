"""URLs as people may see them. A place's URL may hold a password or a key; what is printed, raised or kept must not.

An open storage knows its own (`ObjectStorage.url`); this is for texts that are no location, or none yet. Pure.
"""

from __future__ import annotations

import re
from typing import Final

_PASSWORD: Final = re.compile(r"^([A-Za-z0-9+.-]+:/*[^/?#:]*):[^/?#]*@")


def shown_url(text: str) -> str:
    """The text without password, and if it is a URL without query: both may be secrets."""
    without = _PASSWORD.sub(r"\1@", text)
    return without.partition("?")[0] if "://" in without else without
