"""When a metadata checkpoint is due. Pure."""

from __future__ import annotations

from typing import Final

FRAMES_MAX: Final = 50_000
"""Frames from one checkpoint to the next. Replay takes 40 us of CPU for a frame, however little is
in it: with one append in each, 200,000 operations took eight seconds.
"""


class CheckpointPolicy:
    """Counts what the log has taken since the last checkpoint.

    Due after `operations_max` operations, `bytes_max` bytes or FRAMES_MAX frames. But the log
    must have grown by `_SHARE` times the last checkpoint's own size before: checkpoints of a
    container with much metadata must not become most of what is written.
    """

    _SHARE = 4

    def __init__(self, operations_max: int, bytes_max: int) -> None:
        self._operations_max = operations_max
        self._bytes_max = bytes_max
        self._operations = 0
        self._bytes = 0
        self._frames = 0
        self._last_checkpoint_bytes = 0

    def added(self, frames: int, operations: int, length: int) -> None:
        """Note frames, the operations in them and their bytes behind the last checkpoint."""
        self._frames += frames
        self._operations += operations
        self._bytes += length

    def checkpointed(self, length: int) -> None:
        """Note a checkpoint of `length` bytes."""
        self._operations = self._bytes = self._frames = 0
        self._last_checkpoint_bytes = length

    @property
    def empty(self) -> bool:
        """True if the log has taken nothing since the last checkpoint."""
        return not self._operations

    @property
    def due(self) -> bool:
        """True if a checkpoint should be written now."""
        if (
            self._operations < self._operations_max
            and self._bytes < self._bytes_max
            and self._frames < FRAMES_MAX
        ):
            return False
        return self._bytes >= self._SHARE * self._last_checkpoint_bytes
