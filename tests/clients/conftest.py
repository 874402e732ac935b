"""Which clients there can be here, and the store that tests with Pravega's Controller share."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator

import pytest

from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from tests.clients.pravega_controller import ControlledStore

HAS_WHEEL = (
    sys.version_info < (3, 12) and sys.platform == "linux" and platform.machine() == "x86_64"
)
"""As the extra `test` has it in pyproject.toml: there is no wheel for anything else."""
collect_ignore = [] if HAS_WHEEL else ["test_wheel.py"]


@pytest.fixture(scope="session")
def controlled_store(
    tmp_path_factory: pytest.TempPathFactory, shared_bookkeeper: BookKeeperCluster
) -> Iterator[ControlledStore]:
    """One for all tests of a pytest process, which use scopes of their own: it costs 15 s of a
    core.
    """
    shared_bookkeeper.start()
    folder = tmp_path_factory.mktemp("controlled")
    with ControlledStore(folder, shared_bookkeeper.zookeeper) as running:
        yield running
