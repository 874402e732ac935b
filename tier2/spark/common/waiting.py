"""What a job of this process waits for outside of Spark, in words: for the display of its progress.

Of a process there is one terminal: so this is one place, and not an argument through all that may
wait. No pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_waits: list[str] = []


@contextmanager
def waits_for(text: str) -> Iterator[None]:
    """While this is entered the job waits for something. From any thread."""
    _waits.append(text)
    try:
        yield
    finally:
        _waits.remove(text)


def waited_for() -> str:
    """What is waited for, the last of it; empty for nothing."""
    # Another thread may take away the last one between two checks of the list.
    return next(iter(_waits[-1:]), "")
