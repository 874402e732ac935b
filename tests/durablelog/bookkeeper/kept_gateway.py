"""One gateway for many tests: each would start its own and end it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from durablelog.bookkeeper.gateway.shared_gateway import OwnGateway, acquire_own


@contextmanager
def kept_gateway() -> Iterator[OwnGateway]:
    gateway = acquire_own(0.0, random.SystemRandom())
    try:
        yield gateway
    finally:
        gateway.release()
