"""A link that is cut: silently, so that bytes arrive late, or with the ends of all connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress

from recovery.harness.services.link_proxy import LinkProxy
from recovery.harness.services.server import HOST

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def run(body: Callable[[LinkProxy], Awaitable[None]]) -> None:
    """Run a test on a link to a server that answers each line with the line."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(line)

    async def main() -> None:
        server = await asyncio.start_server(echo, HOST, 0)
        async with server, LinkProxy(server.sockets[0].getsockname()[1]) as link:
            await body(link)

    asyncio.run(main())


@asynccontextmanager
async def connected(link: LinkProxy) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(HOST, link.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def ask(streams: Streams, line: bytes) -> bytes:
    reader, writer = streams
    writer.write(line)
    return await reader.readline()


def test_a_silent_cut_keeps_bytes_back_and_ends_no_connection() -> None:
    async def body(link: LinkProxy) -> None:
        async with connected(link) as there:
            assert await ask(there, b"one\n") == b"one\n"
            await link.cut(silent=True)
            async with connected(link) as newer:
                late = asyncio.ensure_future(ask(there, b"two\n"))
                new = asyncio.ensure_future(ask(newer, b"new\n"))
                done, _ = await asyncio.wait((late, new), timeout=0.05)
                assert not done
                link.heal()
                assert await late == b"two\n"
                assert await new == b"new\n"
                assert await ask(there, b"three\n") == b"three\n"

    run(body)


def test_another_cut_ends_all_connections_and_each_new_one() -> None:
    async def body(link: LinkProxy) -> None:
        async with connected(link) as there:
            assert await ask(there, b"one\n") == b"one\n"
            await link.cut(silent=False)
            assert await answer_of(there) == b""
        async with connected(link) as newer:
            assert await answer_of(newer) == b""
        link.heal()
        async with connected(link) as again:
            assert await ask(again, b"three\n") == b"three\n"

    run(body)


async def answer_of(streams: Streams) -> bytes:
    """Nothing, from a connection that has ended in either way."""
    try:
        return await ask(streams, b"two\n")
    except ConnectionError:
        return b""
