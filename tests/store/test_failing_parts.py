"""A part of a container that fails while it is stopped: the others are stopped all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from readindex.fair_delivery import FairDelivery
from segmentstore.container.active_segments import ActiveSegments
from segmentstore.contracts.owned_tasks import owned_tasks
from storagewriter.storage_writer import StorageWriter
from tests.store.harness import open_tiny, read_all, run

PLACES: dict[str, tuple[object, str]] = {
    "segments": (ActiveSegments, "_fail"),
    "writer": (StorageWriter, "_close"),
    "read index": (FairDelivery, "close"),
}


class BrokenError(Exception):
    """A broken assumption of a part's."""


def fails_once(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, which fails behind its end, the first time."""
    left = [1]

    def failing(*arguments: Any, **keywords: Any) -> Any:
        result = call(*arguments, **keywords)
        while left:
            left.pop()
            raise BrokenError
        return result

    return failing


@pytest.mark.parametrize("place", PLACES)
def test_all_parts_are_stopped_though_one_fails(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        store = await open_tiny(tmp_path / "s", containers=1)
        await store.create_segment("x")
        assert await store.append("x", b"kept") == 0
        owner, name = PLACES[place]
        monkeypatch.setattr(owner, name, fails_once(getattr(owner, name)))
        with pytest.raises(BrokenError):
            await store.close()
        assert not owned_tasks()
        async with open_tiny(tmp_path / "s") as again:
            assert await read_all(again, "x") == b"kept"

    run(main())
