"""What a run of tests reports at its end: slowest tests, shares of folders, what took no part."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

SLOWEST = 20
LEFT_OUT = "tests_left_out"


class RunReport:
    """A plugin. Under xdist workers send the controller what they left out."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.seconds: dict[str, float] = defaultdict(float)
        self.left_out: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.left_out.update(item.nodeid for item in items)

    def pytest_sessionfinish(self) -> None:
        output: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[LEFT_OUT] = sorted(self.left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # A worker that died has sent none.
        self.left_out.update(getattr(node, "workeroutput", {}).get(LEFT_OUT, ()))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._config.getoption("--shares"):
            for line in told(self.seconds):
                terminalreporter.write_line(line)
        if self.left_out:
            by_folder = Counter(folder_of(test) for test in self.left_out)
            folders = ", ".join(f"{folder} {count}" for folder, count in by_folder.most_common())
            terminalreporter.write_line(
                f"{len(self.left_out)} tests took no part, by the choice of this run: {folders}"
            )


def told(seconds: Mapping[str, float]) -> list[str]:
    """Lines about tests that took so long each, set-up and tear-down included."""
    total = sum(seconds.values())
    if not total:
        return []
    folders: dict[str, float] = defaultdict(float)
    for test, took in seconds.items():
        folders[folder_of(test)] += took
    counts = Counter(map(folder_of, seconds))
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:SLOWEST]
    return [
        f"the {len(slowest)} slowest tests of {len(seconds)}, and {total:.0f} s in all:",
        *(f"  {took:7.1f} s  {test}" for test, took in slowest),
        "the share of each folder:",
        *(
            f"  {100 * took / total:5.1f} %  {took:7.1f} s  {counts[folder]:5} tests  {folder}"
            for folder, took in sorted(folders.items(), key=lambda item: -item[1])
        ),
    ]


def folder_of(test: str) -> str:
    return test.partition("::")[0].rpartition("/")[0]
