"""Health notes: since when something fails and why, until it has passed."""

from __future__ import annotations

import asyncio

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.health import HealthNote, HealthNotes
from tests.support.loop_clock import LoopClock
from tier2.object_storage import StorageUnavailableError


def test_a_note_keeps_the_time_of_the_first_failure_and_the_last_reason() -> None:
    async def main() -> None:
        note = HealthNote("deletion", LoopClock(0))
        assert note.describe() is None
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(60 - begun)
        note.failed(StorageUnavailableError("x", "no answer"))
        await asyncio.sleep(3600)
        note.failed(KeyError("y"))
        said = "deletion failing since 1970-01-01T00:01:00+00:00: KeyError: 'y'"
        assert (note.describe(), note.failures) == (said, 2)
        note.succeeded()
        assert note.describe() is None
        await asyncio.sleep(60)
        note.failed(TierUnavailableError("tier2", "again"))
        assert "since 1970-01-01T01:02:00" in (note.describe() or "")
        assert note.failures == 3

    run_virtual(main())


def test_the_text_of_an_error_of_the_storage_is_the_reason_as_it_is() -> None:
    async def main() -> None:
        note = HealthNote("tier2", LoopClock(0))
        note.failed(StorageUnavailableError("x", "no answer"))
        assert (note.describe() or "").endswith(": x: no answer")

    run_virtual(main())


def test_a_failure_of_a_whole_service_passes_when_the_service_answers() -> None:
    async def main() -> None:
        note, answered = HealthNote("tier2", LoopClock(0)), False
        error = StorageUnavailableError("x", "no answer")
        error.outlived = lambda: answered
        note.failed(error)
        assert note.describe() is not None
        answered = True
        assert note.describe() is None
        await asyncio.sleep(3600)
        note.failed(StorageUnavailableError("x", "no answer"))
        assert "T01:00:00" in (note.describe() or ""), "a new row"

    run_virtual(main())


def test_notes_are_by_topic_in_the_order_they_came() -> None:
    notes = HealthNotes()
    assert notes.describe() is None
    notes.set("a", "no bookies")
    notes.set("b", "no ZooKeeper")
    notes.set("a", "one bookie")
    assert notes.describe() == "one bookie; no ZooKeeper"
    notes.clear("a")
    notes.clear("never set")
    assert notes.describe() == "no ZooKeeper"
