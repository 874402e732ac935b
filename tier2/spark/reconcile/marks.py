"""Names of objects by their places in a snapshot: a bit for each row of a shard, instead of a name.

Tasks hand on which of a snapshot's objects were not there by this, through a driver that has no
room for names: 100 M objects are 12.5 MB. Rules of this file:

- a snapshot's tables never change, and its rows have an order (`shard_rows`): a place means the
  same to all;
- an object whose name is not in the snapshot has no mark: the marking code makes sure that all have
  one.

Beside them the names of open proposals, by their hash: 8 bytes each.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tier2.catalog.catalog_manifest import Manifest
from tier2.object_names import parse_object_name
from tier2.object_storage import ObjectStorage
from tier2.spark.common.arrow_rows import pack, unpack
from tier2.spark.reconcile.shard_rows import shard_rows

_MARKS: Final[list[pa.Field[Any]]] = [pa.field("shard", pa.int32()), pa.field("bits", pa.binary())]
MARKS: Final = pa.schema(_MARKS)
"""Of a shard a bit for each row, most significant first, compressed."""
HASHES: Final = pa.schema(_MARKS)
"""Of a shard the hashes of names, 8 bytes each, ascending."""


async def marks_of(
    storage: ObjectStorage, manifests: Mapping[int, Manifest], names: pa.Array[Any]
) -> dict[int, bytes]:
    """Marks of these names, by shard.

    Reads the names of their shards, and of no others; holds those of a few shards.
    """
    prefixes: list[Any] = pc.unique(pc.utf8_slice_codeunits(names, 0, 2)).to_pylist()
    shards = sorted(int(prefix, 16) for prefix in prefixes)
    rows = await shard_rows(storage, manifests, shards, ("name",))
    return {
        shard: _bits(pc.is_in((await rows.of(shard))["name"].cast(pa.string()), value_set=names))
        for shard in shards
    }


async def names_of(
    storage: ObjectStorage, manifests: Mapping[int, Manifest], shard: int, marks: Iterable[bytes]
) -> pa.Array[Any]:
    """The names of a shard that any of these has a mark of."""
    every = [np.frombuffer(zlib.decompress(each), np.uint8) for each in marks]
    if not every:
        return pa.array([], pa.string())
    rows = await shard_rows(storage, manifests, [shard], ("name",))
    names = (await rows.of(shard))["name"].cast(pa.string())
    bits = np.unpackbits(np.bitwise_or.reduce(every), count=len(names)).astype(bool)
    return pa.concat_arrays([pa.array([], pa.string()), *names.filter(pa.array(bits)).chunks])


def _bits(wanted: Any) -> bytes:
    found: NDArray[np.bool_] = wanted.to_numpy()
    return zlib.compress(np.packbits(found).tobytes(), 1)


def pack_shards(shards: Iterable[tuple[int, bytes]]) -> bytes:
    """MARKS, or HASHES, as bytes for a row."""
    return pack(
        pa.Table.from_pylist(
            [{"shard": shard, "bits": bits} for shard, bits in shards], schema=MARKS
        )
    )


def unpack_shards(data: bytes | None) -> Iterator[tuple[int, bytes]]:
    """What `pack_shards` made bytes of; nothing of None."""
    for row in unpack(data).to_pylist() if data is not None else ():
        yield row["shard"], row["bits"]


# --- names of open proposals ----------------------------------------------------------------------


class HashedNames(Collection[str]):
    """Names by their 64-bit hash.

    One that is not among them may seem to be, once in 2^64 / their number.
    """

    def __init__(self, hashes: Iterable[bytes]) -> None:
        held = [np.frombuffer(each, np.uint64) for each in hashes]
        self._hashes = np.unique(np.concatenate([np.empty(0, np.uint64), *held]))

    def __contains__(self, name: object) -> bool:
        value = _hash(str(name))
        place = int(np.searchsorted(self._hashes, value))
        return place < len(self._hashes) and bool(self._hashes[place] == value)

    def __iter__(self) -> Iterator[str]:
        raise TypeError("their names are not known")

    def __len__(self) -> int:
        return len(self._hashes)


def hashes_of(names: Iterable[str]) -> dict[int, bytes]:
    """The hashes of names by shard; what is no object's name is in none."""
    found: dict[int, list[np.uint64]] = {}
    for name in names:
        if parse_object_name(name) is not None:
            found.setdefault(int(name[:2], 16), []).append(_hash(name))
    return {shard: np.unique(np.array(each, np.uint64)).tobytes() for shard, each in found.items()}


def hashed_within(hashes: Mapping[int, bytes], shards: range) -> bytes | None:
    """HASHES of some shards as bytes for a row; None if there are none."""
    some = [(shard, hashes[shard]) for shard in shards if shard in hashes]
    return pack_shards(some) if some else None


def _hash(name: str) -> np.uint64:
    return np.uint64(mmh3.hash64(name.encode(), signed=False)[0])
