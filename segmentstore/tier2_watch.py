"""What looks after an open store's bytes in Tier 2 beside its containers: the scrub, and what reads
found lost there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from recovery import loss_file, scrub_state
from recovery.background_scrub import BackgroundScrub
from recovery.loss_keeper import LossKeeper
from recovery.open_container import OpenContainer
from segmentstore.container import ContainerState, SegmentContainer
from tier2.object_names import is_of_store, store_tag

if TYPE_CHECKING:
    from segmentstore.store_parts import StoreParts


def scrub_of(parts: StoreParts) -> BackgroundScrub:
    """The scrub of the store, not begun."""

    def live(container: SegmentContainer) -> Callable[[], OpenContainer | None]:
        return lambda: container if container.state is ContainerState.RUNNING else None

    return BackgroundScrub(
        parts.storage,
        {container.container_id: live(container) for container in parts.containers},
        parts.runtime,
        bytes_per_s=parts.config.scrub_bytes_per_s,
        path=os.path.join(parts.location, scrub_state.FILE_NAME),
        store_id=parts.store_id,
    )


def losses_of(parts: StoreParts) -> LossKeeper:
    """What reads of the store find lost from now on, not begun."""
    keeper = LossKeeper(
        parts.storage,
        {container.container_id: container for container in parts.containers},
        parts.runtime,
        path=os.path.join(parts.location, loss_file.FILE_NAME),
        store_id=parts.store_id,
        check=parts.markers.shared_with,
    )
    for container in parts.containers:
        container.watch_fetches(keeper.watch(container.container_id))
    return keeper


def has_objects(parts: StoreParts) -> bool:
    """Whether any object that the logs name was made by this store: none of a store that was just
    restored. O(objects).
    """
    tag = store_tag(parts.store_id)
    return any(
        is_of_store(name, tag)
        for container in parts.containers
        for name in container.object_names()
    )
