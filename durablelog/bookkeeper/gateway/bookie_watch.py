"""How the bookies are, as the gateway reports: what each owes, and which ledgers should go on
without one of them.

The gateway bounds by itself what is kept for a bookie, and says with each beat how many are in
trouble (java/segmentstore/Bookies.java). This class polls that, keeps it for `health` and metrics,
and acts on it. A ledger one of whose bookies misses entries is to be followed by the next one as
soon as there are enough healthy bookies. If there are not, it goes on with the ack quorum: another
ledger would have the same bookies. Rules of this file:

- a ledger is reported again while it is so: it may not be in use yet, as one that was made ahead,
  or have no entry;
- the next ledger may have the same bookie all the same, where placement allows no other. So from
  one report to the next it takes longer each time: else there would be another ledger each second.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from durablelog.bookkeeper.gateway.add_connection import Beat, GatewayWriter
from durablelog.bookkeeper.ledger_store import BookieFigures, LedgerError
from segmentstore.contracts.owned_tasks import own_task

FIRST_PAUSE_S: Final = 5.0
"""From the first report to the second."""
PAUSE_S_MAX: Final = 600.0
_MIB: Final = 1 << 20


class BookieState(NamedTuple):
    """One bookie that entries were sent to."""

    bookie: str
    owed_bytes: int
    """Sent to it and not answered; kept in the gateway's memory."""
    missed: int
    """Entries that it was not given, or did not take, since its trouble began."""
    troubled_ms: int
    """How long that is; -1 for one that is well."""
    refusal: str = ""
    """Why it does not let this client in, and which settings to check; empty if it does, or is
    away.
    """

    @property
    def troubled(self) -> bool:
        """It has not answered an entry since."""
        return self.troubled_ms >= 0

    def __str__(self) -> str:
        if self.refusal:
            return f"bookie {self.bookie} does not let this client in: {self.refusal}"
        owes = f"owes {self.owed_bytes / _MIB:.1f} MiB, misses {self.missed} entries"
        return (
            f"bookie {self.bookie} does not keep up: for {self.troubled_ms / 1000:.0f} s it {owes}"
        )


def parse_states(lines: Iterable[str]) -> list[BookieState]:
    """The answer to `bookies`, without the code."""
    rows = (line.split(" ", 4) for line in lines if line)
    return [
        BookieState(bookie, int(owed), int(missed), int(ms), *refusal)
        for bookie, owed, missed, ms, *refusal in rows
    ]


class BookieWatch:
    """For one connection to the gateway.

    `ask` makes a call of its session; at most one is under way.
    """

    def __init__(
        self,
        writers: Callable[[], Sequence[GatewayWriter]],
        ask: Callable[[str], Awaitable[Sequence[str]]],
    ) -> None:
        self._writers = writers
        self._ask = ask
        self._states: list[BookieState] = []
        self._gateway_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._again_s = -math.inf
        self._pause_s = 0.0

    def beat(self, beat: Beat) -> None:
        """The gateway reported the state of the bookies, once a second."""
        self._gateway_bytes = beat.direct_bytes
        if self._writers() and self._task is None and not self._closed:
            self._task = own_task(self._check(), name="check-bookies")

    def close(self) -> None:
        """The connection is closed. Idempotent."""
        self._closed = True
        self._states = []
        if self._task is not None:
            self._task.cancel()

    def health(self) -> str | None:
        """The bookies in trouble, for people."""
        return "; ".join(str(state) for state in self._states if state.troubled) or None

    def figures(self) -> BookieFigures:
        """As last reported."""
        return BookieFigures(
            behind=sum(state.troubled for state in self._states),
            owed_bytes_max=max((state.owed_bytes for state in self._states), default=0),
            client_bytes=self._gateway_bytes,
        )

    async def _check(self) -> None:
        try:
            self._states = parse_states(await self._ask("bookies"))
            short = {state.bookie for state in self._states if state.troubled and state.missed}
            if short and any(short & writer.bookies for writer in self._writers()):
                (registered,) = await self._ask("registered")
                self._report(short, set(registered.split()) - short)
        except LedgerError:
            pass  # the next beat asks again, if there is one
        finally:
            self._task = None

    def _report(self, short: set[str], well: set[str]) -> None:
        now_s = asyncio.get_running_loop().time()
        lacking = [
            each
            for each in self._writers()
            if short & each.bookies and len(well) >= len(each.bookies)
        ]
        if not lacking or now_s < self._again_s:
            return
        was_calm = now_s - self._again_s >= PAUSE_S_MAX
        self._pause_s = FIRST_PAUSE_S if was_calm else min(2 * self._pause_s, PAUSE_S_MAX)
        self._again_s = now_s + self._pause_s
        for writer in lacking:
            writer.fall_short(f"{' and '.join(sorted(short & writer.bookies))} does not keep up")
