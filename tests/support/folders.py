"""Files below a folder in which a store works meanwhile."""

from __future__ import annotations

import os
from pathlib import Path


def files_below(folder: Path) -> list[Path]:
    """All files, sorted.

    Unlike `Path.rglob`, it does not fail on a folder that is removed meanwhile.
    """
    return sorted(Path(root, name) for root, _, names in os.walk(folder) for name in names)
