"""An object storage that gives a wrong bit where a test wants one."""

from __future__ import annotations

import random

from tier2.memory_object_storage import MemoryObjectStorage


class FlippingStorage(MemoryObjectStorage):
    """From the answer `first` on, `count` of its answers of bytes have a wrong bit somewhere."""

    first = count = answers = 0
    place = random.Random(0)

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        data = bytearray(await super().get_range(name, offset, length))
        if self.first <= self.answers < self.first + self.count and data:
            data[self.place.randrange(len(data))] ^= 1 << self.place.randrange(8)
        self.answers += 1
        return bytes(data)

    def give_wrong(self, count: int, place: random.Random = place, first: int = 0) -> None:
        """Begin to count answers anew."""
        self.count, self.place, self.first, self.answers = count, place, first, 0
