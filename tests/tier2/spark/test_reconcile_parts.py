"""Options, cutting and reports of reconciliation: pure rules at their borders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.findings import Severity
from tier2.spark.common.arrow_rows import pack, unpack
from tier2.spark.common.command_options import Exit
from tier2.spark.reconcile.findings import FINDINGS, FindingKind, FindingRow, findings_table
from tier2.spark.reconcile.found_classes import count_classes
from tier2.spark.reconcile.options import ReconcileOptions, parse_age
from tier2.spark.reconcile.orphan_requests import NOT_ASKED, OrphanOutcome
from tier2.spark.reconcile.plan import (
    TASKS_MAX,
    TASKS_MIN,
    coverage_work,
    in_bins,
    live_bytes,
    task_count,
)
from tier2.spark.reconcile.report import (
    ReconcileSummary,
    count_kinds,
    summary_json,
    summary_text,
    verdict_of,
)
from tier2.spark.reconcile.report_files import write_report


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3 days", 259200),
        ("1 day", 86400),
        ("36h", 129600),
        ("90 minutes", 5400),
        ("2.5 hours", 9000),
        ("86400", 86400),
        ("1W", 604800),
        (12, 12),
        (0.5, 0.5),
    ],
)
def test_ages(text: str | float, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "days", "3 fortnights", "-3 days", "3 days ago", "nan"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="older-than"):
        parse_age(text)


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"older_than_s": 86399.0}, "older-than"),
        ({"older_than_s": -1.0, "allow_short_retention": True}, "older-than"),
        ({"check": "half"}, "check"),
        ({"snapshots": "old"}, "snapshots"),
        ({"prefix_mismatch_mode": "DELETE"}, "prefix-mismatch-mode"),
        ({"execute": True}, "execute"),
        ({"execute": True, "delete_orphans": True, "snapshots": "newest"}, "execute"),
        ({"tasks": 0}, "tasks"),
        ({"tasks": 257}, "tasks"),
        ({"max_concurrent_objects": 0}, "max-concurrent-objects"),
        ({"run_id": "me"}, "run-id"),
    ],
)
def test_options_that_are_refused_name_themselves(options: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError, match=f"setting {setting}"):
        ReconcileOptions(**options)


def test_a_short_age_is_taken_where_it_is_allowed() -> None:
    assert ReconcileOptions(older_than_s=0.0, allow_short_retention=True).older_than_s == 0
    assert ReconcileOptions().older_than_s == 3 * 24 * 3600


@settings(deadline=None)
@given(st.integers(0, 10**10))
def test_tasks_are_few_enough_and_none_has_too_much(amount: int) -> None:
    tasks = task_count(amount, 1000)
    assert TASKS_MIN <= tasks <= TASKS_MAX
    assert tasks & (tasks - 1) == 0
    assert amount <= tasks * 1000 or tasks == TASKS_MAX
    assert tasks == TASKS_MIN or amount > tasks // 2 * 1000


@pytest.mark.parametrize(
    ("segments", "chunks", "parts"), [(0, 0, 1), (3, 10, 1), (3, 11, 2), (95, 11, 10)]
)
def test_a_container_is_cut_by_its_rows_without_reading_any(
    segments: int, chunks: int, parts: int
) -> None:
    work = list(coverage_work(4, segments, chunks, rows_per_task=10))
    assert [(row["first"], row["end"]) for row in work] == [(part, parts) for part in range(parts)]
    assert {row["container_id"] for row in work} == {4}


def test_bytes_of_segments_are_those_between_start_offset_and_storage_length() -> None:
    assert live_bytes(pa.table({"start_offset": [1, 1], "storage_length": [11, 11]})) == 20


@pytest.mark.parametrize(
    ("checks", "covers", "bins", "light_bins"),
    [
        (0, 0, 0, 0),
        (3, 2, 3, 3),
        (20, 2, 20, TASKS_MIN),
        (20, 11, 20, 11),
        (2, 5, 5, 5),
        (0, 4, 4, 4),
    ],
)
def test_bins_hold_one_row_of_each_item_and_light_rows_are_spread(
    checks: int, covers: int, bins: int, light_bins: int
) -> None:
    work: list[dict[str, Any]] = [{"item": "judge", "first": number} for number in range(checks)]
    work += [{"item": "cover", "first": number} for number in range(covers)]
    for rows, expected in ((in_bins(work), bins), (in_bins(work, {"judge"}), light_bins)):
        assert [(row["item"], row["first"]) for row in rows.to_pylist()] == [
            (row["item"], row["first"]) for row in work
        ]
        assert {row["bin"] for row in rows.to_pylist()} == set(range(expected))
        each = [row["bin"] for row in rows.to_pylist() if row["item"] == "cover"]
        assert len(set(each)) == len(each)
    counts = [row["bin"] for row in in_bins(work, {"judge"}).to_pylist() if row["item"] == "judge"]
    assert max(map(counts.count, counts), default=0) <= -(-checks // max(light_bins, 1))


def test_a_packed_table_has_the_bytes_of_its_rows_alone() -> None:
    large = pa.table(
        {"name": [f"{number:066d}" for number in range(10_000)], "size": range(10_000)}
    )
    some = pa.concat_tables(
        [large.slice(5, 1), large.slice(0, 0), large.slice(9_000, 2), large.slice(7, 0)]
    )
    packed = pack(some)
    assert len(packed) < 2000
    assert unpack(packed).to_pylist() == some.to_pylist()


def table(*findings: FindingRow) -> pa.Table:
    return findings_table(findings, "run")


ORPHAN = FindingRow(FindingKind.ORPHAN, "in neither snapshot", 1, "ab/x")
WAITING = FindingRow(FindingKind.WAITING_FOR_DELETION, "garbage", 1, "ab/y")
MISSING = FindingRow(FindingKind.MISSING, "live in both", 1, "ab/z", "3 bytes", "not there")
UNKNOWN = FindingRow(
    FindingKind.IN_FLIGHT, "container 2: its owner did not answer", 2, severity=Severity.UNKNOWN
)


def condemned(verdict: str) -> OrphanOutcome:
    return OrphanOutcome(
        1, verdict, "", 1, 2, 1, {"too young": 1}, ("ab/x",), {"ab/w": "too young"}
    )


@pytest.mark.parametrize(
    ("findings", "asked", "code"),
    [
        ([], [], Exit.NOTHING),
        ([WAITING], [], Exit.NOTHING),
        ([ORPHAN], [], Exit.FINDINGS),
        ([ORPHAN], ["condemned"], Exit.FINDINGS),
        ([ORPHAN], ["condemned", "pending"], Exit.UNDECIDED),
        ([ORPHAN], ["failed"], Exit.UNDECIDED),
        ([ORPHAN], ["condemned", NOT_ASKED], Exit.FINDINGS),
        ([WAITING, MISSING], [], Exit.FINDINGS),
        ([MISSING, UNKNOWN], [], Exit.UNDECIDED),
    ],
)
def test_verdicts(findings: list[FindingRow], asked: list[str], code: Exit) -> None:
    assert verdict_of(table(*findings), [condemned(verdict) for verdict in asked]) == code


def summary(findings: pa.Table, **changed: Any) -> ReconcileSummary:
    fields: dict[str, Any] = {
        "run_id": "00000000000000ab",
        "url": "file:///store",
        "listed_at_ms": 5,
        "containers": {0: (3, 10, 12)},
        "unresponsive": {1: "its owner did not answer within 5 s"},
        "outdated": {2: "the store was opened after its export, as ab/x shows"},
        "objects": 1000,
        "listed": 1001,
        "chunks": 5000,
        "check": "bodies",
        "looked_into": 999,
        "bytes_read": 123456,
        "kinds": count_kinds(findings),
        "classes": count_classes(findings),
        "orphans": 1,
        "delete_orphans": "no",
        "verdict": verdict_of(findings, ()),
    } | changed
    return ReconcileSummary(**fields)


def test_a_foreign_name_never_reaches_a_terminal_as_it_is() -> None:
    [counted] = count_kinds(
        table(FindingRow(FindingKind.FOREIGN, "no name of ours", None, "a\x1b[2J\nb é"))
    )
    assert counted.example == "a\\x1b[2J\\nb é: no name of ours"


def test_the_report_for_people_has_the_worst_first_in_aligned_columns() -> None:
    shown = summary_text(summary(table(WAITING, ORPHAN, MISSING, MISSING, UNKNOWN)), ())
    lines = shown.splitlines()
    rows = lines[lines.index("") + 1 :]
    assert [line.split()[:3] for line in rows[:5]] == [
        ["kind", "severity", "count"],
        ["missing", "harmful", "2"],
        ["orphan", "note", "1"],
        ["waiting_for_deletion", "information", "1"],
        ["in_flight", "unknown", "1"],
    ]
    assert len({line.index(line.split()[1]) for line in rows[:5]}) == 1
    assert "container 1  unresponsive: its owner did not answer" in shown
    assert lines[-1].startswith("undecided")


def test_a_clean_run_says_so() -> None:
    shown = summary_text(
        summary(FINDINGS.empty_table(), unresponsive={}, outdated={}, check="none"), ()
    )
    assert "nothing differs" in shown
    assert shown.endswith("nothing found")


def test_what_owners_did_with_orphans_is_reported_with_their_reasons() -> None:
    assert "would be asked to delete 1 orphans" in summary_text(
        summary(table(ORPHAN), delete_orphans="dry run"), ()
    )
    shown = summary_text(summary(table(ORPHAN), delete_orphans="asked"), [condemned("condemned")])
    assert "container 1: 2 orphans, condemned; 1 wait for deletion now, 1 left alone" in shown
    assert "left alone, 1: too young" in shown
    later = OrphanOutcome(1, NOT_ASKED, "run again when the deletion lag is over", 0, 7_000)
    shown = summary_text(summary(table(ORPHAN), delete_orphans="asked"), [later])
    assert (
        "container 1: 7,000 orphans, not asked for: run again when the deletion lag is over"
        in shown
    )


def test_reports_in_files_hold_every_row_and_the_same_numbers(tmp_path: Path) -> None:
    findings = table(ORPHAN, MISSING)
    document = summary_json(summary(findings), [condemned("pending")])
    write_report(str(tmp_path / "new" / "report"), findings, document)
    assert pq.read_table(tmp_path / "new" / "report" / "findings.parquet").equals(findings)
    read = json.loads((tmp_path / "new" / "report" / "summary.json").read_text())
    assert read == json.loads(json.dumps(document))
    assert read["findings"][0]["count"] == 1
    assert (read["exit_code"], read["condemned"][0]["verdict"], read["findings"][0]["kind"]) == (
        1,
        "pending",
        "missing",
    )


def test_a_sample_says_so_at_the_top_and_is_in_no_file_that_is_taken_for_all(
    tmp_path: Path,
) -> None:
    findings = table(*[MISSING] * 10, ORPHAN)
    shown = findings.slice(0, 3)
    sampled = summary(findings, kinds=count_kinds(shown, count_classes(findings)))
    waiting = table(*[WAITING] * 9)
    assert not summary(
        waiting, kinds=count_kinds(waiting.slice(0, 2), count_classes(waiting))
    ).is_sample
    line = summary_text(sampled, ()).splitlines()[2]
    assert line.startswith("findings     3 of 10, a sample")
    assert "--findings URL" in line
    document = summary_json(sampled, ())
    assert list(document)[:3] == ["run_id", "sample", "all_findings"]
    assert (document["sample"], document["all_findings"]) == (True, None)
    report = tmp_path / "report"
    write_report(str(report), findings, summary_json(summary(findings), ()))
    write_report(str(report), shown, document)
    assert sorted(path.name for path in report.iterdir()) == [
        "findings-sample.parquet",
        "summary.json",
    ]
    # With all of them in pieces the report has all.
    for number in range(2):
        pq.write_table(findings.slice(5 * number, 5 + number), tmp_path / f"{number}.parquet")
    write_report(str(report), shown, document, [tmp_path / "0.parquet", tmp_path / "1.parquet"])
    assert sorted(path.name for path in report.iterdir()) == ["findings.parquet", "summary.json"]
    assert pq.read_table(report / "findings.parquet").equals(findings)
