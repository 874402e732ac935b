"""Whether a setting `tier1` names BookKeeper. Asked of every store, so it loads nothing: what such
a URL says is in `bookkeeper_location`. Pure.
"""

from __future__ import annotations

from typing import Final

SCHEME: Final = "bookkeeper"


def is_bookkeeper_url(tier1: str) -> bool:
    """Whether a `tier1` setting asks for BookKeeper; `BookKeeperLocation.parse` says if it does so
    rightly.
    """
    return tier1.partition(":")[0] == SCHEME
