"""The one error of this package."""

from __future__ import annotations

from segmentstore.contracts.errors import SegmentStoreError


class WireError(SegmentStoreError, ValueError):
    """Bytes that are no command of the protocol, or a command that has no such bytes.

    Nothing of it was applied. On a connection the borders of the frames are lost: close it.
    """
