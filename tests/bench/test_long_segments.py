"""The bench of long segments measures segments that memory knows in part. No timing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import long_segments
from bench.long_segments import (
    find_attributes,
    find_chunks,
    make_attributes,
    make_chunks,
    merge_chunks,
)
from segmentstore.container.partial_segments import PartialSegments
from tests.support.suites import slow

COUNT = 10_000
"""More than the bench's bound of bytes has room for."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the container that was stopped last has read of the catalog."""
    found: dict[str, int] = {}
    stop = PartialSegments.stop

    async def counted(self: PartialSegments, refusal: Callable[[], BaseException]) -> None:
        found.update(pages=self.pages_read, attributes=self.attributes_read)
        await stop(self, refusal)

    monkeypatch.setattr(PartialSegments, "stop", counted)
    monkeypatch.setattr(long_segments, "LOOKUPS", 200)
    return found


@slow(2)
def test_a_chunk_that_memory_lacks_comes_with_its_page(
    read: dict[str, int], tmp_path: Path
) -> None:
    make_chunks(str(tmp_path), COUNT)
    found = find_chunks(str(tmp_path), COUNT)
    assert 70 < read["pages"] <= 200
    assert json.loads(json.dumps(found)) == found


@slow(3)
def test_a_returning_writer_reads_its_attribute(read: dict[str, int], tmp_path: Path) -> None:
    make_attributes(str(tmp_path), COUNT)
    found = find_attributes(str(tmp_path), COUNT)
    assert read == {"pages": 0, "attributes": 200}
    assert json.loads(json.dumps(found)) == found


@slow(2)
def test_a_long_segment_is_merged_and_linked_to_its_last_chunk(
    read: dict[str, int], tmp_path: Path
) -> None:
    make_chunks(str(tmp_path), COUNT)
    found = merge_chunks(str(tmp_path), COUNT)
    assert read["pages"] > 70
    assert json.loads(json.dumps(found)) == found
