"""What a run must not depend on, and must not fill: collections of garbage, and the log of what
stops.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """No collection in the middle: when one comes depends on what ran before, and it ends
    generators and tasks.

    And no log of what stops containers: here they stop all the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        if enabled:
            gc.enable()
