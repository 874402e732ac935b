"""Wall time for tests on a virtual loop of their own, without a world."""

from __future__ import annotations

import asyncio

from segmentstore.contracts.runtime import BootTime


class LoopClock:
    """Wall time that follows the running virtual loop; `offset_ms` may be moved to make it jump."""

    def __init__(self, offset_ms: int = 1_700_000_000_000) -> None:
        self.offset_ms = offset_ms

    def time_ms(self) -> int:
        return self.offset_ms + int(asyncio.get_running_loop().time() * 1000)


class LoopBoot:
    """A machine whose time goes on with the running virtual loop; `number` may be counted up to
    start it anew.
    """

    def __init__(self) -> None:
        self.number = 1
        self.began_s = 0.0

    def __call__(self) -> BootTime:
        elapsed_s = asyncio.get_running_loop().time() - self.began_s
        return BootTime(self.number.to_bytes(16, "big"), int(elapsed_s * 1000))

    def start_anew(self) -> None:
        """The machine was switched off and on."""
        self.number += 1
        self.began_s = asyncio.get_running_loop().time()
