"""Stopping a process, so that it neither answers nor goes away."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Final

_CHECK_S: Final = 0.001
_STOPPED: Final = frozenset("TtZX")


def pause_process(process: int) -> None:
    """SIGSTOP. Returns when no thread of it runs any more, or it has ended.

    The signal stops them once one of them has taken it: on a busy machine others run on until then,
    and answer. Blocks for that long. Raises ProcessLookupError if there is none.
    """
    os.kill(process, signal.SIGSTOP)
    pause = threading.Event()
    while _runs(process):
        pause.wait(_CHECK_S)


def _runs(process: int) -> bool:
    for thread in Path(f"/proc/{process}/task").glob("*/stat"):
        try:
            text = thread.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it has ended
        # The name before it may hold anything, brackets too.
        if text.rpartition(")")[2].split()[0] not in _STOPPED:
            return True
    return False
