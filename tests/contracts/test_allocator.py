"""What `tune_malloc` changes, in processes of their own: the allocator is the process's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_ROUND = """
import ctypes
import os
import resource
import threading

import segmentstore

def faults(rounds):
    "Page faults of some rounds that take 24 MiB and free them."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        buffers = [bytearray(4 << 20) for _ in range(6)]
        del buffers
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""
_FAULTS = _ROUND + "segmentstore.tune_malloc()\nfaults(1)\nprint(faults(4))\n"
_ROUND_PAGES = (24 << 20) // os.sysconf("SC_PAGE_SIZE")


def run(script: str, **environment: str) -> str:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=inherited | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_freed_buffers_are_used_again_without_page_faults() -> None:
    assert int(run(_FAULTS)) < _ROUND_PAGES


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "1000000"),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1000000"),
    ],
)
def test_settings_of_the_environment_stay(name: str, value: str) -> None:
    assert int(run(_FAULTS, **{name: value})) > 3 * _ROUND_PAGES


def test_threads_share_two_heaps() -> None:
    heaps = """
segmentstore.tune_malloc()
start, end = threading.Barrier(8), threading.Barrier(9)
def allocate():
    start.wait()
    kept = bytearray(100_000)
    end.wait()
    end.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
end.wait()
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(library.fopen(b"/dev/stdout", b"w"))
library.malloc_info(0, stream)
library.fclose(stream)
end.wait()
"""
    assert run(_ROUND + heaps).count("<heap nr=") <= 2
