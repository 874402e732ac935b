"""A group: what one task makes one object of, as it travels to the task; and what comes back.

Rules of this file:

- a group says everything itself: a task reads neither the catalog nor anything the driver holds;
- its runs are in the order in which they are to lie in the new object, each within one segment;
- what comes back is plain values: nothing of an attempt outlives it but its row.

Pure: records and bytes.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any, Final, Literal

from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from tier2.copy_plan import Run

GROUP_ID_DIGITS: Final = 16

Outcome = Literal["proposed", "failed"]
COPY: Final = "copy"
REWRITE: Final = "rewrite"


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring chunks of segments of one container that become one object."""

    container_id: int
    epoch: int
    """What the new object is named by: of the owner whose metadata the plan was made from."""
    group_id: str
    runs: tuple[Run, ...]
    names: dict[int, str]
    """What the segments of the runs are called."""
    objects: dict[str, ObjectRecord]
    """Those that the chunks lie in."""
    store_id: str
    """Whose all this is: the new object carries the store's tag."""

    @property
    def payload_bytes(self) -> int:
        """Of segments, in all chunks."""
        return sum(chunk.length for run in self.runs for chunk in run.chunks)

    @property
    def chunk_count(self) -> int:
        """Chunks there are now."""
        return sum(len(run.chunks) for run in self.runs)

    def encode(self) -> bytes:
        """Compressed JSON: some 15 bytes a chunk, names of objects once each."""
        number = {name: index for index, name in enumerate(self.objects)}
        text = json.dumps(
            {
                "container": self.container_id,
                "epoch": self.epoch,
                "store": self.store_id,
                "id": self.group_id,
                "names": list(self.names.items()),
                "objects": [list(record) for record in self.objects.values()],
                "runs": [
                    [
                        run.segment_id,
                        [
                            [start, length, number[name], place, block_segment, block_start]
                            for start, length, name, place, block_segment, block_start in run.chunks
                        ],
                    ]
                    for run in self.runs
                ],
            },
            separators=(",", ":"),
        )
        return zlib.compress(text.encode(), level=1)

    @classmethod
    def decode(cls, data: bytes) -> Group:
        """The group that `encode` made these bytes of."""
        fields: dict[str, Any] = json.loads(zlib.decompress(data))
        records = [ObjectRecord(*each) for each in fields["objects"]]
        runs = tuple(
            Run(
                segment_id,
                tuple(
                    ChunkRecord(
                        start, length, records[index].name, place, block_segment, block_start
                    )
                    for start, length, index, place, block_segment, block_start in chunks
                ),
            )
            for segment_id, chunks in fields["runs"]
        )
        return cls(
            container_id=fields["container"],
            epoch=fields["epoch"],
            group_id=fields["id"],
            runs=runs,
            names=dict(fields["names"]),
            objects={record.name: record for record in records},
            store_id=fields["store"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What one attempt at a group came to."""

    container_id: int
    group_id: str
    outcome: Outcome
    reason: str = ""
    """Of a failure: what is wrong, with the names of object and place."""
    missing: str = ""
    """Of a failure: the source that was not there.

    Whether it is lost, or was replaced, the catalog of now says.
    """
    first: bool = True
    """Whether this attempt's proposal is the one; another attempt's is, otherwise."""
    method: str = ""
    """`copy`, `rewrite`, or nothing: there was a proposal already, or it failed before that was
    known.
    """
    object_name: str = ""
    """The object this attempt made, if it made one. Garbage, unless it is `first`."""
    object_bytes: int = 0
    chunks_after: int = 0
    requests: int = 0
    """Sent to the object storage."""
    bytes_received: int = 0
    bytes_sent: int = 0
    bytes_copied: int = 0
    """By the store itself."""
    seconds: float = 0.0
