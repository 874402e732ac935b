"""A job on the store's machine wakes its owner over the socket: the job does not wait for the
next poll of the mailbox.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from segmentstore import blocking
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.contracts.local_socket import socket_address
from segmentstore.contracts.runtime import Runtime
from tests.cli.shell import segmentstore
from tests.store.harness import TINY
from tests.tier2.spark.reconcile_dry import LocalSpark
from tier2.spark.common import owner_bell
from tier2.spark.common.command_options import Exit
from tier2.spark.common.owner_bell import wake_owner
from tier2.spark.reconcile.job import reconcile

RARELY: dict[str, Any] = {
    **TINY,
    "containers": 2,
    "mailbox_poll_interval_s": 36_000.0,
}
"""An owner that is not woken does not check while the test runs."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need longer than a job tries to wake an owner."""
    monkeypatch.setattr(owner_bell, "TIMEOUT_S", 60.0)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_reconciliation_waits_for_no_check(tmp_path: Path, elsewhere: bool) -> None:
    place = tmp_path / ("elsewhere" if elsewhere else "store/tier2")
    settings = {**RARELY, "tier2": place.as_uri()} if elsewhere else RARELY
    with blocking.open(tmp_path / "store", **settings) as store:
        store.create_segment("a")
        store.append("a", b"a" * 500)
        store.flush()
        # Where the objects are in the store's folder it is known by itself.
        options = {"store_folder": str(tmp_path / "store")} if elsewhere else {}
        result = reconcile(LocalSpark().as_spark(), place.as_uri(), timeout_s=240.0, **options)
    assert (result.verdict, result.summary.unresponsive) == (Exit.NOTHING, {})


def test_so_does_an_export_of_a_store_that_is_open(tmp_path: Path) -> None:
    with blocking.open(tmp_path / "store", **RARELY):
        shown = segmentstore("catalog", "export", tmp_path / "store", "--json", "--timeout", "240")
    assert shown.code == ExitCode.DONE
    assert [each["container_id"] for each in shown.json()["snapshots"]] == [0, 1]


def test_an_owner_that_is_away_or_does_not_answer_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"
    assert asyncio.run(wake_owner(str(folder), Runtime())) is False
    with blocking.open(folder, **RARELY):
        assert asyncio.run(wake_owner(str(folder), Runtime())) is True
    assert asyncio.run(wake_owner(str(folder), Runtime())) is False
    monkeypatch.setattr(owner_bell, "TIMEOUT_S", 0.01)
    with socket.socket(socket.AF_UNIX) as silent:
        with socket_address(str(folder)) as address:
            silent.bind(address)
        silent.listen()
        assert asyncio.run(wake_owner(str(folder), Runtime())) is False
