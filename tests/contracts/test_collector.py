"""The garbage collector: its pause, which ends as it began, in a forked child too; and one that is
tuned, in a process of its own.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import pytest

from durablelog.checkpoint_codec import decode_checkpoint
from durablelog.operation_codec import OperationFormatError
from segmentstore.contracts import collector
from segmentstore.contracts.collector import collector_paused


def test_it_is_off_within_and_on_behind_the_last_of_several() -> None:
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_errors_end_it() -> None:
    with pytest.raises(OperationFormatError):
        decode_checkpoint(b"\0\0")
    assert gc.isenabled()


def test_a_program_that_has_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_blocks_of_several_threads_may_overlap() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with collector_paused():
        thread.start()
        entered.wait()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_a_forked_child_has_it_on() -> None:
    read, write = os.pipe()
    with collector_paused():
        child = os.fork()
        if not child:
            os.write(write, b"%d" % gc.isenabled())
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    os.close(read)
    os.close(write)
    assert gc.isenabled()


_PRELUDE = """
import gc, sys, weakref
import segmentstore
from segmentstore.contracts import collector

class Node:
    pass

def cycle():
    node = Node()
    node.itself = node
    return node, weakref.ref(node)

def churn(count):
    "Objects that stay."
    return [[] for _ in range(count)]
"""
_MANY = 4 * collector.YOUNG_MAX * collector.COLLECTIONS_MAX


def run_tuned(script: str) -> None:
    """Run a script in a process of its own: the collector is the process's."""
    done = subprocess.run(
        [sys.executable, "-c", _PRELUDE + script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_tuned_collector_passes_over_no_old_objects() -> None:
    run_tuned(f"""
segmentstore.tune_gc()
segmentstore.tune_gc()
assert len([each for each in gc.callbacks if "_Freezing" in repr(each)]) == 1
full = gc.get_stats()[2]["collections"]
kept = churn({_MANY})
assert gc.get_freeze_count() > {_MANY} // 2
assert gc.get_stats()[2]["collections"] == full
young, reference = cycle()
del young
gc.collect(1)
assert reference() is None, "what is young is freed as ever"
""")


def test_a_tuned_collector_frees_old_cycles_in_the_end() -> None:
    run_tuned(f"""
collector.BLOCKS_MIN = sys.getallocatedblocks() + {_MANY}
collector._COUNTED_EVERY = 2
segmentstore.tune_gc()
old, reference = cycle()
gc.collect(1)
del old
gc.collect(1)
assert reference() is not None, "it was frozen"
full = gc.get_stats()[2]["collections"]
kept = churn(3 * {_MANY})
assert reference() is None
assert gc.get_stats()[2]["collections"] > full
assert gc.get_threshold()[2] == collector._NEVER
assert gc.get_freeze_count() > {_MANY}, "what stays was frozen again"
""")


def test_a_tuned_collector_passes_over_no_old_objects_to_count_them() -> None:
    run_tuned(f"""
counts = []
count = gc.get_freeze_count
gc.get_freeze_count = lambda: counts.append(0) or count()
collector._COUNTED_EVERY = 1
collector.BLOCKS_MIN = sys.getallocatedblocks() + {_MANY}
segmentstore.tune_gc()
full = gc.get_stats()[2]["collections"]
kept = churn(3 * {_MANY})
assert gc.get_stats()[2]["collections"] > full
assert counts == []
""")


def test_without_its_own_allocator_python_counts_the_old_objects() -> None:
    run_tuned(f"""
sys.getallocatedblocks = lambda: 0
collector.BLOCKS_MIN = {_MANY}
collector._COUNTED_EVERY = 2
segmentstore.tune_gc()
full = gc.get_stats()[2]["collections"]
kept = churn(3 * {_MANY})
assert gc.get_stats()[2]["collections"] > full
""")


def test_all_that_is_old_can_be_collected() -> None:
    run_tuned("""
segmentstore.tune_gc()
old, reference = cycle()
gc.collect(1)
del old
collector.collect_all()
assert reference() is None
""")


def test_a_disabled_collector_stays_as_it_is() -> None:
    run_tuned("""
gc.disable()
before = gc.get_threshold()
segmentstore.tune_gc()
assert (gc.get_threshold(), gc.callbacks, gc.isenabled()) == (before, [], False)
""")


def test_what_is_loaded_in_a_pause_is_frozen_behind_it() -> None:
    run_tuned(f"""
segmentstore.tune_gc()
with collector.collector_paused():
    # From Python 3.12 on a collection that was due before it comes with the next call.
    collections = [each["collections"] for each in gc.get_stats()]
    kept = churn({_MANY})
assert gc.get_freeze_count() > {_MANY}
assert [each["collections"] for each in gc.get_stats()] == collections
""")
