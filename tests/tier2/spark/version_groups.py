"""What became of the tests marked `spark_versions`, by the group each mark names: a pytest plugin.

    pytest -p tests.tier2.spark.version_groups --outcomes FILE -m spark_versions ...

Each line of the file is a group, an outcome and a test: first `collected` for all, then how each
ended. It is written line by line, so it shows how far a run came whose process died.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

MARK: Final = "spark_versions"
COLLECTED: Final = "collected"
LACKING: Final = "none"
"""The cell of a group that a release does not have."""
TIMEOUT_S: Final = 1800
"""Of a test, in place of its own: one that is over its time ends the process."""
_GROUP: Final = "spark group"


class Count(NamedTuple):
    """Tests of one group."""

    passed: int = 0
    failed: int = 0
    not_run: int = 0
    """Skipped, or the process died before."""

    @property
    def holds(self) -> bool:
        """Whether there are tests and all of them passed."""
        return self.passed > 0 and not self.failed and not self.not_run

    def __str__(self) -> str:
        if not any(self):
            return "NOT RUN"
        parts = ((self.passed, "passed"), (self.failed, "FAILED"), (self.not_run, "NOT RUN"))
        return ", ".join(f"{number} {word}" for number, word in parts if number)


class Outcomes:
    """The plugin."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note all that is to run. Behind pytest's own choice by `-m`."""
        for item in items:
            mark = item.get_closest_marker(MARK)
            if mark is not None and not mark.args:
                raise pytest.UsageError(f"{item.nodeid}: its mark {MARK} names no group")
            if mark is not None:
                item.user_properties.append((_GROUP, mark.args[0]))
                item.add_marker(pytest.mark.timeout(TIMEOUT_S), append=False)
                self._add(mark.args[0], COLLECTED, item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what ended: a test, or a fixture of it that failed."""
        group = dict(report.user_properties).get(_GROUP)
        if group is not None and (report.when == "call" or not report.passed):
            self._add(str(group), report.outcome, report.nodeid)

    def _add(self, group: str, outcome: str, test: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{group}\t{outcome}\t{test}\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that names the file."""
    parser.addoption(
        "--outcomes", type=Path, required=True, help="where to note what became of each test"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Note from now on."""
    config.pluginmanager.register(Outcomes(config.getoption("outcomes")))


def counted(text: str) -> dict[str, Count]:
    """The counts by group, of what the plugin wrote.

    A test that passed and whose fixture then failed has failed.
    """
    ends: dict[tuple[str, str], set[str]] = {}
    for line in text.splitlines():
        group, outcome, test = line.split("\t")
        ends.setdefault((group, test), set()).add(outcome)
    counts: dict[str, Count] = {}
    for (group, _), outcomes in ends.items():
        before = counts.get(group, Count())
        if "failed" in outcomes:
            counts[group] = before._replace(failed=before.failed + 1)
        elif "passed" in outcomes:
            counts[group] = before._replace(passed=before.passed + 1)
        else:
            counts[group] = before._replace(not_run=before.not_run + 1)
    return counts


def table(groups: Sequence[str], releases: Mapping[str, Mapping[str, Count | None]]) -> list[str]:
    """Lines of a table: a row for each group, a column for each release.

    None is a group that a release lacks.
    """
    head = ["", *releases]
    rows = [
        [group, *(_cell(found.get(group, Count())) for found in releases.values())]
        for group in groups
    ]
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]


def faults(groups: Sequence[str], found: Mapping[str, Count | None]) -> list[str]:
    """The groups of a release that did not hold, with what became of them."""
    counts = {group: found.get(group, Count()) for group in groups}
    return [
        f"{group}: {count}"
        for group, count in counts.items()
        if count is not None and not count.holds
    ]


def _cell(count: Count | None) -> str:
    return LACKING if count is None else str(count)
