"""How values are shown: JSON for programs, text for people."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

import pytest

from segmentstore.cli import output
from segmentstore.contracts.attributes import UpdateType


class Severity(Enum):
    HARMFUL = "harmful"


class Row(NamedTuple):
    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Numbers:
    rows: list[Row]
    when: datetime
    by_id: dict[uuid.UUID, int]
    severity: Severity
    kind: UpdateType
    nothing: None = None


def test_records_become_json() -> None:
    key = uuid.UUID(int=7)
    value = Numbers(
        [Row("a", b"\x01\xff")],
        datetime(2026, 1, 2, tzinfo=UTC),
        {key: 3},
        Severity.HARMFUL,
        UpdateType.REPLACE,
    )
    assert json.loads(json.dumps(output.to_plain(value))) == {
        "rows": [{"name": "a", "data": "01ff"}],
        "when": "2026-01-02T00:00:00+00:00",
        "by_id": {str(key): 3},
        "severity": "harmful",
        "kind": "replace",
        "nothing": None,
    }


def test_cells() -> None:
    shown = [
        output.cell(value) for value in (1234567, True, None, 1.5, 12345.6, UpdateType.REPLACE)
    ]
    assert shown == ["1,234,567", "yes", "", "1.500", "12,346", "replace"]


def test_flatten_names_every_level() -> None:
    assert output.flatten({"a": {"b": 1}, "c": [{"d": 2}, {"d": 3}], "e": [4]}) == {
        "a.b": 1,
        "c.0.d": 2,
        "c.1.d": 3,
        "e": [4],
    }


def test_listings_are_a_document_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json_lines([Row("é\n", b""), {"n": 1}])
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [{"name": "é\n", "data": ""}, {"n": 1}]
