"""Exactly-once writers: each has a number that outlives process runs, and sends again whatever it
is in doubt about.
"""

from __future__ import annotations

from recovery.harness.recorder import RecordedWriter
from recovery.harness.workloads.bench import ClientBench, Window
from recovery.harness.workloads.stage import event_length, first_event

_EVERYTHING = 40
"""Sending everything again stops short at so many events."""


async def write_events(bench: ClientBench) -> None:
    """Opens one session after the other; the next may begin while events of the last are on their
    way.
    """
    names = bench.segments["events"]
    name = names[bench.place % len(names)]
    number = bench.stage.writer(bench.place, bench.process_run)
    while bench.goes_on():
        session = await bench.store.writer(name, number)
        await _write_session(bench, session, number)
        if bench.rng(0.5):
            await bench.pause(0.05)


async def _write_session(bench: ClientBench, session: RecordedWriter, number: int) -> None:
    event = _first_to_send(bench, session.last_event_number)
    window = Window(bench, bench.random.choice((1, 4, 16, 64)))
    for _ in range(bench.random.randrange(3, 40)):
        event = first_event(event)
        future = session.append(event, event_length(number, event))
        event += 1
        if future.done():
            # A session ends with its first refusal.
            await window.admit(future)
            await window.drain()
            break
        if bench.rng(0.005):
            future.cancel()
        else:
            await window.admit(future)
        if not bench.goes_on():
            break
    if bench.rng(0.7) or not bench.goes_on():
        await window.drain()


def _first_to_send(bench: ClientBench, last: int) -> int:
    """Mostly the next one, often some again that the segment may have, sometimes (almost)
    everything.
    """
    kind = bench.random.random()
    if kind < 0.5:
        return last + 1
    if kind < 0.85:
        return last + 1 - bench.random.randrange(8)
    return last + 1 - _EVERYTHING
