"""Loads of the Python wheel `pravega`: `wire_wheel URI LOAD NAME=VALUE...`, a process of its own.

Writes what `bench.wire_load` reads.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any, Final

from bench.loads import percentile

SCOPE: Final = "bench"
IN_FLIGHT: Final = 1_000
_CLOCK_EVENTS: Final = 256
"""Events between two calls of the clock."""


def write_pipelined(writer: Any, size: int, seconds: float) -> dict[str, float]:
    """As many events as go in so long, IN_FLIGHT of them not acknowledged."""
    event = bytes(size)
    begun = time.perf_counter()
    count = 0
    while time.perf_counter() - begun < seconds:
        for _ in range(_CLOCK_EVENTS):
            writer.write_event_bytes(event, routing_key="key")
        count += _CLOCK_EVENTS
    writer.flush()
    elapsed = time.perf_counter() - begun
    return {"count": count, "seconds": elapsed, "per_s": count / elapsed}


def write_and_flush(writer: Any, size: int, seconds: float) -> dict[str, float]:
    """One event, a flush, and the next one."""
    event = bytes(size)
    taken = list[float]()
    begun = now = time.perf_counter()
    # At least one: there is no warm-up in a test.
    while not taken or now - begun < seconds:
        writer.write_event_bytes(event, routing_key="key")
        writer.flush()
        before, now = now, time.perf_counter()
        taken.append(now - before)
    taken.sort()
    return {
        "count": len(taken),
        "seconds": now - begun,
        "per_s": len(taken) / (now - begun),
        "p50_ms": percentile(taken, 0.5) * 1e3,
        "p99_ms": percentile(taken, 0.99) * 1e3,
        "p999_ms": percentile(taken, 0.999) * 1e3,
    }


LOADS: Final = {"pipelined": write_pipelined, "flush": write_and_flush}


def main() -> None:
    """Warm up, measure, write the result."""
    uri, load, *pairs = sys.argv[1:]
    given = dict(pair.split("=", 1) for pair in pairs)
    secured = uri.startswith("tls:")
    manager = importlib.import_module("pravega_client").StreamManager(
        uri, auth_enabled=False, tls_enabled=secured
    )
    manager.create_scope(SCOPE)
    manager.create_stream(SCOPE, given["stream"], 1)
    writer = manager.create_writer(SCOPE, given["stream"], max_inflight_events=IN_FLIGHT)
    LOADS[load](writer, int(given["bytes"]), float(given["warm"]))
    print("begun", flush=True)
    result = LOADS[load](writer, int(given["bytes"]), float(given["seconds"]))
    print("result", json.dumps(result), flush=True)
    # The wheel's threads are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
