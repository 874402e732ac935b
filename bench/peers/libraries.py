"""Client libraries of peers: of the extra `bench-peers`, which `make bench-peers` installs."""

from __future__ import annotations

import importlib.util

from bench.workspace import BenchError


def library(module: str) -> None:
    """Raise BenchError, which names what to install, unless the module is there."""
    if importlib.util.find_spec(module) is None:
        message = f"the module {module} is missing; install it: pip install '.[bench-peers]'"
        raise BenchError(message)
