"""SegmentContainer, owner of a set of segments: all that others call, and its parts behind it.

Split by kind of knowledge. `segment_container` is the façade, and starts and stops the parts;
`container_parts` builds and joins them. `segment_calls` has its calls on segments,
`container_upkeep` those that name none. `container_registry` starts and stops the containers of a
store, `container_status` says where each is.
`commit_dispatch` passes committed operations to the parts. `active_segments` and `eviction` say
which segments are in memory, `segment_loader` brings them there, `segment_scan` and
`written_catalog` pass over all of them. `block_listing` lists what they have in Tier 2,
`log_listing` the log. `metadata_checkpoints` writes the catalog and its snapshots. `write_throttle`
says when writers wait, `log_truncation` what of the log may be deleted, `container_stats` what they
count, `container_load` how much there is to do. Code outside this package imports no other module
of it, and reaches no part through the container.
"""

from __future__ import annotations

from segmentstore.container.container_load import ContainerLoad
from segmentstore.container.container_parts import ContainerResources
from segmentstore.container.container_registry import (
    STARTS_AT_ONCE,
    ContainerRegistry,
    MakeContainer,
)
from segmentstore.container.container_state import ContainerState
from segmentstore.container.container_status import PRESENT, ContainerStatus, HostState
from segmentstore.container.segment_container import SegmentContainer

__all__ = [
    "PRESENT",
    "STARTS_AT_ONCE",
    "ContainerLoad",
    "ContainerRegistry",
    "ContainerResources",
    "ContainerState",
    "ContainerStatus",
    "HostState",
    "MakeContainer",
    "SegmentContainer",
]
