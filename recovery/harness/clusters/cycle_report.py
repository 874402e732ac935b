"""What a run of cycles showed, as text. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CycleSeen:
    """One cycle, or one step of the rolling restart."""

    kind: str
    seconds: float
    """Until all was served again, and all clients went on."""
    longest_wait_s: float
    """Of any client of `connect` for an acknowledgement."""
    longest_wire_wait_s: float
    """The same, of clients of the wire protocol."""

    def text(self) -> str:
        """One line."""
        return (
            f"{self.kind}: {self.seconds:.1f} s, longest wait {self.longest_wait_s:.1f} s, "
            f"of the wire {self.longest_wire_wait_s:.1f} s"
        )


@dataclass(slots=True)
class CyclesReport:
    """What was seen; `violations` is empty if no rule was broken."""

    seed: str
    cycles: list[CycleSeen] = field(default_factory=list)
    rolling: list[CycleSeen] = field(default_factory=list)
    acknowledged: int = 0
    """Events, of all clients."""
    unknown: int = 0
    """Plain appends whose outcome the client did not learn, in the cycles."""
    unknown_rolling: int = 0
    """The same, in the rolling restart."""
    repeated: int = 0
    """Events of writers that were there already when they were sent again."""
    openings: int = 0
    """Of logs: take-overs and planned moves."""
    killed: int = 0
    """Hosts ended by SIGKILL."""
    paused: int = 0
    """Hosts stopped by SIGSTOP."""
    violations: list[str] = field(default_factory=list)

    def text(self) -> str:
        """For people."""
        lines = [
            f"seed {self.seed}: {len(self.cycles)} cycles",
            f"{self.killed} kills of a host, {self.paused} pauses of a host",
        ]
        for title, seen in (("cycle", self.cycles), ("rolling restart", self.rolling)):
            if seen:
                lines += ["", *_table(title, seen)]
        lines += [
            "",
            f"{self.acknowledged} events acknowledged, {self.openings} openings of a log",
            f"{self.repeated} events of writers sent again that were there",
            f"{self.unknown} plain appends of unknown outcome",
            f"{self.unknown_rolling} more in the rolling restart",
            f"{len(self.violations)} violations",
            *self.violations,
        ]
        return "\n".join(lines)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _table(title: str, seen: Sequence[CycleSeen]) -> list[str]:
    by_kind: dict[str, list[CycleSeen]] = defaultdict(list)
    for each in seen:
        by_kind[each.kind].append(each)
    lines = [
        f"{title:46} count  longest wait of a client (s): p50, p99, max of connect; of the wire"
    ]
    for kind, those in [*sorted(by_kind.items()), ("all", list(seen))]:
        figures = "".join(
            f"{each:8.2f}"
            for waits in (
                [each.longest_wait_s for each in those],
                [each.longest_wire_wait_s for each in those],
            )
            for each in (quantile(waits, 0.5), quantile(waits, 0.99), max(waits))
        )
        lines.append(f"{kind:46} {len(those):5}  {figures}")
    return lines
