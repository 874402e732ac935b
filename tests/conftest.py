"""The order of the whole test run, and what it tells at its end."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from tests.support.run_report import RunReport

SHARED = ("spark", "shared_bookkeeper")
"""Fixtures of which a worker has one."""

# No timed assertions: machines are noisy. Explicit settings of a test build upon this.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shares", action="store_true", help="tell the slowest tests, and the share of each folder"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Whoever is started from here must hear Ctrl-C: what a shell runs in the background is deaf to
    it, and hands that on.
    """
    config.pluginmanager.register(RunReport(config))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_bookkeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookKeeperCluster]:
    """One cluster for all modules of a pytest process that leave it whole: it costs 5 s of a core.

    They call `start`, which brings back what a test that failed has killed, and is quick else.
    """
    with BookKeeperCluster(tmp_path_factory.mktemp("bookkeeper")) as running:
        yield running


def place_in_the_order(item: pytest.Item) -> int:
    """By what the test needs: a cluster of its module, a fixture of `SHARED`, or nothing."""
    if item.get_closest_marker("cluster") is not None:
        return 0
    fixtures = getattr(item, "fixturenames", ())
    needed = (number for number, name in enumerate(SHARED, 1) if name in fixtures)
    return next(needed, len(SHARED) + 1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share what is slow to start run first, side by side: a worker begins with half of
    all tests, and those who help out take tests from the end. So one worker starts it.
    """
    items.sort(key=place_in_the_order)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if shutil.which("go") is None:
        terminalreporter.write_line(
            "VersityGW and fake-gcs-server took no part: there is no Go here to build them with"
        )
