"""A tiny store for the wire benches, and what their figures have in common."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.floor import MIB
from bench.wire_servers import OurServer, running

SMALL: Final = {"log_file_bytes": 4 * MIB}


@contextmanager
def small_server(folder: Path) -> Iterator[OurServer]:
    server = OurServer(folder / "ours", "file", settings=SMALL)
    with running(server):
        yield server


def is_sane(measured: dict[str, Any]) -> bool:
    json.dumps(measured)
    return all(math.isfinite(value) and value >= 0 for value in measured.values())


def side(**figures: float) -> list[dict[str, Any]]:
    """Of one round."""
    return [{"value": 1.0, **figures}]
