"""`python -m durablelog.bookkeeper.cluster FOLDER`: ends a local cluster at once; what its watchdog
runs.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from durablelog.bookkeeper.cluster.addresses import load_addresses
from durablelog.bookkeeper.cluster.local_cluster import LocalCluster


def main(folder: str) -> None:
    """End every process of the cluster in this folder by SIGKILL."""
    if load_addresses(Path(folder)) is not None:
        LocalCluster(Path(folder)).stop(signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
