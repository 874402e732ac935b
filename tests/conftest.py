"""The order of the whole test run, and what it reports at its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.contracts.event_loops import new_uvloop
from tests.support.parse_guard import guard_parsing
from tests.support.run_order import Group, arrange
from tests.support.run_report import RunReport
from tests.support.suites import cost, examples, sized, time_limit

guard_parsing()

# No timed assertions: machines are noisy. Explicit settings of a test build upon this.
settings.register_profile(
    "suite",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


class _UvloopPolicy(asyncio.DefaultEventLoopPolicy):
    """Makes the loops that `serve` uses, for tests that leave the choice to asyncio."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return new_uvloop()


if os.environ.get("TEST_LOOP") == "uvloop":
    asyncio.set_event_loop_policy(_UvloopPolicy())


JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
"""For every Java program below a test. They live for seconds: the second compiler would cost more
than it brings. Java reports them in a line of its standard error.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shares", action="store_true", help="tell the slowest tests, and the share of each folder"
    )


def pytest_configure(config: pytest.Config) -> None:
    """A process that is started from here must receive Ctrl-C: what a shell runs in the background
    ignores it, and hands that on.
    """
    config.pluginmanager.register(RunReport(config))
    os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A third of the time to collect would be garbage collections, of which nothing is garbage.
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was collected stays to the end: no later collection needs to scan it."""
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests of hypothesis try fewer examples in `make test`."""
    marked = any(item.get_closest_marker(name) for name in ("slow", "sized"))
    if is_hypothesis_test(getattr(item, "obj", None)) and not marked:
        item.add_marker(sized(2))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Tests that follow in this process read what is logged."""
    disabled = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    assert disabled == logging.NOTSET, f"{item.nodeid} left the log disabled"


@pytest.fixture(scope="session")
def shared_bookkeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookKeeperCluster]:
    """One cluster for all modules of a pytest process that leave it whole: it costs 5 s of a core.

    They call `start`, which brings back what a test that failed has killed, and is quick else.
    """
    with BookKeeperCluster(tmp_path_factory.mktemp("bookkeeper")) as running:
        yield running


def group_of(item: pytest.Item, spark_parts: int) -> Group | None:
    """With which tests it runs in one worker: those of a module that have a cluster of their own,
    those that share Spark or BookKeeper, or none. What is long by its mark is a group of its own.
    """
    module = item.nodeid.partition("::")[0]
    if item.get_closest_marker("cluster") is not None:
        return Group(module, 5.0)
    fixtures = getattr(item, "fixturenames", ())
    if "spark" in fixtures:
        return Group(f"spark {zlib.crc32(module.encode()) % spark_parts}", 3.0)
    if "shared_bookkeeper" in fixtures:
        return Group("shared_bookkeeper", 0.5)
    return Group(item.nodeid, cost(item)) if item.get_closest_marker("sized") is not None else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """See `arrange`. One worker of four has a Spark session: it takes 1 GB, and 20 s of a core for
    its start and its first queries.
    """
    for item in items:
        if (limit := time_limit(item)) is not None:
            item.add_marker(limit)
    workers: int = getattr(config, "workerinput", {}).get("workercount", 1)
    groups = [group_of(item, max(1, workers // 4)) for item in items]
    items[:] = [items[number] for number in arrange(groups, workers)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if shutil.which("go") is None:
        terminalreporter.write_line(
            "VersityGW and fake-gcs-server took no part: there is no Go here to build them with"
        )
