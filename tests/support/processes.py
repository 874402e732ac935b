"""Questions about processes that are not children of the test."""

from __future__ import annotations

from pathlib import Path


def is_alive(process: int) -> bool:
    """False of a zombie, too: where nothing reaps orphans it stays one."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
