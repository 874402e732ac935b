"""ContainerLoad: how much one container has to do, for what assigns containers to hosts."""

from __future__ import annotations

from typing import NamedTuple


class ContainerLoad(NamedTuple):
    """As of now. The counts begin with each start of the container."""

    bytes_appended: int
    """To its log: appends, what surrounds them, and checkpoints."""
    bytes_read: int
    """Given to readers."""
    unflushed_bytes: int
    active_segments: int
