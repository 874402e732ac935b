"""Which stores keep their objects in one place: each has a marker there, `stores/<store id, 32 hex digits>`.

Names of objects carry the container, not the store. Stores that share a place keep out of each other's way all the same,
for unique ids differ; but none can tell an orphan of its own from another's live object. Rule: a store's marker is there
before its first object. So who sees an object, and afterwards no marker but his own, knows that the object is of no store
but his. The place inside a store's own folder needs no markers.

The id is the marker's unique id too: to put it again succeeds. Its content is for people.
"""

from __future__ import annotations

import uuid

from tier2.object_storage import ObjectExistsError, ObjectStorage

PREFIX = "stores/"


def marker_name(store_id: str) -> str:
    """The name of a store's marker; ValueError if that is no UUID."""
    return PREFIX + uuid.UUID(store_id).hex


def is_marker(name: str) -> bool:
    """Whether an object of this name is a marker."""
    return _store_of(name) is not None


class StoreMarkers:
    """The markers in one object storage, seen from one store. Every call may raise StorageUnavailableError."""

    def __init__(self, storage: ObjectStorage, store_id: str) -> None:
        self._storage = storage
        self._store_id = uuid.UUID(store_id)
        self._is_there = False

    async def put(self) -> None:
        """Make this store known. One request."""
        text = f"The store {self._store_id} keeps its objects here.\n"
        try:
            await self._storage.put(marker_name(str(self._store_id)), [text.encode()], self._store_id.bytes)
        except ObjectExistsError:
            pass  # There, without the id: a copy of the place was made by a tool that keeps names and bytes alone.

    async def ensure(self) -> None:
        """As `put`, until that has succeeded once. For the moment before an object: nothing from then on."""
        if not self._is_there:
            await self.put()
            self._is_there = True

    async def others(self) -> list[str]:
        """Ids of the other stores that were ever made here, sorted. One listing request."""
        found = []
        async for page in self._storage.list(PREFIX):
            found += [store for stored in page if (store := _store_of(stored.name)) is not None]
        return sorted(str(store) for store in found if store != self._store_id)

    async def shared_with(self) -> str | None:
        """A sentence that says with whom the place is shared; None with nobody. One listing request."""
        others = await self.others()
        if not others:
            return None
        count = f" and {len(others) - 1} more" if len(others) > 1 else ""
        return f"{self._storage.url} also has objects of store {others[0]}{count}: whose an unknown object is cannot be told"

    async def forget(self, store_id: str) -> bool:
        """Remove the marker of a store that is gone for good; whether there was one. ValueError if that is no UUID."""
        name = marker_name(store_id)
        there = await self._storage.head(name) is not None
        await self._storage.delete(name)
        return there


def _store_of(name: str) -> uuid.UUID | None:
    digits = name.removeprefix(PREFIX)
    if not name.startswith(PREFIX) or len(digits) != 32 or digits.strip("0123456789abcdef"):
        return None
    return uuid.UUID(digits)
