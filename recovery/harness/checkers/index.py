"""Index of a history: what every checker asks for, made once.

Calls by name and incarnation, effects in time, contents.

An *incarnation* is one lifetime of a name, from a creation to its removal (deletion, or a merge
into another segment). Rules of this file:

- calls go to an incarnation only if they can have met no other; the rest is left out, and
  `Incarnation.certain` says so;
- everything is in the order of the history; nothing is looked up by anything but dicts and lists.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import Final

from recovery.harness.checkers.contents import Chain
from recovery.harness.history import (
    Call,
    CallKind,
    CallOutcome,
    History,
    Observation,
    ProcessRun,
    SeenSegment,
)

NEVER: Final = 1 << 62
"""A stamp after all others."""
_TABLES: Final = frozenset((CallKind.TABLE_UPDATE, CallKind.TABLE_REMOVE, CallKind.TABLE_READ))
_READS: Final = frozenset((CallKind.READ, CallKind.INFO, CallKind.ATTRIBUTES))


class NamedCalls:
    """Calls on one name or one incarnation of it, by what they do, each list in the order of the
    calls.
    """

    __slots__ = (
        "appends",
        "attributes",
        "creates",
        "infos",
        "merges",
        "name",
        "reads",
        "seals",
        "set_ups",
        "tables",
        "truncates",
        "updates",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.creates: list[Call] = []
        self.appends: list[Call] = []
        """Appends and events, whatever their outcome."""
        self.merges: list[Call] = []
        """Merges into this segment."""
        self.seals: list[Call] = []
        self.truncates: list[Call] = []
        self.updates: list[Call] = []
        """Every call that carries attribute updates, appends and creations among them."""
        self.reads: list[Call] = []
        self.infos: list[Call] = []
        self.attributes: list[Call] = []
        self.set_ups: list[Call] = []
        self.tables: list[Call] = []
        """Calls on a table."""

    def add(self, call: Call) -> None:
        """Put a call where it belongs."""
        kind = call.kind
        if kind is CallKind.APPEND or kind is CallKind.EVENT:
            self.appends.append(call)
        elif kind is CallKind.READ:
            self.reads.append(call)
        elif kind is CallKind.INFO:
            self.infos.append(call)
        elif kind is CallKind.CREATE:
            self.creates.append(call)
        elif kind is CallKind.MERGE:
            self.merges.append(call)
        elif kind is CallKind.SEAL:
            self.seals.append(call)
        elif kind is CallKind.TRUNCATE:
            self.truncates.append(call)
        elif kind is CallKind.ATTRIBUTES:
            self.attributes.append(call)
        elif kind is CallKind.SET_UP:
            self.set_ups.append(call)
        elif kind in _TABLES:
            self.tables.append(call)
        if call.updates:
            self.updates.append(call)


class Incarnation:
    """One lifetime of a name, with the calls that certainly met it.

    A name that nothing removes has exactly one.
    """

    __slots__ = ("calls", "certain", "chain", "create", "merged", "name", "removals", "since")

    def __init__(self, calls: NamedCalls, create: Call | None) -> None:
        self.calls = calls
        self.name = calls.name
        self.create = create
        """The acknowledged creation; None if there is none."""
        self.since = NEVER
        """From this stamp on it existed."""
        self.removals: list[Call] = []
        """What may have removed it."""
        self.merged: Call | None = None
        """The acknowledged merge that removed it, if nothing else can have done so."""
        self.certain = True
        """False if a call that is not among `calls` may have changed it."""
        self.chain: Chain | None = None
        """What was seen of it; None if nothing, or if it cannot be known which one was seen."""


class HistoryIndex:
    """A history with its indexes.

    Cost: a few microseconds per call, and the parsing of what was seen first.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.calls = history.calls
        self.observations = history.observations
        self.process_runs = {
            process_run.number: process_run for process_run in history.process_runs
        }
        self._horizons = {
            process_run.number: self._horizon_of(process_run)
            for process_run in history.process_runs
        }
        self._overtaken = {
            process_run.number: self._overtaken_of(process_run)
            for process_run in history.process_runs
        }
        self.latest: list[int] = []
        """By call number: the last stamp at which it can have taken effect."""
        self.names: dict[str, NamedCalls] = {}
        self.removals: dict[str, list[Call]] = {}
        """By name: deletions of it and merges of it into another segment that were not refused."""
        self._sort_calls()
        self.chains = self._make_chains()
        self.incarnations: list[Incarnation] = []
        self.incarnations_of: dict[str, list[Incarnation]] = {}
        for named in self.names.values():
            found = self._split(named) if named.name in self.removals else [self._only(named)]
            self.incarnations_of[named.name] = found
            self.incarnations += found
        self._sources: dict[str, dict[str, None]] = {}
        self.windows: Counter[str] = Counter()
        """What `linearizability` came to: how many windows of calls it decided, and how many it
        left undecided.
        """

    # --- time -------------------------------------------------------------------------------------

    def horizon(self, process_run: int) -> int:
        """After this stamp nothing of a process run takes effect: it ended, or a later owner has
        opened.
        """
        return self._horizons.get(process_run, NEVER)

    def fresh(self, call: Call) -> bool:
        """True if no other owner can have been there when the call ended: what it was answered was
        the latest.
        """
        return call.ended is not None and call.ended < self._overtaken.get(call.process_run, NEVER)

    def takeover(self, process_run: ProcessRun) -> ProcessRun | None:
        """The process run that opened first while this one had not ended."""
        later = [
            other
            for other in self.history.process_runs
            if other.opened is not None
            and process_run.opened is not None
            and other.begun > process_run.opened
            and (process_run.ended is None or other.opened < process_run.ended)
        ]
        return min(later, key=lambda other: other.opened or 0, default=None)

    def is_durable(self, seen_at: int, stamp: int) -> bool:
        """Whether what lay in the tiers at `seen_at` was safe from loss at `stamp`: the next owner
        had opened by then.

        A process that died in opening may have left it as it was, and a power cut may have taken
        it.
        """
        after = next(
            (
                process_run
                for process_run in self.history.process_runs
                if process_run.begun > seen_at
            ),
            None,
        )
        return after is not None and after.opened is not None and after.opened < stamp

    def _horizon_of(self, process_run: ProcessRun) -> int:
        # Of two openings at the same time it is not known which one fenced the other.
        opened = [
            other.opened
            for other in self.history.process_runs
            if other.opened is not None
            and process_run.opened is not None
            and other.begun > process_run.opened
        ]
        return min([NEVER if process_run.ended is None else process_run.ended, *opened])

    def _overtaken_of(self, process_run: ProcessRun) -> int:
        return min(
            (
                other.begun
                for other in self.history.process_runs
                if other is not process_run
                and not (
                    other.ended is not None
                    and other.ended < (process_run.opened or process_run.begun)
                )
                and not (other.opened is not None and other.opened < process_run.begun)
            ),
            default=NEVER,
        )

    # --- calls ------------------------------------------------------------------------------------

    def _sort_calls(self) -> None:
        names, latest, horizons = self.names, self.latest, self._horizons
        for call in self.calls:
            name = call.segment
            named = names.get(name)
            if named is None:
                named = names[name] = NamedCalls(name)
            kind, outcome = call.kind, call.outcome
            horizon = horizons.get(call.process_run, NEVER)
            ended = call.ended
            late = ended is None or outcome is CallOutcome.UNKNOWN or ended > horizon
            # It is None only if late.
            latest.append(horizon if late else ended)  # type: ignore[arg-type]
            if kind is CallKind.APPEND and not call.updates:
                named.appends.append(call)
                continue
            if kind is CallKind.DELETE:
                if outcome is not CallOutcome.REFUSED:
                    self.removals.setdefault(name, []).append(call)
                continue
            named.add(call)
            if kind is CallKind.MERGE:
                if call.source not in names:
                    names[call.source] = NamedCalls(call.source)
                if outcome is not CallOutcome.REFUSED:
                    self.removals.setdefault(call.source, []).append(call)
        names.pop("", None)

    def _only(self, named: NamedCalls) -> Incarnation:
        """Of a name that nothing removes."""
        latest = self.latest
        created = [call for call in named.creates if call.outcome is CallOutcome.OK]
        collected = Incarnation(named, created[0] if created else None)
        answered = (named.creates, named.appends, named.seals, named.truncates, named.merges)
        collected.since = min(
            (
                latest[call.number]
                for calls in answered
                for call in calls
                if call.outcome is CallOutcome.OK
            ),
            default=NEVER,
        )
        collected.chain = next((chain for chain in self.chains_of(named.name)), None)
        return collected

    def _split(self, named: NamedCalls) -> list[Incarnation]:
        """Of a name that was removed, or may have been: one per acknowledged creation."""
        latest, removals = self.latest, self.removals[named.name]
        collected: list[Incarnation] = []
        ends: list[int] = []
        for create in named.creates:
            if create.outcome is not CallOutcome.OK:
                continue
            incarnation = Incarnation(NamedCalls(named.name), create)
            incarnation.since = latest[create.number]
            sure = [
                latest[call.number]
                for call in removals
                if call.outcome is CallOutcome.OK and call.begun > latest[create.number]
            ]
            end = min(sure, default=NEVER)
            ends.append(end)
            incarnation.removals = [
                call for call in removals if latest[call.number] > create.begun and call.begun < end
            ]
            only = incarnation.removals[0] if len(incarnation.removals) == 1 else None
            if (
                only is not None
                and only.outcome is CallOutcome.OK
                and only.kind is CallKind.MERGE
                and sure
            ):
                incarnation.merged = only
            incarnation.chain = self.chains.get((named.name, create.result))
            incarnation.calls.creates.append(create)
            collected.append(incarnation)
        self._distribute(named, collected, ends)
        return collected

    def _distribute(self, named: NamedCalls, collected: list[Incarnation], ends: list[int]) -> None:
        latest = self.latest
        starts = [incarnation.since for incarnation in collected]
        lists = (named.appends, named.merges, named.seals, named.truncates)
        # An owner that was overtaken may still show an incarnation that the later one has removed.
        looks = [
            call
            for calls in (named.reads, named.infos, named.attributes)
            for call in calls
            if self.fresh(call)
        ]
        alone = [call for call in named.updates if call.kind is CallKind.UPDATE]
        for call in (call for calls in (*lists, alone, looks) for call in calls):
            place = bisect_right(starts, call.begun) - 1
            last = latest[call.number]
            if place >= 0 and not any(
                removal.begun < last for removal in collected[place].removals
            ):
                collected[place].calls.add(call)
            elif call.outcome is not CallOutcome.REFUSED and call.kind not in _READS:
                for incarnation, end in zip(collected, ends, strict=True):
                    if (
                        incarnation.create is not None
                        and incarnation.create.begun < last
                        and end > call.begun
                    ):
                        incarnation.certain = False
        for incarnation in collected:
            incarnation.calls.updates += [
                call for call in incarnation.calls.creates if call.updates
            ]
            incarnation.calls.updates.sort(key=lambda call: call.number)

    def sources(self, name: str) -> dict[str, None]:
        """Names merged into this one, directly or not, by merges that were not refused."""
        found = self._sources.get(name)
        if found is None:
            found = self._sources[name] = {}
            waiting = [name]
            while waiting:
                named = self.names.get(waiting.pop())
                for merge in named.merges if named else ():
                    if merge.outcome is not CallOutcome.REFUSED and merge.source not in found:
                        found[merge.source] = None
                        waiting.append(merge.source)
        return found

    # --- what was seen ----------------------------------------------------------------------------

    def _make_chains(self) -> dict[tuple[str, int | None], Chain]:
        chains: dict[tuple[str, int | None], Chain] = {}
        self._chains_of: dict[str, list[Chain]] = {}
        for number, observation in enumerate(self.observations):
            for name, seen in observation.segments.items():
                if seen.entries is not None:
                    # Its bytes are records of a table: `tables` checks them.
                    continue
                chain = chains.get((name, seen.segment_id))
                if chain is None:
                    chain = chains[name, seen.segment_id] = Chain(name, seen.segment_id)
                    self._chains_of.setdefault(name, []).append(chain)
                chain.add(number, observation, seen)
        return chains

    def chains_of(self, name: str) -> list[Chain]:
        """What was seen under a name, one chain per segment id, in the order they were seen
        first.
        """
        return self._chains_of.get(name, [])

    def first_after(self, stamp: int) -> int | None:
        """Number of the first observation that began after a stamp."""
        return next(
            (number for number, seen in enumerate(self.observations) if seen.begun > stamp), None
        )

    def must_exist(self, incarnation: Incarnation, observation: Observation) -> bool:
        """True if the incarnation is certainly there when the store is observed."""
        return incarnation.since < observation.begun and not any(
            removal.begun < observation.ended for removal in incarnation.removals
        )

    def seen_after(self, incarnation: Incarnation, stamp: int) -> SeenSegment | None:
        """What was seen of an incarnation in the first observation that began after a stamp and has
        it.
        """
        entry = None if incarnation.chain is None else incarnation.chain.first_after(stamp)
        return None if entry is None else entry[1]
