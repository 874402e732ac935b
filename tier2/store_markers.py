"""Which stores keep their objects in one place: each has a marker there,
`stores/<store id, 32 hex digits>`.

Names of objects begin their unique id with a tag of the store (tier2/object_names.py), so no store
deletes what another one made. Names that older versions wrote have no tag: their store is known by
the markers. Rule: a store's marker is there before its first object, in every place, its own folder
included. Another store may name that folder, or both may be links to one volume. So a store that
sees an object, and afterwards no marker but its own, knows that the object is its own.

Where another store has its marker, a store is made, or opened for the first time, only if its
setting `shared_tier2` says that they are meant to share (docs/decisions/0038-shared-tier2.md). A
marker that is missing, though it was there, shows that the content of the place was deleted: it is
put back, and `health` says so.

The id is the marker's unique id too: to put it again succeeds. Its content is for people.
"""

from __future__ import annotations

import uuid
from contextlib import suppress

from tier2.object_names import (
    MARKER_PREFIX,
    MarkerName,
    ProbeName,
    classify_name,
    marker_name,
    parse_marker_name,
)
from tier2.object_storage import (
    ObjectExistsError,
    ObjectStorage,
    ObjectStorageError,
    StorageRefusedError,
    StorageUnavailableError,
)


class PlaceTakenError(StorageRefusedError):
    """Another store keeps its objects in this place, and this one is not known there, nor meant to
    share.
    """


def marker_text(name: str) -> bytes:
    """What the marker of this name says to people; ValueError if it is none."""
    marker = parse_marker_name(name)
    if marker is None:
        raise ValueError(f"{name!r} is no marker")
    return f"The store {marker.store_id} keeps its objects here.\n".encode()


async def stores_at(storage: ObjectStorage) -> list[str]:
    """Ids of all stores that have a marker in a place, sorted.

    One listing request; may raise StorageUnavailableError.
    """
    found: list[str] = []
    async for page in storage.list(MARKER_PREFIX):
        markers = (parse_marker_name(stored.name) for stored in page)
        found += [str(marker.store_id) for marker in markers if marker is not None]
    return sorted(found)


class StoreMarkers:
    """The markers in one object storage, seen from one store.

    Every call may raise StorageUnavailableError.
    """

    def __init__(self, storage: ObjectStorage, store_id: str, *, is_meant: bool = False) -> None:
        """`is_meant`: that other stores are there as well is no mistake."""
        self._storage = storage
        self._store_id = uuid.UUID(store_id)
        self.is_meant = is_meant
        self._is_there = False
        self._was_missing = self._is_new = False
        self._seen: str | None = None

    async def put(self) -> None:
        """Make this store known. One request."""
        name = marker_name(str(self._store_id))
        try:
            await self._storage.put(name, [marker_text(name)], self._store_id.bytes)
        except ObjectExistsError:
            # There, without the id: a copy of the place was made by a tool that keeps names and
            # bytes alone.
            pass

    async def is_known(self, *, begun: bool = True) -> bool:
        """Whether this store is known here. One listing request.

        Raises PlaceTakenError if another store is there with which it does not mean to share, and
        this one is not there, or has not `begun`. A creation may be cut off before it sees another
        beside it.
        """
        others = await self.others()
        if others and not self.is_meant and not (begun and self._is_there):
            raise PlaceTakenError(self._storage.url, await self._refusal(others))
        return self._is_there

    async def ensure(self) -> None:
        """Make this store known, unless it is.

        For the moment before an object: nothing from then on, once it has succeeded.

        As `is_known`, and a request more to put the marker.
        """
        if not self._is_there and not await self.is_known():
            await self.put()
            self._is_there = True

    async def make(self) -> None:
        """Make a new store known, where no other one may be.

        As `ensure`; of two that are made at once both are refused. What was put stays until
        `withdraw`: only its caller knows whether others are of this store.
        """
        if self._is_there:
            return
        self._is_new = True
        await self.put()
        others = await self.others()
        if others and not self.is_meant:
            raise PlaceTakenError(self._storage.url, await self._refusal(others))

    async def withdraw(self) -> None:
        """Delete the marker that `make` has put, of a store that is deleted for good, so that no
        other store goes by it.

        As well as Tier 2 lets it.
        """
        if self._is_new:
            self._is_new = self._is_there = False
            with suppress(ObjectStorageError):
                await self.forget(str(self._store_id))

    def doubt(self) -> None:
        """The creator of the store may have removed its marker: it is checked before an object."""
        self._is_there = False

    async def restore(self) -> None:
        """Put back a marker that was there and is missing."""
        await self.put()
        self._is_there = self._was_missing = True

    async def others(self) -> list[str]:
        """Ids of the other stores that were ever made here, sorted. One listing request.

        The marker of this store is put back if it was there before and is missing.
        """
        was_there = self._is_there
        stores = await stores_at(self._storage)
        if str(self._store_id) in stores:
            self._is_there = True
        elif was_there and self._is_there:
            # Not one that was put while this listing was under way, which may not show it.
            await self.restore()
        return [store for store in stores if store != str(self._store_id)]

    async def _refusal(self, others: list[str]) -> str:
        count = f" and {len(others) - 1} more" if len(others) > 1 else ""
        what, gone = "keeps its objects there", "that one is deleted for good"
        if await self._holds_markers_alone():
            what = "has its marker there, and no object: it is new, or its making was cut off"
            gone = "no folder has that id in its store.toml"
        return (
            f"the store {others[0]}{count} {what}: give each store a prefix of its own, or"
            " set shared_tier2 = true if they are meant to share it. If "
            f"{gone}, delete {marker_name(others[0])}"
        )

    async def _holds_markers_alone(self) -> bool:
        """Whether it is certain that nothing is there but markers, and what a check left.

        One listing request.
        """
        try:
            async for page in self._storage.list():
                names = (classify_name(stored.name) for stored in page)
                if not all(isinstance(name, MarkerName | ProbeName) for name in names):
                    return False
        except StorageUnavailableError:
            return False
        return True

    async def shared_with(self) -> str | None:
        """A sentence that says with which store the place is shared; None with none.

        One listing request.
        """
        others = await self.others()
        count = f" and {len(others) - 1} more" if len(others) > 1 else ""
        what = "garbage without the tag of this store stays"
        if not self.is_meant:
            what = (
                f"nothing is searched for orphans there, and {what}; shared_tier2 = true "
                "says that it is meant"
            )
        self._seen = (
            f"{self._storage.url} also has objects of store {others[0]}{count}: {what}"
            if others
            else None
        )
        return self._seen

    def health(self) -> list[str]:
        """What the last check of the markers showed, if it was anything that is not meant.

        No request.
        """
        found = []
        if self._seen is not None and not self.is_meant:
            found.append(f"tier2 is shared: {self._seen}")
        return found + self.losses()

    def losses(self) -> list[str]:
        """What the last check showed to be lost. No request."""
        found = []
        if self._was_missing:
            what = "what was there was deleted or lost, objects perhaps as well"
            found.append(
                f"tier2: the marker of this store was missing from {self._storage.url}, and "
                f"was put back: {what}"
            )
        return found

    async def forget(self, store_id: str) -> bool:
        """Remove the marker of a store that is deleted for good; whether there was one.

        ValueError if that is no UUID.
        """
        name = marker_name(store_id)
        there = await self._storage.head(name) is not None
        await self._storage.delete(name)
        return there
