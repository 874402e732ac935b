"""Content: every byte was submitted, every record is there at most once and whole, and what was
acknowledged is there.

Rules of this file:

- a record may lie in a merge's source before and in its target after, in both at one time never;
- the bytes between a truncation point and the first record behind it may be the tail of a record,
  no others may be;
- an append that is missing is explained by truncation, removal, or a merge of its segment: by
  nothing else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from recovery.harness.checkers.contents import Chain
from recovery.harness.checkers.index import HistoryIndex, Incarnation
from recovery.harness.history import Call, CallKind, CallOutcome, Violation
from recovery.harness.records import HEADER_BYTES, Piece, append_record, event_record

NAME: Final = "content"


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of what a content may and must hold."""
    events = _submitted_events(index)
    for chain in index.chains.values():
        for text in chain.breaks:
            yield Violation(NAME, text)
        yield from _lengths(chain)
        yield from _submitted(index, chain, events)
        yield from _batches(index, chain)
        yield from _repeated_inside(index, chain, events)
    yield from _repeated_across(index)
    for incarnation in index.incarnations:
        yield from _acknowledged(index, incarnation)
        yield from _merged_whole(index, incarnation)
    for chain in index.chains.values():
        yield from _deleted_whole(index, chain)


# --- nothing but what was submitted ---------------------------------------------------------------


def _submitted_events(index: HistoryIndex) -> dict[tuple[str, int, int], list[Call]]:
    """Calls by the event they sent: (segment, writer, number)."""
    events: dict[tuple[str, int, int], list[Call]] = {}
    for named in index.names.values():
        for call in named.appends:
            if call.kind is CallKind.EVENT:
                events.setdefault((call.segment, call.writer, call.event), []).append(call)
    return events


def _lengths(chain: Chain) -> Iterator[Violation]:
    for observation, seen in chain.seen:
        expected = seen.length - seen.start_offset
        if len(seen.content) != expected:
            yield Violation(
                NAME,
                f"segment {chain.name!r}: {len(seen.content)} bytes were read from "
                f"{seen.start_offset} to"
                f" {seen.length}, which are {expected} (observation begun at {observation.begun})",
            )


def _submitted(
    index: HistoryIndex, chain: Chain, events: dict[tuple[str, int, int], list[Call]]
) -> Iterator[Violation]:
    calls, name = index.calls, chain.name
    family = (name, *index.sources(name))
    for offset, length, origin in chain.pieces:
        if origin is None:
            if not _cut_record(index, chain, offset, length):
                detail = f"{length} bytes at offset {offset} of {name!r} are no record"
                yield Violation(NAME, detail)
            continue
        event, first, second = origin
        if event:
            sent = [call for part in family for call in events.get((part, first, second), ())]
            if not any(call.lengths[0] + HEADER_BYTES == length for call in sent):
                detail = (
                    f"event {second} of writer {first} at offset {offset} of {name!r} was "
                    "never sent like this"
                )
                yield Violation(NAME, detail, [call.number for call in sent])
            continue
        call = calls[first] if first < len(calls) else None
        if (
            call is None
            or call.kind is not CallKind.APPEND
            or second >= len(call.lengths)
            or call.lengths[second] + HEADER_BYTES != length
            or (call.segment != name and call.segment not in family)
        ):
            detail = (
                f"item {second} of call {first} at offset {offset} of {name!r} was never "
                "submitted like this"
            )
            yield Violation(NAME, detail, [first])


def _cut_record(index: HistoryIndex, chain: Chain, offset: int, length: int) -> bool:
    """True if bytes that are no record are the tail of one that a truncation has cut."""
    cut = next((seen for _, seen in chain.seen if seen.start_offset == offset), None)
    if cut is None or offset == 0:
        return False
    tail = cut.content[:length]
    for part in (chain.name, *index.sources(chain.name)):
        for call in index.names[part].appends if part in index.names else ():
            if call.outcome is CallOutcome.OK and part == chain.name:
                # Where it lies is known: only the one that lies here is worth a check.
                possible = (
                    call.result is not None and call.result < offset < call.result + call.size
                )
            else:
                possible = call.outcome is not CallOutcome.REFUSED
            if possible and _ends_like(call, tail):
                return True
    return False


def _ends_like(call: Call, tail: bytes) -> bool:
    for item, length in enumerate(call.lengths):
        if length + HEADER_BYTES > len(tail):
            if call.kind is CallKind.EVENT:
                record = event_record(call.writer, call.event, length)
            else:
                record = append_record(call.number, item, length)
            if record.endswith(tail):
                return True
    return False


def _batches(index: HistoryIndex, chain: Chain) -> Iterator[Violation]:
    """Items of a batch follow each other, all of them, unless a truncation has cut the first ones
    off.
    """
    calls, cuts = index.calls, [seen.start_offset for _, seen in chain.seen if seen.start_offset]
    wanted: tuple[int, int, int] | None = None
    for offset, length, origin in chain.pieces:
        found = None if origin is None or origin.event else (origin.first, origin.second, offset)
        if wanted is not None and found != wanted and not _cut_between(cuts, wanted[2], offset):
            detail = (
                f"item {wanted[1]} of the batch of call {wanted[0]} does not follow at "
                f"offset {wanted[2]}"
            )
            yield Violation(NAME, f"{detail} of {chain.name!r}", [wanted[0]])
        elif (
            found is not None
            and found[1]
            and wanted is None
            and offset not in cuts
            and not _after_cut(chain, offset)
        ):
            detail = f"item {found[1]} of the batch of call {found[0]} at offset {offset}"
            yield Violation(NAME, f"{detail} of {chain.name!r} has none before it", [found[0]])
        wanted = None
        if (
            found is not None
            and found[0] < len(calls)
            and found[1] + 1 < len(calls[found[0]].lengths)
        ):
            wanted = (found[0], found[1] + 1, offset + length)
    if wanted is not None:
        detail = (
            f"item {wanted[1]} of the batch of call {wanted[0]} is missing at the end of "
            f"{chain.name!r}"
        )
        yield Violation(NAME, detail, [wanted[0]])


def _cut_between(cuts: list[int], start: int, end: int) -> bool:
    """True if bytes were truncated there before they were seen."""
    return start < end and any(start < cut <= end for cut in cuts)


def _after_cut(chain: Chain, offset: int) -> bool:
    """True if what lies before an offset is the rest of a cut record."""
    place = bisect_left(chain.pieces, offset, key=_offset_of)
    return place > 0 and chain.pieces[place - 1].origin is None


def _offset_of(piece: Piece) -> int:
    return piece.offset


# --- at most once ---------------------------------------------------------------------------------


def _repeated_inside(
    index: HistoryIndex, chain: Chain, events: dict[tuple[str, int, int], list[Call]]
) -> Iterator[Violation]:
    for origin, offsets in chain.again.items():
        event, first, second = origin
        if event and len(offsets) < _times_sendable(index, chain, first, second, events):
            continue
        what = f"event {second} of writer {first}" if event else f"item {second} of call {first}"
        places = f"{chain.at[origin]} and {', '.join(map(str, offsets))}"
        yield Violation(
            NAME,
            f"{what} is in {chain.name!r} more than once, at {places}",
            [] if event else [first],
        )


def _times_sendable(
    index: HistoryIndex,
    chain: Chain,
    writer: int,
    number: int,
    events: dict[tuple[str, int, int], list[Call]],
) -> int:
    """In how many incarnations of the segment and of what was merged into it the event was sent."""
    times = 0
    for part in (chain.name, *index.sources(chain.name)):
        if (part, writer, number) in events:
            made = [
                call
                for call in index.names[part].creates
                if call.outcome is not CallOutcome.REFUSED
            ]
            times += 1 if part == chain.name else max(1, len(made))
    return times


def _repeated_across(index: HistoryIndex) -> Iterator[Violation]:
    """A record in two segments at one time, or in two incarnations of one."""
    holders: dict[tuple[bool, int, int], Chain] = {}
    if not index.removals:
        return  # then it is in a segment it was not submitted to, which is reported already
    for chain in index.chains.values():
        for origin in chain.at:
            other = holders.setdefault(origin, chain)
            if other is chain or origin[0]:
                continue
            if other.name == chain.name:
                detail = f"ids {other.segment_id} and {chain.segment_id} of {chain.name!r}"
            elif _together(chain, other, origin):
                detail = f"{other.name!r} and {chain.name!r} at one time"
            else:
                continue
            yield Violation(
                NAME, f"item {origin[2]} of call {origin[1]} is in {detail}", [origin[1]]
            )


def _together(one: Chain, other: Chain, origin: tuple[bool, int, int]) -> bool:
    stamps = set(one.begins[one.seen_first(one.at[origin]) :])
    return any(stamp in stamps for stamp in other.begins[other.seen_first(other.at[origin]) :])


# --- what was acknowledged ------------------------------------------------------------------------


def _acknowledged(index: HistoryIndex, incarnation: Incarnation) -> Iterator[Violation]:
    latest, chain = index.latest, incarnation.chain
    for call in incarnation.calls.appends:
        offset = call.result
        if offset is None or call.outcome is not CallOutcome.OK or not call.lengths:
            continue
        place = 0 if chain is None else bisect_right(chain.begins, latest[call.number])
        if chain is not None and place < len(chain.begins):
            if offset + call.size > chain.seen[place][1].length or not chain.has(
                _origin(call, 0), offset
            ):
                yield from _missing(index, chain, call, offset)
        elif incarnation.merged is not None:
            yield from _moved(index, incarnation, call)


def _moved(index: HistoryIndex, incarnation: Incarnation, call: Call) -> Iterator[Violation]:
    """An append to a segment that was merged away must be in the target."""
    offset = call.result or 0
    found: Incarnation | None = incarnation
    stamp = index.latest[call.number]
    while found is not None and found.merged is not None:
        merge = found.merged
        offset += merge.result or 0
        stamp = max(stamp, index.latest[merge.number])
        found = target_of(index, merge)
        chain = None if found is None else found.chain
        if chain is not None and (entry := chain.first_after(stamp)) is not None:
            late = offset + call.size > entry[1].length
            if late or not chain.has(_origin(call, 0), offset):
                yield from _missing(index, chain, call, offset)
            return


def target_of(index: HistoryIndex, merge: Call) -> Incarnation | None:
    """The incarnation a merge went into, if that is certain."""
    return next(
        (
            found
            for found in index.incarnations_of.get(merge.segment, ())
            if merge in found.calls.merges
        ),
        None,
    )


def _missing(index: HistoryIndex, chain: Chain, call: Call, offset: int) -> Iterator[Violation]:
    """Items that are not where they were acknowledged, and were not truncated before they were
    seen.
    """
    position, due = offset, index.latest[call.number]
    for item, length in enumerate(call.lengths):
        size = length + HEADER_BYTES
        place = chain.seen_first(position + size - 1)
        visible = place < len(chain.seen) and chain.seen[place][1].start_offset <= position
        truncated = place < len(chain.seen) and not visible
        # An observation that began after the acknowledgement must not have been without it.
        on_time = visible and not (place and chain.begins[place - 1] > due)
        if not truncated and not (on_time and chain.has(_origin(call, item), position)):
            there = chain.at.get(_origin(call, item))
            found = "is not there" if there is None else f"lies at {there}"
            what = (
                f"event {call.event} of writer {call.writer}"
                if call.kind is CallKind.EVENT
                else f"item {item}"
            )
            detail = (
                f"{what} of call {call.number}, acknowledged for offset {position} of "
                f"{chain.name!r}, {found}"
            )
            yield Violation(NAME, detail, [call.number])
            return
        position += size


def _origin(call: Call, item: int) -> tuple[bool, int, int]:
    return (
        (True, call.writer, call.event)
        if call.kind is CallKind.EVENT
        else (False, call.number, item)
    )


# --- merges ---------------------------------------------------------------------------------------


def _merged_whole(index: HistoryIndex, incarnation: Incarnation) -> Iterator[Violation]:
    """All that was seen of the source of an acknowledged merge is in the target, from the merge's
    offset on.
    """
    merge, chain = incarnation.merged, incarnation.chain
    if merge is None or chain is None or not chain.seen:
        return
    last = chain.seen[-1][1]
    target = target_of(index, merge)
    seen = None if target is None else index.seen_after(target, index.latest[merge.number])
    offset = merge.result or 0
    if seen is not None and seen.start_offset <= offset:
        begin = offset - seen.start_offset
        if not seen.content.startswith(last.content, begin):
            detail = (
                f"what was seen of {chain.name!r} is not in {merge.segment!r} at {offset}, "
                "where it was merged"
            )
            yield Violation(NAME, detail, [merge.number])


def _deleted_whole(index: HistoryIndex, chain: Chain) -> Iterator[Violation]:
    """What was seen of a segment that is missing, when only merges can have removed it, is in a
    target of one of them.
    """
    last_seen, last = chain.seen[-1]
    after = index.first_after(last_seen.begun)
    if after is None or not last.content or last.start_offset:
        return
    observation = index.observations[after]
    removals = [
        call
        for call in index.removals.get(chain.name, ())
        if call.begun < observation.ended and index.latest[call.number] > last_seen.begun
    ]
    if not removals or any(call.kind is not CallKind.MERGE for call in removals):
        return
    for merge in removals:
        seen = observation.segments.get(merge.segment)
        if seen is None or seen.start_offset or last.content in seen.content:
            return
    detail = (
        f"{chain.name!r} is gone, only merges can have removed it, and its bytes are in no "
        "target of them"
    )
    yield Violation(NAME, detail, [call.number for call in removals])
