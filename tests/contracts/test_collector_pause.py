"""The pause of the garbage collector: as it was behind the last block, in a forked child too."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from durablelog.checkpoint_codec import decode_checkpoint
from durablelog.operation_codec import OperationFormatError
from segmentstore.contracts.collector_pause import collector_paused


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
