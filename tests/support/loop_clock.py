"""Wall time for tests on a virtual loop of their own, without a world."""

from __future__ import annotations

import asyncio


class LoopClock:
    """Wall time that follows the running virtual loop; `offset_ms` may be moved to make it jump."""

    def __init__(self, offset_ms: int = 1_700_000_000_000) -> None:
        self.offset_ms = offset_ms

    def time_ms(self) -> int:
        return self.offset_ms + int(asyncio.get_running_loop().time() * 1000)
