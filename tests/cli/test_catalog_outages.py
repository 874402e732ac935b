"""`catalog`, where Tier 2 now and then does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.harness.services.fault_rules import SLOW_DOWN
from recovery.harness.services.s3_servers import Moto
from recovery.harness.services.shared import shared_server
from segmentstore import blocking
from segmentstore.cli.exit_codes import ExitCode
from tests.cli.shell import segmentstore
from tests.support.faulty_s3 import FaultyS3, faulty_s3, own_part


@pytest.fixture
def s3() -> Iterator[FaultyS3]:
    with faulty_s3(shared_server(Moto)) as world, own_part(world) as mine:
        yield mine


def test_one_answer_of_503_ends_neither_an_export_nor_a_listing(
    s3: FaultyS3, tmp_path: Path
) -> None:
    location = tmp_path / "store"
    with blocking.open(location, tier2=s3.url) as store:
        store.create_segment("a")
        store.append("a", b"one")
        s3.proxy.fault(SLOW_DOWN, "put", when=lambda head: ".parquet" in head.first_line)
        assert len(store.export_catalog()) == 1
    for operation in ("put", "list"):
        s3.proxy.fault(SLOW_DOWN, operation)
    exported = segmentstore("catalog", "export", location)
    assert exported.code == ExitCode.DONE, exported.err
    s3.proxy.fault(SLOW_DOWN, "list")
    listed = segmentstore("catalog", "ls", location, "--json")
    assert listed.code == ExitCode.DONE, listed.err
    assert [each["whole"] for each in listed.json_lines()] == [True, True]
