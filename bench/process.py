"""What the kernel knows of this process: resident memory and open files, from /proc."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Self

_STATUS = Path("/proc/self/status")
_SAMPLE_S = 0.05


def resident_bytes() -> int:
    """Resident set of this process now."""
    return _status_kib("VmRSS") * 1024


def resident_peak_bytes() -> int:
    """Highest resident set since the process began, as the kernel kept it; no sample can miss
    it.
    """
    return _status_kib("VmHWM") * 1024


def open_files() -> int:
    """File descriptors open now."""
    return len(os.listdir("/proc/self/fd"))


class Watch:
    """Samples resident memory and open files while it is entered, every 50 ms, on the running event
    loop.

    A loop that is busy samples less often: use `resident_peak_bytes` for a peak that must not be
    missed.
    """

    def __init__(self) -> None:
        self.resident: list[int] = []
        self.files: list[int] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._sample())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._measure()

    async def _sample(self) -> None:
        while True:
            self._measure()
            await asyncio.sleep(_SAMPLE_S)

    def _measure(self) -> None:
        self.resident.append(resident_bytes())
        self.files.append(open_files())


def _status_kib(name: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0])
    raise KeyError(name)
