"""Where a container is in its lifetime."""

from __future__ import annotations

import enum


class ContainerState(enum.Enum):
    """It goes through them in this order, once."""

    NEW = "new"
    RECOVERING = "recovering"
    RUNNING = "running"
    STOPPED = "stopped"
