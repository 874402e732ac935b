"""The signals by which a process that serves is asked to end in order (loop)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def asked_to_end(ask: Callable[[], object], *, by_ctrl_c: bool = True) -> Iterator[None]:
    """While inside, SIGINT, SIGTERM and SIGHUP call `ask` in a turn of the loop; SIGINT only
    `by_ctrl_c`.

    SIGHUP comes when a terminal is closed. It stays ignored where it was, as behind nohup.
    """
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM] if by_ctrl_c else [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, ask)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
