"""Where a container is, in the process that may serve it, and why. Pure."""

from __future__ import annotations

import enum
from typing import NamedTuple

from segmentstore.contracts.errors import (
    ContainerNotServedError,
    ContainerOwnedError,
    ContainerStoppedError,
    NotPrimaryError,
    SegmentStoreError,
    describe,
)


class HostState(enum.Enum):
    """What this process does with a container."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    """On request, or never started."""
    FAILED = "failed"
    """Its start failed, or something stopped it unasked."""


PRESENT = frozenset((HostState.STARTING, HostState.RUNNING, HostState.STOPPING))
"""It holds parts of the store that its neighbours share with it."""
STOPPED_ON_REQUEST = "it was stopped on request"
_WHY_NOT = {
    HostState.STARTING: "it is being started",
    HostState.STOPPING: "it is being stopped",
    HostState.STOPPED: STOPPED_ON_REQUEST,
}


class ContainerStatus(NamedTuple):
    """A state, and how it was reached."""

    state: HostState
    since_ms: int
    """By the wall clock, in milliseconds since 1970 UTC."""
    cause: BaseException | None = None
    """Why it is FAILED."""


def refusal(number: int, status: ContainerStatus) -> SegmentStoreError:
    """What a call gets for a segment of a container that is not there."""
    cause = status.cause
    if cause is None:
        return ContainerNotServedError(number, _WHY_NOT[status.state])
    if isinstance(cause, NotPrimaryError | ContainerOwnedError):
        return ContainerNotServedError(number, f"its start failed: {describe(cause)}")
    return ContainerStoppedError(number, cause)
