"""What tests of commands need of the process that runs them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def _terminal() -> Iterator[None]:
    """SIGHUP as in a terminal: not ignored, as behind nohup, which commands would inherit."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
