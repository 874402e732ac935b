"""Messages: what is written is read, the page's examples are right, and whatever else stands there
is a MessageFormatError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from tests.support.suites import examples
from tier2.mailbox import messages
from tier2.mailbox.messages import (
    INTEGER_MAX,
    VERDICTS,
    Answer,
    ExportRequest,
    Message,
    MessageFormatError,
    OrphanDeletionRequest,
    Replacement,
    ReplaceProposal,
    Verdict,
    encode,
    one_sentence,
    parse,
)
from tier2.object_names import (
    MessageKey,
    answer_name,
    check_object_name,
    message_name,
    parse_mailbox_name,
    parse_object_name,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "formats" / "mailbox.md"
JOB = "00000000feedbeef"
NAME = f"be/00000003/0000000000000005/compaction-{JOB}-000102030405060708090a0b0c0d0e0f"
OLD = tuple(
    ChunkRecord(start, 100, name, 0, 9, start) for start, name in ((0, "old/a"), (100, "old/b"))
)
NEW = (ChunkRecord(0, 200, NAME, 0, 9, 0),)
PROPOSAL = ReplaceProposal(
    3,
    JOB,
    "group-1",
    ObjectRecord(NAME, 472, 1_700_000_000_000),
    (Replacement(9, OLD, NEW),),
    1_700_000_000_123,
)
ANSWER = Answer(3, JOB, "group-1", "committed", "", {"replacements": 1, "taken": 1, "refused": []})

NUMBERS = st.integers(0, 2**40)
TEXTS = st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=40)
IDS = st.builds(
    MessageKey,
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1).map(lambda number: f"{number:016x}"),
    st.text("abcz019-", min_size=1, max_size=80),
)


@st.composite
def _neighbours(draw: st.DrawFn) -> tuple[ChunkRecord, ...]:
    start = draw(NUMBERS)
    chunks = []
    for length in draw(st.lists(st.integers(1, 2**40), min_size=1, max_size=4)):
        name = draw(st.sampled_from(["a", "b/c", NAME]))
        chunks.append(ChunkRecord(start, length, name, draw(NUMBERS), draw(NUMBERS), draw(NUMBERS)))
        start += length
    return tuple(chunks)


def _proposal(
    key: MessageKey, size: int, many: list[Replacement], created_ms: int
) -> ReplaceProposal:
    return ReplaceProposal(*key, ObjectRecord(NAME, size, 5), tuple(many), created_ms)


def _mark_for_deletion(
    key: MessageKey, names: list[str], older_than_ms: int
) -> OrphanDeletionRequest:
    return OrphanDeletionRequest(*key, tuple(names), older_than_ms)


def _answer(key: MessageKey, verdict: Verdict, reason: str, detail: dict[str, Any]) -> Answer:
    return Answer(*key, verdict, reason, detail)


REPLACEMENTS = st.builds(Replacement, NUMBERS, _neighbours(), _neighbours())
PROPOSALS = st.builds(
    _proposal,
    IDS,
    st.integers(1, INTEGER_MAX),
    st.lists(REPLACEMENTS, min_size=1, max_size=3),
    NUMBERS,
)
MARKS_FOR_DELETION = st.builds(
    _mark_for_deletion, IDS, st.lists(TEXTS, min_size=1, max_size=5), NUMBERS
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
ANSWERS = st.builds(
    _answer,
    IDS,
    st.sampled_from(get_args(Verdict)),
    TEXTS,
    st.dictionaries(TEXTS, JSON, max_size=3),
)
ALL = PROPOSALS | MARKS_FOR_DELETION | st.builds(lambda key: ExportRequest(*key), IDS) | ANSWERS


@given(ALL)
def test_what_is_written_is_read(message: Message | Answer) -> None:
    assert parse(encode(message)) == message


@given(ALL)
def test_names_round_trip_and_an_answer_sorts_right_before_its_message(
    message: Message | Answer,
) -> None:
    name, answer = (
        check_object_name(message_name(message.key)),
        check_object_name(answer_name(message.key)),
    )
    assert parse_mailbox_name(name) == (message.key, False)
    assert parse_mailbox_name(answer) == (message.key, True)
    assert answer < name
    assert parse_mailbox_name(name)
    assert parse_object_name(name) is None


@given(IDS, st.text("a0-", min_size=1, max_size=5), st.text("a0-", min_size=1, max_size=5))
def test_no_other_name_sorts_between_an_answer_and_its_message(
    key: tuple[int, str, str], one: str, other: str
) -> None:
    mine, theirs = (MessageKey(*key[:2], message_id) for message_id in (one, other))
    names = sorted(
        {named(each) for each in (mine, theirs) for named in (message_name, answer_name)}
    )
    assert names.index(message_name(mine)) == names.index(answer_name(mine)) + 1


@pytest.mark.parametrize(
    "name", ["mailbox/", "mailbox/x", "mailbox/00000003/00000000feedbeef/A.json", NAME, ""]
)
def test_what_is_called_otherwise_is_no_message(name: str) -> None:
    assert parse_mailbox_name(name) is None


@pytest.mark.parametrize(
    "key", [(-1, JOB, "m"), (2**32, JOB, "m"), (3, "feed", "m"), (3, JOB, ""), (3, JOB, "a/b")]
)
def test_keys_that_break_the_rules_have_no_name(key: tuple[int, str, str]) -> None:
    with pytest.raises(ValueError):
        message_name(MessageKey(*key))
    with pytest.raises(ValueError):
        encode(ExportRequest(*key))


def test_the_examples_of_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = re.findall(
        r"^    (\{.*?\}\})$", page.partition("## Example")[2], flags=re.DOTALL | re.MULTILINE
    )
    found = [parse(re.sub(r"\n    ", "", text).encode()) for text in shown]
    assert found == [PROPOSAL, ANSWER]
    assert [encode(each).decode() for each in found] == [
        re.sub(r"\n    ", "", text) for text in shown
    ]
    assert message_name(PROPOSAL.key) in page
    assert answer_name(PROPOSAL.key) in page
    assert all(f"`{verdict}`" in page for verdict in VERDICTS)


# --- what is refused ------------------------------------------------------------------------------


def _written(
    body: Any, kind: object = "replace", version: object = 1, checksum: str | None = None
) -> bytes:
    data = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps(
        {
            "version": version,
            "type": kind,
            "crc32c": checksum or f"{crc32c(data):08x}",
            "body": body,
        }
    ).encode()


def _body(message: Message | Answer = PROPOSAL) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode(message))["body"]
    return found


def test_unknown_fields_are_passed_over_and_unknown_versions_refused() -> None:
    assert parse(_written(_body() | {"later": [1, {"x": None}]})) == PROPOSAL
    for version in (0, 2, "1", None, True):
        with pytest.raises(MessageFormatError, match="version"):
            parse(_written(_body(), version=version))
    with pytest.raises(MessageFormatError, match="type"):
        parse(_written(_body(), kind="later"))


def test_a_body_that_was_changed_is_refused() -> None:
    for place in range(len(encode(PROPOSAL))):
        data = bytearray(encode(PROPOSAL))
        data[place] ^= 1
        try:
            changed = parse(bytes(data))
        except MessageFormatError:
            continue
        # What is not covered changes nothing.
        assert changed == PROPOSAL, place


SPOILED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no key": lambda body: body.pop("job_id"),
    "job": lambda body: body.update(job_id="FEED"),
    "container": lambda body: body.update(container_id=2**32),
    "container type": lambda body: body.update(container_id=True),
    "negative": lambda body: body.update(created_ms=-1),
    "too large": lambda body: body.update(created_ms=2**63),
    "no object": lambda body: body.update(object=[]),
    "empty object": lambda body: body["object"].update(size=0),
    "name": lambda body: body["object"].update(name="x" * 513),
    "line end": lambda body: body["object"].update(name="a\nb"),
    "no names": lambda body: body.update(names=[]),
    "names": lambda body: body.update(names=[1, 2, 3]),
    "no replacements": lambda body: body.update(replacements=[]),
    "replacement": lambda body: body.update(replacements=[5]),
    "no old": lambda body: body["replacements"][0].update(old=[]),
    "no new": lambda body: body["replacements"][0].pop("new"),
    "row": lambda body: body["replacements"][0].update(new=[[0, 200, 2]]),
    "row type": lambda body: body["replacements"][0].update(new=[{"start": 0}]),
    "name number": lambda body: body["replacements"][0].update(new=[[0, 200, 3, 0, 9, 0]]),
    "no length": lambda body: body["replacements"][0].update(new=[[0, 0, 2, 0, 9, 0]]),
    "gap": lambda body: body["replacements"][0].update(
        old=[[0, 100, 0, 0, 9, 0], [101, 99, 1, 0, 9, 100]]
    ),
    "beyond": lambda body: body["replacements"][0].update(new=[[1, INTEGER_MAX, 2, 0, 9, 0]]),
    "beyond in block": lambda body: body["replacements"][0].update(
        new=[[0, 200, 2, 0, 9, INTEGER_MAX]]
    ),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_proposal_that_breaks_a_rule_is_refused(what: str) -> None:
    body = _body()
    SPOILED[what](body)
    with pytest.raises(MessageFormatError):
        parse(_written(body))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'"text"',
        b"[" * 1_000_000,
        b'{"version":' + b"9" * 10_000 + b"}",
        b'{"version":NaN}',
        b'{"version":1.0}',
        _written([]),
        _written({}, checksum="0"),
        _written({"x": "\ud800"}),
    ],
    ids=range(12),
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(MessageFormatError):
        parse(data)


def test_lengths_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode(PROPOSAL)
    for bound, value in (
        ("MESSAGE_BYTES_MAX", len(encoded) - 1),
        ("REPLACEMENT_CHUNKS_MAX", 1),
        ("CHUNKS_MAX", 2),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(messages, bound, value)
            with pytest.raises(MessageFormatError):
                parse(encoded)
            with pytest.raises(ValueError):
                encode(PROPOSAL)
    names = tuple(f"n{number}" for number in range(messages.ORPHAN_NAMES_MAX))
    most = OrphanDeletionRequest(3, JOB, "m", names, 0)
    assert parse(encode(most)) == most
    with pytest.raises(ValueError):
        encode(OrphanDeletionRequest(3, JOB, "m", (*names, "one more"), 0))
    with pytest.raises(ValueError):
        encode(OrphanDeletionRequest(3, JOB, "m", (), 0))


def test_what_json_cannot_hold_is_not_written() -> None:
    for detail in ({"x": 1.5}, {"x": object()}, {"x": float("nan")}):
        with pytest.raises(ValueError):
            encode(ANSWER._replace(detail=detail))
    with pytest.raises(ValueError):
        encode(ANSWER._replace(verdict="perhaps"))  # type: ignore[arg-type]


@given(st.text(max_size=3000))
def test_any_text_becomes_a_reason(text: str) -> None:
    answer = ANSWER._replace(reason=one_sentence(text))
    assert parse(encode(answer)) == answer


@settings(max_examples=examples(300))
@given(
    st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()) | JSON.map(_written)
)
def test_any_bytes_are_a_message_or_are_refused(data: bytes) -> None:
    with pytest.raises(MessageFormatError):
        parse(data)
