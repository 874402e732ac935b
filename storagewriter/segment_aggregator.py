"""SegmentAggregator: one segment's committed bytes that are not in Tier 2 yet, and since when.

Rules:
- it knows what the operations said, not what the metadata say now: those may be ahead of it by a
  batch;
- bytes are held as *runs*, in offset order: stretches of neighbouring appends under the sequence
  number and the time of the first. Gaps between runs are bytes of merged sources, which the sources
  account for;
- so `first_sequence_number` may be lower than exact by one run, never higher: the log keeps a
  little too much, never too little.

Pure: no await, no clock, no I/O. On the commit path: `append` costs well under 1 us.
"""

from __future__ import annotations

RUN_BYTES = 64 * 1024
"""Appends join a run until it is this long: memory goes by bytes, not by operations."""


class _Run:
    __slots__ = ("end", "sequence_number", "start", "time")

    def __init__(self, start: int, end: int, sequence_number: int, time: float) -> None:
        self.start = start
        self.end = end
        self.sequence_number = sequence_number
        self.time = time


class SegmentAggregator:
    """One segment with un-flushed bytes. Offsets are bytes from the segment's beginning."""

    __slots__ = (
        "_growing",
        "_runs",
        "flushed_end",
        "forced_end",
        "in_age_queue",
        "pending_bytes",
        "segment_id",
    )

    def __init__(self, segment_id: int, flushed_end: int) -> None:
        self.segment_id = segment_id
        self.flushed_end = flushed_end
        """The segment's storage length as last seen; only grows."""
        self.forced_end = 0
        """Bytes below this are to go without waiting (seal, merge, truncation, a flush asked
        for).
        """
        self.pending_bytes = 0
        """Own bytes not in Tier 2; those of merged sources are counted with the sources."""
        self.in_age_queue = False
        # A list: an empty deque alone is 600 bytes, and 100,000 segments may be pending.
        self._runs: list[_Run] = []
        self._growing = False

    def append(self, offset: int, length: int, sequence_number: int, now: float) -> int:
        """Take a committed append; return how many of its bytes were news.

        Those already in Tier 2 are not.
        """
        runs = self._runs
        if runs:
            last = runs[-1]
            if self._growing and last.end == offset and offset - last.start < RUN_BYTES:
                # What Tier 2 has ends before a run that it has not.
                last.end = offset + length
                self.pending_bytes += length
                return length
        end = offset + length
        start = max(offset, self.flushed_end)
        if end <= start:
            return 0
        assert not runs or start >= runs[-1].end, (self, offset, length)
        runs.append(_Run(start, end, sequence_number, now))
        self._growing = True
        self.pending_bytes += end - start
        return end - start

    def advance(self, storage_length: int) -> int:
        """Tier 2 has (or no longer wants) everything below `storage_length`; return how many bytes
        that settles.
        """
        if storage_length <= self.flushed_end:
            return 0
        self.flushed_end = storage_length
        runs, settled, done = self._runs, 0, 0
        for run in runs:
            if run.end > storage_length:
                if run.start < storage_length:
                    settled += storage_length - run.start
                    run.start = storage_length
                break
            settled += run.end - run.start
            done += 1
        del runs[:done]
        self.pending_bytes -= settled
        return settled

    def close_run(self) -> None:
        """A flush begins: what comes later belongs to a later one, and counts as younger."""
        self._growing = False

    def is_due(self, flush_bytes: int, oldest: float) -> bool:
        """Whether it should go now: by size, because asked for, or committed at `oldest` or
        before.
        """
        return bool(self._runs) and (
            self.pending_bytes >= flush_bytes
            or self.forced_end > self.flushed_end
            or self._runs[0].time <= oldest
        )

    @property
    def is_forced(self) -> bool:
        """Something other than size or age wants it flushed."""
        return self.forced_end > self.flushed_end

    @property
    def first_sequence_number(self) -> int:
        """Of the oldest operation whose bytes are not in Tier 2. Only while `pending_bytes` > 0."""
        return self._runs[0].sequence_number

    @property
    def first_time(self) -> float:
        """When that operation was committed, in the time handed to `append`."""
        return self._runs[0].time

    def __repr__(self) -> str:
        return (
            f"<SegmentAggregator {self.segment_id}: {self.pending_bytes} bytes in "
            f"{len(self._runs)} runs,"
            f" flushed to {self.flushed_end}, forced to {self.forced_end}>"
        )
