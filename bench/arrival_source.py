"""A process that says when appends are due: a byte each on a socket, evenly or in bursts.

A process of its own, since timers of an event loop are as coarse as a millisecond, and its CPU is
not that of what is measured.
"""

from __future__ import annotations

import socket
import sys
import time


def send(channel: socket.socket, interval_s: float, burst: int, seconds: float) -> None:
    """Send `burst` bytes each `interval_s`, as the clock has it: what is late comes at once."""
    data = bytes(burst)
    begun = time.perf_counter()
    sent = 0
    while sent * interval_s < seconds:
        wait = begun + sent * interval_s - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        channel.sendall(data)
        sent += 1


if __name__ == "__main__":
    descriptor, interval, size, duration = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as source:
        send(source, float(interval), int(size), float(duration))
