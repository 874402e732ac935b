"""Restoring from a copy of the metadata that was written between the operations which commit one
object.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.recovery.test_restore import Place, fill, settled
from tests.store.harness import run


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_checkpoint_written_while_an_object_was_half_committed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object of many segments is committed by several operations: the copy may know it, and not
    all that is in it.
    """
    monkeypatch.setattr("storagewriter.object_uploader.OPERATION_CHUNKS", 1)

    async def use() -> Path:
        async with place.open() as store:
            source: Any = store._containers[0]._writer._source
            commit = source.commit
            copies: list[Path] = []

            async def slowly(operation: Any) -> None:
                await commit(operation)
                if not copies:
                    await settled(store, place)
                    copies.append(place.copies()[-1])

            source.commit = slowly
            await fill(store, "a", "b", "c", data=b"small")
            await store.flush()
            return copies[0]

    copy = run(use())
    before = place.contents(place.store)
    place.forget_copies(lambda path: path == copy)
    report = place.restore()
    assert report.missing_bytes == 0
    assert place.contents() == before
