"""Where the CPU of this process goes, by layer of the code, by samples of its main thread.

ITIMER_PROF counts the CPU of all threads. At each of its ticks the kernel sends SIGPROF, and Python
runs the handler in the main thread, between two bytecodes. The handler notes the layer of the
innermost frame that belongs to a known one. What follows from that:

- A function of C (a syscall, a checksum, RocksDB) counts for the layer that calls it. What Python's
  own modules do counts for the layer below them.
- A tick may come from another thread while the loop waits for events. Such a sample is not counted:
  its frame is `select` with a timeout other than 0. So what entering and leaving a wait costs is
  missing from asyncio's share. While the main thread waits for the interpreter's lock, a sample
  counts where it waits.
- A collection of garbage runs inside of any layer. A callback notes when one begins and ends; a
  sample between the two counts for the collector.
- The kernel checks the timer at its own ticks, often 250 a second, however short the interval. So a
  share of a tenth has an error of 1.3 per cent points for 500 samples (one standard deviation).

The CPU of the main thread, and of all others together, comes from the thread's and the process's
clock. The samples only divide the main thread's.
"""

from __future__ import annotations

import asyncio
import gc
import math
import selectors
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, Self

CALLERS: Final = "callers (bench)"
COLLECTOR: Final = "garbage collector"
OTHER: Final = "other"
ROOT: Final = Path(__file__).resolve().parent.parent
_PATHS: Final = (
    ("bench/", CALLERS),
    ("segmentstore/contracts/collector.py", COLLECTOR),
    ("segmentstore/contracts/", "segmentstore.contracts"),
    ("segmentstore/", "segmentstore"),
    ("durablelog/file/", "durablelog.file"),
    ("durablelog/catalog/", "durablelog.catalog"),
    ("durablelog/", "durablelog"),
    ("readindex/", "readindex"),
    ("storagewriter/", "storagewriter"),
    ("tier2/", "tier2"),
)
"""Beginnings of paths in this repository, the longer ones first, and their layer."""
_ASYNCIO: Final = (f"{Path(asyncio.__file__).parent}/", selectors.__file__)
LAYERS: Final = (
    *(CALLERS, "asyncio", "segmentstore", "segmentstore.contracts", "durablelog"),
    *("durablelog.file", "durablelog.catalog", "readindex", "storagewriter", "tier2"),
    *(COLLECTOR, OTHER),
)
"""In the order of the table."""
_INTERVAL_S: Final = 0.001


class CpuShares(NamedTuple):
    """What a block came to."""

    main_s: float
    """CPU seconds of the main thread."""
    process_s: float
    """CPU seconds of all threads, this one among them."""
    samples: dict[str, int]
    """Samples of the main thread by layer; layers without one are missing."""


@cache
def layer_of_file(path: str) -> str | None:
    """The layer that a source file belongs to; None for Python's own modules and for libraries."""
    if path.startswith(_ASYNCIO):
        return "asyncio"
    inside = path.removeprefix(f"{ROOT}/")
    return next((layer for begin, layer in _PATHS if inside.startswith(begin)), None)


def layer_of(files: Iterable[str]) -> str:
    """The layer of a stack: of the first file that belongs to one. `files` begin with the innermost
    frame.
    """
    return next((layer for layer in map(layer_of_file, files) if layer is not None), OTHER)


def is_waiting(file: str, function: str, timeout: float | None) -> bool:
    """Whether an innermost frame waits for events: `select` with a timeout other than 0."""
    return file == selectors.__file__ and function == "select" and timeout != 0


class CpuSampler:
    """Samples the main thread while it is entered, which must be there. One in a process at a time.

    The handler costs some microseconds a tick, and counts for the layer that it interrupts.
    """

    def __init__(self) -> None:
        self._samples: Counter[str] = Counter()
        self._is_collecting = False
        self._main_s = self._process_s = 0.0

    def __enter__(self) -> Self:
        signal.signal(signal.SIGPROF, self._sample)
        # Other threads' calls are to go on after a signal that one of them received.
        signal.siginterrupt(signal.SIGPROF, False)  # noqa: FBT003 - its only parameter
        gc.callbacks.append(self._collecting)
        self._main_s, self._process_s = time.thread_time(), time.process_time()
        signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        self._main_s = time.thread_time() - self._main_s
        self._process_s = time.process_time() - self._process_s
        gc.callbacks.remove(self._collecting)
        # A tick may still be on its way, and by default it would end the process.
        signal.signal(signal.SIGPROF, signal.SIG_IGN)

    def shares(self) -> CpuShares:
        """Of the whole block, once it has ended."""
        return CpuShares(self._main_s, self._process_s, dict(self._samples))

    def _sample(self, _: int, frame: FrameType | None) -> None:
        if self._is_collecting:
            self._samples[COLLECTOR] += 1
            return
        if frame is not None:
            code = frame.f_code
            timeout = frame.f_locals.get("timeout") if code.co_name == "select" else None
            if is_waiting(code.co_filename, code.co_name, timeout):
                return
        self._samples[layer_of(_files_of(frame))] += 1

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        # Another thread's collection is no CPU of this one.
        if threading.current_thread() is threading.main_thread():
            self._is_collecting = phase == "start"


def _files_of(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def standard_error(share: float, samples: int) -> float:
    """Of a share (0 to 1) that was found in so many samples; 1 without any."""
    return math.sqrt(share * (1 - share) / samples) if samples else 1.0
