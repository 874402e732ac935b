"""BookKeeper round: one store on a real cluster, owned by one process after the other, and the
judgement of its whole history.

Each owner works in a folder of its own, which is empty: all it knows comes from the cluster and
from Tier 2. Rules of this file:

- the parent never has the store open;
- an error no caller should ever see is a violation; so is an owner that did not die where it should
  have;
- every child is stopped on every way out.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from recovery.harness.checkers.all_checks import check_history
from recovery.harness.history import History, Violation
from recovery.harness.history_codec import Event, Retelling
from recovery.harness.kills.orders import OVERTAKEN, Ending, Orders
from recovery.harness.kills.process import Child, ChildHungError, attend

OPERATIONS: Final = 6000
"""More than an owner makes before it ends."""
RIVAL_OPERATIONS: Final = 150
NUMBERS_SPARE: Final = 1024
IN_FLIGHT_EVENTS: Final = 60
"""What an owner has reported before it is paused for the first time."""
PAUSES_MAX: Final = 200
_STOPPED: Final = ("ContainerStoppedError", "NotPrimaryError", "AppendOutcomeUnknownError")


class BookKeeperRound:
    """One store at the URL `tier1`, its owners' folders below `folder`. Used once."""

    def __init__(self, folder: Path, tier1: str, seed: str, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        self._seed = seed
        tier2 = (folder / "tier2").resolve().as_uri()
        self._settings = {**settings, "tier1": tier1, "tier2": tier2, "containers": 1}
        self._retelling = Retelling()
        self._noted: list[Violation] = []

    @property
    def history(self) -> History:
        """All reports so far."""
        return self._retelling.history

    def die(self, point: str, workload: str = "exactly-once", *, must: bool = True) -> bool:
        """One owner that recovers, works, and ends itself at a point of log_points; whether it did.

        Unless it `must`, it may have done all its work before it got there.
        """
        with Child(self._orders(workload, OPERATIONS, dies_at=point)) as child:
            try:
                attend([child], lambda: child.idle)
            except ChildHungError as error:
                self._note(f"on its way to {point}: {error}")
            died = child.ended
            self._retelling.replay(child.events, [child.kill()])
            if (died and not child.was_killed) or (must and not died):
                self._note(
                    f"owner {child.orders.process_run} did not die at {point}: {_failure(child)}"
                )
        return died

    def work(self, workload: str, operations: int, lines: int, *, phases: int = 1) -> bool:
        """One owner that recovers, works, and is killed when it has reported so many lines, or all
        it had to do; whether it was at work.
        """
        with Child(self._orders(workload, operations, phases=phases)) as child:
            try:
                attend([child], lambda: child.idle or len(child.events) > lines)
            except ChildHungError as error:
                self._note(f"owner {child.orders.process_run} hangs: {error}")
            worked, died = not child.idle, child.ended
            self._retelling.replay(child.events, [child.kill()])
            self._note_errors(child.events)
            if died:
                self._note(f"owner {child.orders.process_run} died by itself: {_failure(child)}")
        return worked

    def takeover(self, *, with_gateway: bool, settings: Mapping[str, Any] | None = None) -> int:
        """An owner under load is stopped with appends on their way; another takes over and works;
        the first one goes on.

        `with_gateway`: its Java process is stopped as well (it has one of its own). How many calls
        of it were not acknowledged.
        """
        orders = self._orders("appends", OPERATIONS, proves=True)
        orders = dataclasses.replace(orders, settings={**orders.settings, **(settings or {})})
        with Child(orders) as first:
            attend([first], lambda: first.ended or "observed" in first.said)
            self._stop_in_flight(first, with_gateway=with_gateway)
            rival_orders = dataclasses.replace(
                orders,
                location=str(self._folder / f"owner-{orders.process_run + 1}"),
                process_run=orders.process_run + 1,
                seed=f"{orders.seed}/rival",
                first_call=orders.first_call + first.used_calls + OPERATIONS + NUMBERS_SPARE,
                operations=RIVAL_OPERATIONS,
                settings={**orders.settings, "take_over": True},
            )
            with Child(rival_orders) as rival:
                try:
                    attend([rival], lambda: rival.ended or len(rival.events) > IN_FLIGHT_EVENTS)
                    first.signal_all(signal.SIGCONT)
                    attend([first, rival], lambda: first.idle and rival.idle)
                except ChildHungError as error:
                    self._note(f"owner {orders.process_run} and its follower: {error}")
                for child in (first, rival):
                    if child.ended and not child.has_parted:
                        self._note(
                            f"owner {child.orders.process_run} died by itself: {child.errors()}"
                        )
                ends = [first.kill(), rival.kill()]
        self._retelling.replay([*first.events, ends[0]], [*rival.events, ends[1]])
        self._note_errors(first.events, *(each.__name__ for each in OVERTAKEN))
        self._note_errors(rival.events)
        if "observed" not in rival.said:
            self._note(f"owner {rival.orders.process_run} did not take over: {_failure(rival)}")
        return sum(event.fields.get("error") in _STOPPED for event in first.events)

    def finish(self) -> list[Violation]:
        """All must be there, go to Tier 2, and be there again for another; what was wrong from the
        beginning on.
        """
        endings: tuple[Ending, ...] = ("checked", "closed")
        for ending in endings:
            with Child(self._orders("appends", 0, ending=ending)) as child:
                try:
                    over = child.wait()
                except ChildHungError as error:
                    self._note(f"the last owner hangs: {error}")
                    over = child.kill()
                self._retelling.replay(child.events, [over])
                self._note_errors(child.events)
                if "over" not in child.said:
                    self._note(f"the last owner did not end well: {_failure(child)}")
        return [*self._noted, *check_history(self.history)]

    def _stop_in_flight(self, first: Child, *, with_gateway: bool) -> None:
        """Stop it while appends are on their way."""
        for pause in range(PAUSES_MAX):
            wanted = len(first.events) + (1 if pause else IN_FLIGHT_EVENTS)
            attend([first], partial(_has_come_to, first, wanted))
            if with_gateway:
                first.signal_all(signal.SIGSTOP)
            if not first.stop():
                break
            if first.said.get("begun", 0) > first.said.get("ended", 0):
                return
            first.signal_all(signal.SIGCONT)
        self._note(
            f"owner {first.orders.process_run} was never seen with appends on their way: "
            + _failure(first)
        )

    def _orders(
        self, workload: str, operations: int, *, ending: Ending = "killed", **more: Any
    ) -> Orders:
        process_run = len(self.history.process_runs)
        return Orders(
            location=str(self._folder / f"owner-{process_run}"),
            process_run=process_run,
            seed=f"{self._seed}/{process_run}",
            workload=workload,
            first_call=self._retelling.next_call,
            operations=operations,
            ending=ending,
            settings=self._settings,
            **more,
        )

    def _note_errors(self, events: list[Event], *foreseen: str) -> None:
        for event in events:
            if event.what == "failed" and any(
                error not in foreseen for error in event.fields["errors"]
            ):
                self._note(f"owner {event.process_run} failed: {event.fields['text']}")
            elif event.what == "ended" and event.fields.get("error") in _STOPPED and not foreseen:
                self._note(
                    f"call {event.fields['call']} ended in {event.fields['error']}, and "
                    "no other owner had taken over"
                )

    def _note(self, detail: str) -> None:
        self._noted.append(Violation("errors", detail))


def _has_come_to(child: Child, events: int) -> bool:
    return child.idle or len(child.events) >= events


def _failure(child: Child) -> str:
    told = [str(event.fields["text"]) for event in child.events if event.what == "failed"]
    return "\n".join([f"it reported {child.said}", *told, child.errors()])
