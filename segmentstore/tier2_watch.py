"""What looks after an open store's bytes in Tier 2 beside its containers: the scrub, and what reads
found lost there.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from recovery import loss_file
from recovery.loss_keeper import LossKeeper
from segmentstore.container import SegmentContainer
from tier2.object_names import is_of_store
from tier2.unique_ids import store_tag

if TYPE_CHECKING:
    from recovery.background_scrub import BackgroundScrub
    from segmentstore.store_parts import StoreParts


def scrub_of(parts: StoreParts) -> BackgroundScrub:
    """The scrub of the store, not begun."""
    # Not at the top: only a store that scrubs pays for it.
    from recovery.background_scrub import BackgroundScrub  # noqa: PLC0415
    from recovery.scrub_state import FILE_NAME  # noqa: PLC0415

    return BackgroundScrub(
        parts.storage,
        {
            number: partial(parts.registry.running, number)
            for number in range(parts.config.containers)
        },
        parts.runtime,
        bytes_per_s=parts.config.scrub_bytes_per_s,
        path=os.path.join(parts.location, FILE_NAME),
        store_id=parts.store_id,
    )


def losses_of(parts: StoreParts) -> LossKeeper:
    """What reads of the store find lost from now on, not begun."""
    return LossKeeper(
        parts.storage,
        parts.runtime,
        path=os.path.join(parts.location, loss_file.FILE_NAME),
        store_id=parts.store_id,
        check=parts.markers.shared_with,
    )


def watch_reads(keeper: LossKeeper, container: SegmentContainer) -> None:
    """Have what reads of a container find lost kept, from now on."""
    container.watch_fetches(keeper.attach(container.container_id, container))


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
