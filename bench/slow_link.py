"""A link to Tier 2 that carries so many bytes a second, on the clock of the running loop."""

from __future__ import annotations

import asyncio

_STEP_S = 0.05


class SlowLink:
    """Shared evenly by all who send; the rate may change at any time, and may be 0."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._senders = 0

    async def carry(self, length: float) -> None:
        """Return when so many bytes are over."""
        loop = asyncio.get_running_loop()
        self._senders += 1
        try:
            before = loop.time()
            while length > 0:
                await asyncio.sleep(_STEP_S)
                now = loop.time()
                length -= self.bytes_per_s * (now - before) / self._senders
                before = now
        finally:
            self._senders -= 1
