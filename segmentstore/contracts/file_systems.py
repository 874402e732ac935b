"""What kind of file system a folder is on, as Linux says (/proc/self/mountinfo)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_OF_ONE_HOST: Final = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs"))
"""File systems that only one kernel has mounted."""


def is_of_one_host(where: str, proc: Path = _PROC) -> bool:
    """Whether only processes of this kernel can have anything there. False if unknown.

    Blocking. No server is asked for what is there, and no call waits for one.
    """
    try:
        device = Path(where).stat().st_dev
        mounts = (proc / "self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    kinds = {
        line.partition(" - ")[2].split(" ")[0]
        for line in mounts.splitlines()
        if line.split(" ")[2:3] == [number]
    }
    return bool(kinds) and kinds <= _OF_ONE_HOST
