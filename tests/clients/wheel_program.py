"""Steps of the wheel `pravega`, each in a process of its own: `wheel_program URI SCOPE STEP`.

The wheel has threads of its own, and some of its calls have no time-out: the test that starts the
process ends it after a time. The last line of the output is what the step found, in JSON.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from tests.clients.keyed_events import event_of

pravega: Final = importlib.import_module("pravega_client")
SCOPE: Final = sys.argv[2]
STREAM: Final = "stream"
IN_FLIGHT: Final = 1_000
LARGE: Final = 9 << 20
BYTES: Final = 3_000_000
WRITTEN_AT_ONCE: Final = 500_000

Step = Callable[[Any], Any]
STEPS: Final[dict[str, Step]] = {}


def step(function: Step) -> Step:
    STEPS[function.__name__] = function
    return function


def make_stream(manager: Any, segments: int) -> None:
    manager.create_scope(SCOPE)
    manager.create_stream(SCOPE, STREAM, segments)


def write(manager: Any, numbers: range) -> None:
    writer = manager.create_writer(SCOPE, STREAM, max_inflight_events=IN_FLIGHT)
    for number in numbers:
        key, event = event_of(number)
        writer.write_event(event, routing_key=key)
    writer.flush()


class Reader:
    """One reader of a group."""

    def __init__(self, group: Any, name: str) -> None:
        self._reader = group.create_reader(name)
        self.found: list[bytes] = []

    async def read_slice(self) -> int:
        """What there is of one segment; nothing if nothing comes for a second. Gives the count."""
        taken = await self._reader.get_segment_slice_async()
        events = [event.data() for event in taken]
        self._reader.release_segment(taken)
        self.found += events
        return len(events)

    async def read(self, count: int) -> None:
        """Until it has so many."""
        while len(self.found) < count:
            await self.read_slice()

    def leave(self) -> None:
        """Its segments are for the others."""
        self._reader.reader_offline()

    @property
    def texts(self) -> list[str]:
        return [event.decode() for event in self.found]


def read_all(manager: Any, count: int, stream: str = STREAM) -> Reader:
    """The events of a stream, by a new group of one reader; and what comes behind `count`."""
    reader = Reader(manager.create_reader_group(f"all-of-{stream}", SCOPE, stream), "one")

    async def main() -> None:
        await reader.read(count)
        await reader.read_slice()

    asyncio.run(main())
    return reader


@step
def make_ordered(manager: Any) -> None:
    make_stream(manager, 4)


@step
def write_ordered(manager: Any) -> int:
    """A hundred in flight. Reports what it has handed over."""
    count = 4_000
    writer = manager.create_writer(SCOPE, STREAM, max_inflight_events=100)
    for number in range(count):
        key, event = event_of(number)
        writer.write_event(event, routing_key=key)
        if number % 20 == 0:
            print(number, flush=True)
            # So that the writer is not done before the server has been killed.
            time.sleep(0.005)
    writer.flush()
    return count


@step
def read_ordered(manager: Any) -> list[str]:
    return read_all(manager, 4_000).texts


@step
def hand_over(manager: Any) -> Any:
    """The first reader of a group takes all segments; when it leaves the second one goes on."""
    count = 5_000
    make_stream(manager, 4)
    write(manager, range(count))
    group = manager.create_reader_group("group", SCOPE, STREAM)

    async def main() -> tuple[Reader, Reader]:
        first = Reader(group, "first")
        await first.read(1_000)
        first.leave()
        second = Reader(group, "second")
        await second.read(count - len(first.found))
        await second.read_slice()
        return first, second

    return [reader.texts for reader in asyncio.run(main())]


@step
def make_shared(manager: Any) -> None:
    make_stream(manager, 4)
    manager.create_reader_group("shared", SCOPE, STREAM)


@step
def write_on(manager: Any) -> int:
    """A few events again and again, until the standard input ends."""
    written = 0
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        write(manager, range(written, written + 50))
        written += 50
    return written


@step
def share(manager: Any) -> None:
    """A reader among others. It reports what it finds, and never ends."""
    # Each in a process of its own: the wheel waits for Python's lock on the threads that its
    # blocking calls need, so that one reader's call can stop the other for good.
    name = f"reader-{os.getpid()}"
    reader = Reader(manager.create_reader_group("shared", SCOPE, STREAM), name)

    async def main() -> None:
        while True:
            if await reader.read_slice():
                print(json.dumps(reader.texts), flush=True)
                reader.found.clear()

    asyncio.run(main())


@step
def large_event(manager: Any) -> Any:
    """One that the client cuts, between two small ones of its key."""
    make_stream(manager, 1)
    writer = manager.create_writer(SCOPE, STREAM, max_inflight_events=10)
    events = [b"before", random.Random(1).randbytes(LARGE), b"after"]
    for event in events:
        writer.write_event_bytes(event, routing_key="key")
        writer.flush()
    found = read_all(manager, len(events)).found
    return [[hashlib.sha256(event).hexdigest() for event in each] for each in (events, found)]


@step
def transactions(manager: Any) -> Any:
    make_stream(manager, 3)
    writer = manager.create_transaction_writer(SCOPE, STREAM, 1)
    committed, aborted, never_ended = (writer.begin_txn() for _ in range(3))
    for number in range(30):
        for name, transaction in (("committed", committed), ("aborted", aborted)):
            transaction.write_event(f"{name} {number}", routing_key=f"key{number}")
    never_ended.write_event("left open", routing_key="key")
    opened = [each.is_open() for each in (committed, aborted, never_ended)]
    aborted.abort()
    committed.commit()
    failed = None
    try:
        writer.get_txn(aborted.get_txn_id()).commit()
    except pravega.TxnFailedException as error:
        failed = type(error).__name__
    return {
        "open before": opened,
        "open after": [each.is_open() for each in (committed, aborted, never_ended)],
        "commit after abort": failed,
        "read": read_all(manager, 30).texts,
    }


@step
def leave_transaction(manager: Any) -> None:
    """Its writer ends without a word. The lease of the wheel's transactions is 90 s."""
    make_stream(manager, 2)
    writer = manager.create_transaction_writer(SCOPE, STREAM, 1)
    transaction = writer.begin_txn()
    transaction.write_event("left", routing_key="key")
    print(transaction.get_txn_id(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


@step
def outlive_transaction(manager: Any) -> Any:
    """Wait until the transaction of the standard input is not open any more."""
    writer = manager.create_transaction_writer(SCOPE, STREAM, 2)
    transaction = writer.get_txn(int(sys.stdin.readline()))
    waited = 0
    while transaction.is_open():
        time.sleep(1)
        waited += 1
    failed = refusal(transaction.commit)
    write(manager, range(10))
    return {"waited": waited, "commit": failed, "read": read_all(manager, 10).texts}


@step
def byte_stream(manager: Any) -> Any:
    make_stream(manager, 1)
    stream = manager.create_byte_stream(SCOPE, STREAM)
    data = random.Random(2).randbytes(BYTES)
    written = 0
    while written < len(data):
        written += stream.write(data[written : written + WRITTEN_AT_ONCE])
    stream.flush()
    found = read_bytes(stream, 0, len(data))
    stream.truncate(BYTES // 2)
    return {
        "equal": found == data,
        "tail": stream.current_tail_offset(),
        "head": stream.current_head_offset(),
        "behind the head": read_bytes(stream, BYTES // 2, BYTES // 2) == data[BYTES // 2 :],
    }


def read_bytes(stream: Any, offset: int, count: int) -> bytes:
    stream.seek(offset, 0)
    found = bytearray()
    while len(found) < count:
        buffer = bytearray(1 << 20)
        taken = stream.readinto(buffer)
        found += buffer[:taken]
    return bytes(found)


@step
def seal_and_delete(manager: Any) -> Any:
    make_stream(manager, 2)
    again = [manager.create_scope(SCOPE), manager.create_stream(SCOPE, STREAM, 2)]
    write(manager, range(100))
    refused = refusal(manager.delete_stream, SCOPE, STREAM)
    fixed = pravega.StreamScalingPolicy.fixed_scaling_policy(1)
    kept = pravega.StreamRetentionPolicy.none()
    manager.create_stream_with_policy(SCOPE, "tagged", fixed, kept, ["red"])
    sealed = manager.seal_stream(SCOPE, STREAM)
    found = read_all(manager, 100).texts
    listed = sorted(manager.list_stream(SCOPE))
    deleted = manager.delete_stream(SCOPE, STREAM)
    return {
        "created again": again,
        "delete of an open stream": refused,
        "tags": manager.get_stream_tags(SCOPE, "tagged"),
        "sealed": sealed,
        "read": found,
        "listed": listed,
        "deleted": deleted,
        "deleted again": manager.delete_stream(SCOPE, STREAM),
    }


@step
def refused_calls(manager: Any) -> Any:
    """Of a user that may only read."""
    return {
        "scope": refusal(manager.create_scope, "another"),
        "stream": refusal(manager.create_stream, SCOPE, "another", 1),
        "seal": refusal(manager.seal_stream, SCOPE, STREAM),
        "write": refusal(write, manager, range(1)),
        "listed": sorted(manager.list_stream(SCOPE)),
    }


def refusal(call: Callable[..., Any], *arguments: Any) -> str | None:
    """How the wheel names what it was refused; None if it was not."""
    try:
        call(*arguments)
    except (ValueError, pravega.TxnFailedException) as error:
        return str(error)
    return None


def main() -> None:
    uri, _, name = sys.argv[1:]
    secured = uri.startswith("tls:")
    manager = pravega.StreamManager(uri, secured, secured)
    print(json.dumps(STEPS[name](manager)), flush=True)
    # The wheel's threads are not waited for: one of a reader waits for what comes.
    os._exit(0)


if __name__ == "__main__":
    main()
