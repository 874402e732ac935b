"""What the whole test run tells at its end."""

from __future__ import annotations

import shutil

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if shutil.which("go") is None:
        terminalreporter.write_line("VersityGW took no part: there is no Go here to build it with")
