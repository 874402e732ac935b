"""`segmentstore.connect`, as a type checker sees it for a store that one process serves."""

from __future__ import annotations

from typing import Any, cast

import segmentstore
from segmentstore import RemoteStore
from segmentstore.client.connecting import ConnectingStore


def connect_one(location: Any, **options: Any) -> ConnectingStore[RemoteStore]:
    """To a folder or one address."""
    return cast("ConnectingStore[RemoteStore]", segmentstore.connect(location, **options))
