"""Clients of the wire protocol in the cycles of a cluster: over cut links, and what they notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import segmentstore
from recovery.harness.clusters.client_load import LinkedLoop
from recovery.harness.clusters.sent_events import FollowedSegment, Sender, violations
from recovery.harness.clusters.wire_link import WireLink
from recovery.harness.clusters.wire_load import WireClients, WireWriter, WrongAnswerError
from recovery.harness.services.link_proxy import LinkProxy
from recovery.harness.services.server import HOST, free_port
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import (
    NOT_SET,
    AppendBlockEnd,
    AppendSetup,
    Command,
    DataAppended,
    Hello,
    KeepAlive,
    NoSuchSegment,
    SetupAppend,
)
from segmentstore.wire.formats import REQUESTS
from segmentstore.wire.frame_decoder import FrameDecoder

EVENTS = 30
PAUSE_S = 0.002
UNREAD = encode(KeepAlive()) * 100_000
"""More than a client reads at a time: its end resets the connection."""


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nothing reports it
        await asyncio.sleep(PAUSE_S)


async def sent(clients: WireClients, count: int) -> None:
    """Each sender was acknowledged so many events, or has failed."""
    await until(
        lambda: all(each.errors or len(each.acknowledged) >= count for each in clients.senders)
    )


def ended(followed: FollowedSegment, length: int) -> bool:
    return followed.length >= length or followed.error is not None


@pytest.mark.parametrize("silent", [False, True])
def test_each_event_is_there_once_and_read_over_cuts_of_the_link(
    tmp_path: Path, silent: bool
) -> None:
    detours: dict[int, int] = {}
    port, controller = free_port(), free_port()

    async def main() -> None:
        opening = segmentstore.open(tmp_path, wire_port=port, controller_port=controller)
        async with opening as store, LinkProxy(port) as link:
            detours[port] = link.port
            clients = WireClients([f"{HOST}:{controller}"], 7, PAUSE_S)
            try:
                await clients.begin()
                for round_number in range(3):
                    await sent(clients, (round_number + 1) * EVENTS)
                    await link.cut(silent=silent)
                    await asyncio.sleep(PAUSE_S)
                    link.heal()
                await sent(clients, 4 * EVENTS)
                await clients.end()
                for sender, followed in zip(clients.senders, clients.followed, strict=True):
                    length = (await store.get_info(followed.name)).length
                    content = await store.read(followed.name, 0, length)
                    assert violations(followed.name, content, [sender]) == []
                    assert not sender.errors
                    assert any(offset is not None for offset in sender.acknowledged.values())
                    await until(partial(ended, followed, length))
                    assert followed.agrees(content), followed.error
            finally:
                await clients.close()

    with asyncio.Runner(loop_factory=lambda: LinkedLoop(detours)) as runner:
        runner.run(main())


def set_up(last: int) -> Callable[[SetupAppend], Command]:
    return lambda request: AppendSetup(1, request.segment, request.writer_id, last)


def appended(number: int, before: int) -> Callable[[AppendBlockEnd], Command]:
    return lambda request: DataAppended(request.writer_id, number, before, 1, 100)


@pytest.mark.parametrize(
    ("answer_set_up", "answer_append", "text"),
    [
        (set_up(3), appended(0, 3), "3 is the last event, of 0"),
        (set_up(NOT_SET), appended(0, 5), "was acknowledged before"),
        (set_up(NOT_SET), appended(9, NOT_SET), "events were sent"),
        (lambda request: NoSuchSegment(1, request.segment), appended(0, NOT_SET), "NoSuchSegment"),
    ],
)
def test_an_answer_that_the_protocol_does_not_allow_is_noticed(
    answer_set_up: Callable[[SetupAppend], Command],
    answer_append: Callable[[AppendBlockEnd], Command],
    text: str,
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder(REQUESTS)
        try:
            while data := await reader.read(4096):
                for request in decoder.feed(data):
                    if isinstance(request, Hello):
                        writer.write(encode(request))
                    elif isinstance(request, SetupAppend):
                        writer.write(encode(answer_set_up(request)))
                    elif isinstance(request, AppendBlockEnd):
                        writer.write(encode(answer_append(request)) + UNREAD)
        except ConnectionError:
            pass  # the client ended before it had read all answers
        finally:
            writer.close()
            served.set()

    served = asyncio.Event()

    async def main() -> None:
        async with await asyncio.start_server(serve, HOST, 0) as server:
            port = server.sockets[0].getsockname()[1]
            link = await WireLink.open(HOST, port)
            writer = WireWriter(Sender(1, "s", exactly_once=True), PAUSE_S, lambda: False)
            try:
                with pytest.raises(WrongAnswerError, match=text):
                    await writer.converse(link)
            finally:
                link.close()
            await served.wait()

    asyncio.run(main())
