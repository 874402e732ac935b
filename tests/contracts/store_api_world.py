"""A store that an API of a store is tested on, and what its tests share."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from segmentstore import (
    AttributeUpdate,
    SegmentStore,
    StoreApi,
    UpdateType,
)
from tests.store.harness import attribute, run

WRITER = attribute(9)
A, B = attribute(1), attribute(2)
Opened = AbstractAsyncContextManager[tuple[StoreApi, SegmentStore]]


def put(key: uuid.UUID, value: int) -> AttributeUpdate:
    return AttributeUpdate(key, UpdateType.REPLACE, value)


async def all_of(store: StoreApi, name: str, offset: int = 0) -> bytes:
    return b"".join([chunk async for chunk in store.reader(name, offset)])


class StoreApiWorld(ABC):
    """A way to have a store: `open_api` gives the store under test, and the embedded one that
    serves it.
    """

    @abstractmethod
    def open_api(self, folder: Path, **options: Any) -> Opened:
        """A tiny store that is new."""

    def check(
        self, folder: Path, body: Callable[[StoreApi], Awaitable[None]], **options: Any
    ) -> None:
        async def main() -> None:
            async with self.open_api(folder / "s", **options) as (store, _):
                await body(store)

        run(main())
