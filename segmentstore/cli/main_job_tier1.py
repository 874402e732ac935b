"""Where the main job's Tier 1 is: in the store's folder, or on a BookKeeper cluster of its own on
this machine.

The cluster's processes die with the main job, however it ends; its folder is made anew by each run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from segmentstore.settings_sources import ENVIRONMENT_PREFIX

BOOKIES = 3


class Tier1Kind(StrEnum):
    """What `--tier1` and `make run TIER1=` take."""

    FILE = "file"
    BOOKKEEPER = "bookkeeper"


class MainJobTier1(NamedTuple):
    """What the job's processes get."""

    environment: dict[str, str]
    said: str | None
    """For people; None for the default."""


@contextmanager
def main_job_tier1(
    kind: Tier1Kind, folder: Path, say: Callable[[str], None]
) -> Iterator[MainJobTier1]:
    """Tier 1 for one run.

    Raises GatewayMissingError (what BookKeeper needs and is not here), LocalClusterError.
    """
    if kind is Tier1Kind.FILE:
        yield MainJobTier1({}, None)
        return
    # Not at the top: the default run pays for none of it.
    from durablelog.bookkeeper.archiving.class_archiving import make_class_archives  # noqa: PLC0415
    from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation  # noqa: PLC0415
    from durablelog.bookkeeper.cluster.local_cluster import LocalCluster  # noqa: PLC0415
    from durablelog.bookkeeper.installation import gateway_classpath, install  # noqa: PLC0415

    install(say)
    gateway_classpath()
    make_class_archives(say)
    if folder.exists():
        LocalCluster(folder).stop()
        shutil.rmtree(folder)
    cluster = LocalCluster(folder, BOOKIES, watched=True)
    try:
        cluster.start(say)
        url = cluster.url()
        replication = BookKeeperLocation.parse(url).replication
        said = f"BookKeeper, {BOOKIES} bookies on this machine, {replication}"
        yield MainJobTier1({ENVIRONMENT_PREFIX + "TIER1": url}, said)
    finally:
        cluster.stop()
