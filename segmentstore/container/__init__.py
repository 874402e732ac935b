"""SegmentContainer, owner of a set of segments: all that others call, and its parts behind it.

Split by kind of knowledge. `segment_container` is the façade, and starts and stops the parts;
`commit_dispatch` passes committed operations to them. `write_throttle` says when writers wait,
`log_truncation` what of the log may be deleted, `container_stats` what they count. Outside this
package nobody imports another module of it, and no part is reached through the container.
"""

from __future__ import annotations

from segmentstore.container.segment_container import ContainerState, SegmentContainer

__all__ = ["ContainerState", "SegmentContainer"]
