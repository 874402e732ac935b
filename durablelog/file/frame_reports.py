"""The frames of a stopped log, good and bad, for tools that read and never write.

Blocking, read-only. The caller holds the lock (`lock_log` in log_state.py) while it checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from durablelog.durable_data_log import LogAddress
from durablelog.file.frame_pieces import PlacedFrame
from durablelog.file.log_layout import make_address
from durablelog.file.log_scanner import LogWalk, ScanStep
from durablelog.file.log_state import read_state
from segmentstore.contracts.disk import Disk

FrameStatus = Literal["ok", "torn", "corrupt", "stale"]


class FrameReport(NamedTuple):
    """One place in the log.

    For "torn" and "corrupt", `sequence` is the frame that should lie there.
    """

    address: LogAddress
    path: str
    position: int
    sequence: int
    epoch: int
    payload_length: int
    durable_through: int
    status: FrameStatus
    """"ok"; "torn": an incomplete tail that was never acknowledged; "corrupt": durable bytes are
    missing. "stale": whole, but not part of the log, because it was written by a fenced owner or
    copied on.
    """
    payload: memoryview
    """Stays valid while it is referenced."""
    detail: str
    """What is wrong, for "torn" and "corrupt"."""


def read_only_frames(
    directory: str, disk: Disk, *, start: LogAddress | None = None
) -> Iterator[FrameReport]:
    """Every frame from the truncation point, or from `start` if that is higher, to the end or the
    first corruption.

    Raises DataCorruptionError (the state record), ConfigError (a newer format), OSError.
    """
    state = read_state(directory, disk)
    if state is None:
        return
    for step in LogWalk(directory, disk, state).steps():
        for report in _reports(step):
            if start is None or report.address >= start or report.status == "corrupt":
                yield report


def _reports(step: ScanStep) -> Iterator[FrameReport]:
    for index, frame in enumerate(step.frames):
        yield _whole(step, frame, "ok" if index < step.counted else "stale")
    if step.corrupt is not None:
        yield _bad(step, "corrupt", step.corrupt.detail)
    elif step.torn is not None:
        yield _bad(step, "torn", step.torn)


def _whole(step: ScanStep, frame: PlacedFrame, status: FrameStatus) -> FrameReport:
    header = frame.header
    return FrameReport(
        make_address(step.number, frame.position),
        step.path,
        frame.position,
        header.sequence,
        header.epoch,
        header.payload_length,
        header.durable_through,
        status,
        frame.payload,
        "",
    )


def _bad(step: ScanStep, status: FrameStatus, detail: str) -> FrameReport:
    address = make_address(step.number, step.position)
    return FrameReport(
        address, step.path, step.position, step.expected, 0, 0, 0, status, memoryview(b""), detail
    )
