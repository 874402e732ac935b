"""Orphans that owners are asked to delete: requests put by the tasks that found them, answers
counted by the driver.

Rules of this file:

- no name of an orphan comes to the driver but as a sample: a task hands on how many it asked for,
  and under which id;
- a request's id says of which run's asking and of which shards it is. All attempts of a task put
  the same one, and an answer to an earlier asking, of a run of the same id, is never taken for it;
- an owner lets a bounded number of objects wait for their deletion. So a run asks it for a bounded
  number of names, with an even share for each range of shards. The rest is counted, and is for a
  run after the deletion lag;
- answers hold names: each is counted as it is read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

from segmentstore.contracts.runtime import Runtime
from tier2.mailbox.mailbox import put_message, read_message
from tier2.mailbox.messages import ORPHAN_NAMES_MAX, Answer, OrphanDeletionRequest
from tier2.object_names import MessageKey
from tier2.object_storage import ObjectStorage
from tier2.spark.common.arrow_rows import is_text
from tier2.spark.reconcile.findings import FindingKind

ASKED_NAMES_MAX: Final = 65_536
"""Names that a run asks one owner for: six times what an owner lets wait for deletion at a time."""
ASKED_NAMES_MIN: Final = 64
"""Of each range of shards at least so many."""
PUTS_AT_ONCE: Final = 16
SHOWN: Final = 16
"""Names, and reasons, that are reported of an outcome; all are counted."""

ASKED: Final = "asked"
"""The counter of a row: a request for so many names was put, its message id is the evidence."""
NOT_ASKED: Final = "not_asked"
"""The counter of a row: so many names were left for another run. And the verdict that they get."""
PENDING: Final = "pending"
"""The verdict over requests that no owner has answered."""
OTHER_REASONS: Final = "other reasons"


class Asking(NamedTuple):
    """What a task needs to know to ask owners to delete."""

    token: str
    """Drawn for this asking: a part of each request's id."""
    older_than_ms: int
    """Wall time: only objects last modified before it are meant."""
    store_id: str
    """Of the store whose owners are meant; empty if unknown."""
    names: int
    """Asked for at the most, of a container and range of shards."""


class OrphanOutcome(NamedTuple):
    """Requests to the owner of one container that had the same outcome."""

    container_id: int
    verdict: str
    """Of the owner's answers; PENDING if none came in time; NOT_ASKED for what was left for another
    run.
    """
    reason: str
    requests: int
    names: int
    condemned: int = 0
    """So many the owner made garbage of: they will be deleted after the deletion lag."""
    left_alone: Mapping[str, int] = {}
    """How many it left, by the reason it found."""
    shown: tuple[str, ...] = ()
    """Some of what it made garbage of."""
    shown_left: Mapping[str, str] = {}
    """Some of what it left, and why."""


def share_of(ranges: int, most: int = ASKED_NAMES_MAX) -> int:
    """How many names of a container each of so many ranges may ask for."""
    return max(most // max(ranges, 1), ASKED_NAMES_MIN)


async def ask_owners(
    storage: ObjectStorage, asking: Asking, run_id: str, findings: pa.Table, shards: range
) -> list[dict[str, Any]]:
    """Put requests for the orphans in FINDINGS over these shards; rows with the counters ASKED and
    NOT_ASKED.

    May be done again. Raises StorageUnavailableError.
    """
    requests: list[OrphanDeletionRequest] = []
    rows: list[dict[str, Any]] = []
    for container_id, names in _orphans(findings).items():
        wanted = names[: asking.names]
        for number, first in enumerate(range(0, len(wanted), ORPHAN_NAMES_MAX)):
            some = tuple(wanted[first : first + ORPHAN_NAMES_MAX])
            message_id = f"condemn-{asking.token}-{shards.start:02x}-{number:02d}"
            requests.append(
                OrphanDeletionRequest(
                    container_id, run_id, message_id, some, asking.older_than_ms, asking.store_id
                )
            )
        if len(names) > len(wanted):
            rows.append(
                {
                    "counter": NOT_ASKED,
                    "count": len(names) - len(wanted),
                    "container_id": container_id,
                }
            )
    for first in range(0, len(requests), PUTS_AT_ONCE):
        together = requests[first : first + PUTS_AT_ONCE]
        counts = await asyncio.gather(*(_put(storage, request) for request in together))
        rows += [
            {
                "counter": ASKED,
                "count": count,
                "container_id": each.container_id,
                "evidence": each.message_id,
            }
            for each, count in zip(together, counts, strict=True)
        ]
    return rows


async def _put(storage: ObjectStorage, request: OrphanDeletionRequest) -> int:
    """How many names are asked for: those of another attempt, if it was first."""
    if await put_message(storage, Runtime(), request):
        return len(request.names)
    there = await read_message(storage, request.key)
    return len(there.names) if isinstance(there, OrphanDeletionRequest) else len(request.names)


def _orphans(findings: pa.Table) -> dict[int, list[str]]:
    """Names of orphans by container, each in order."""
    rows = findings.filter(is_text(findings["kind"], FindingKind.ORPHAN)).select(
        ["container_id", "object"]
    )
    orphans: dict[int, list[str]] = {}
    for row in rows.sort_by("object").to_pylist():
        orphans.setdefault(row["container_id"], []).append(row["object"])
    return orphans


def counted(answer: Answer) -> Answer:
    """An answer to a request, its names counted: its detail has what `outcomes` takes. O(names)."""
    made, left = answer.detail.get("condemned"), answer.detail.get("left_alone")
    names = list(map(str, made)) if isinstance(made, list) else []
    kept = {str(name): str(why) for name, why in left.items()} if isinstance(left, dict) else {}
    detail = {
        "condemned": len(names),
        "left_alone": dict(Counter(kept.values()).most_common(SHOWN)),
        "left": len(kept),
        "shown": names[:SHOWN],
        "shown_left": dict(list(kept.items())[:SHOWN]),
    }
    return answer._replace(detail=detail)


@dataclass(slots=True)
class _Tally:
    """What `OrphanOutcome` is made of."""

    requests: int = 0
    names: int = 0
    condemned: int = 0
    left: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)
    shown_left: dict[str, str] = field(default_factory=dict)

    def add(self, answer: Answer) -> None:
        """Take a `counted` answer."""
        detail = answer.detail
        self.condemned += detail["condemned"]
        known = sum(detail["left_alone"].values())
        for reason, number in (
            *detail["left_alone"].items(),
            (OTHER_REASONS, detail["left"] - known),
        ):
            place = reason if reason in self.left or len(self.left) < SHOWN else OTHER_REASONS
            self.left[place] += number
        self.shown = [*self.shown, *detail["shown"]][:SHOWN]
        self.shown_left = dict(list({**self.shown_left, **detail["shown_left"]}.items())[:SHOWN])


def outcomes(
    asked: Mapping[MessageKey, int],
    answers: Mapping[MessageKey, Answer],
    not_asked: Mapping[int, int],
    timeout_s: float,
) -> list[OrphanOutcome]:
    """What came of it all, by container: requests and how many names they had, `counted` answers,
    what is left.
    """
    tallies: dict[tuple[int, str, str], _Tally] = {}
    silence = f"no answer within {timeout_s:g} s: it stays, and is carried out when the owner comes"
    for key, names in sorted(asked.items()):
        answer = answers.get(key)
        verdict, reason = (PENDING, silence) if answer is None else (answer.verdict, answer.reason)
        tally = tallies.setdefault((key.container_id, verdict, reason), _Tally())
        tally.requests += 1
        tally.names += names
        if answer is not None:
            tally.add(answer)
    later = "more than one run asks an owner for: run again when the deletion lag is over"
    for container_id, names in not_asked.items():
        tallies[container_id, NOT_ASKED, later] = _Tally(names=names)
    return [
        OrphanOutcome(
            *of,
            each.requests,
            each.names,
            each.condemned,
            +each.left,
            tuple(each.shown),
            each.shown_left,
        )
        for of, each in sorted(tallies.items())
    ]


def is_done(outcome: OrphanOutcome) -> bool:
    """Whether an owner has said what becomes of each name that it was asked for."""
    return outcome.verdict in {"condemned", NOT_ASKED}


def first_of_each(keys: Sequence[MessageKey], most: int) -> list[MessageKey]:
    """Of each container the first `most` of its keys."""
    seen: Counter[int] = Counter()
    some: list[MessageKey] = []
    for key in keys:
        seen[key.container_id] += 1
        if seen[key.container_id] <= most:
            some.append(key)
    return some
