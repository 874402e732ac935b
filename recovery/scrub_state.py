"""How far a scrub has come, and the file that says so (docs/formats/scrub-state.md).

Rules of this file:

- what is lost with the file is time, never a byte: it may be deleted, and is never needed to open a
  store;
- findings kept are bounded; those beyond are counted;
- a file that is not understood, was damaged, or is another store's is refused with its reason, and
  its reader decides whether to begin anew. With a wrong position some bytes would never be checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from recovery.kept_file import KeptFile, load_text
from segmentstore.contracts.disk import Disk
from segmentstore.contracts.findings import Finding, Severity

FILE_NAME = "scrub-state.json"
FINDINGS_MAX = 1000
_RANK = {Severity.HARMFUL: 0, Severity.UNKNOWN: 1}
_FILE = KeptFile(FILE_NAME, 1, "the state of a scrub")


class ScrubPosition(NamedTuple):
    """The object checked last; what is behind it in this order is still to come."""

    container_id: int
    object_name: str


@dataclass(slots=True, kw_only=True)
class ScrubPass:
    """One walk through all objects, under way or finished."""

    started_at_ms: int
    """Milliseconds since 1970 UTC."""
    finished_at_ms: int | None = None
    position: ScrubPosition | None = None
    """None: nothing was checked yet."""
    objects: int = 0
    blocks: int = 0
    bytes_read: int = 0
    passed_over: int = 0
    """Objects deleted before they were reached."""
    harmful: int = 0
    notes: int = 0
    """All that are not harmful."""
    findings: list[Finding] = field(default_factory=list)
    """The first FINDINGS_MAX of them, harmful ones before notes where there are more."""

    def add(self, findings: list[Finding]) -> None:
        """Note what was found in one object."""
        for finding in findings:
            if finding.severity is Severity.HARMFUL:
                self.harmful += 1
            else:
                self.notes += 1
        self.findings += findings
        if len(self.findings) > FINDINGS_MAX:
            self.findings = sorted(
                self.findings, key=lambda each: _RANK.get(each.severity, len(_RANK))
            )[:FINDINGS_MAX]

    @property
    def refused(self) -> list[Finding]:
        """Of those kept: what Tier 2 would not give, so that nothing is known of it."""
        return [each for each in self.findings if each.severity is Severity.UNKNOWN]


@dataclass(slots=True, kw_only=True)
class ScrubState:
    """What the file holds."""

    current: ScrubPass
    previous: ScrubPass | None = None
    """The last finished pass before the current one."""

    def begin(self, now_ms: int) -> None:
        """Begin another pass; the current one is kept as the previous one if it came to its end."""
        if self.current.finished_at_ms is not None:
            self.previous = self.current
        self.current = ScrubPass(started_at_ms=now_ms)

    @property
    def harmful(self) -> int:
        """Harmful findings that stand: of this pass, or of the one before if this one has none
        yet.
        """
        if self.current.harmful or self.current.finished_at_ms is not None or self.previous is None:
            return self.current.harmful
        return self.previous.harmful

    @property
    def refused(self) -> list[Finding]:
        """As `harmful`, of what Tier 2 would not give."""
        if self.current.refused or self.current.finished_at_ms is not None or self.previous is None:
            return self.current.refused
        return self.previous.refused

    @property
    def first_harmful(self) -> Finding | None:
        """One of them to check."""
        for each in (self.current, self.previous):
            for finding in each.findings if each is not None else ():
                if finding.severity is Severity.HARMFUL:
                    return finding
        return None


def render_state(state: ScrubState, store_id: str) -> str:
    """The text of the file of one store."""
    previous = _rendered(state.previous) if state.previous is not None else None
    return _FILE.render({"current": _rendered(state.current), "previous": previous}, store_id)


def parse_state(text: str, store_id: str) -> ScrubState:
    """Read the file's text. Raises ConfigError naming what is wrong: it must be this store's."""
    return _FILE.parse(text, store_id, _parsed_state)


def load_state(path: str, disk: Disk, store_id: str) -> ScrubState | None:
    """What the file holds; None if there is none. Raises ConfigError, OSError. Blocking."""
    text = load_text(path, disk)
    return None if text is None else parse_state(text, store_id)


def _parsed_state(document: Mapping[str, Any]) -> ScrubState:
    current, previous = document["current"], document["previous"]
    return ScrubState(
        current=_parsed(current), previous=_parsed(previous) if previous is not None else None
    )


_NUMBERS = ("objects", "blocks", "bytes_read", "passed_over", "harmful", "notes")


def _rendered(each: ScrubPass) -> dict[str, Any]:
    return {
        "started_at_ms": each.started_at_ms,
        "finished_at_ms": each.finished_at_ms,
        "position": each.position._asdict() if each.position is not None else None,
        **{name: getattr(each, name) for name in _NUMBERS},
        "findings": [finding._asdict() for finding in each.findings],
    }


def _parsed(document: dict[str, Any]) -> ScrubPass:
    finished, position = document["finished_at_ms"], document["position"]
    return ScrubPass(
        started_at_ms=int(document["started_at_ms"]),
        finished_at_ms=int(finished) if finished is not None else None,
        position=ScrubPosition(int(position["container_id"]), str(position["object_name"]))
        if position
        else None,
        **{name: int(document[name]) for name in _NUMBERS},
        findings=[
            Finding(
                Severity(each["severity"]),
                str(each["kind"]),
                str(each["place"]),
                str(each["detail"]),
            )
            for each in document["findings"][:FINDINGS_MAX]
        ],
    )
