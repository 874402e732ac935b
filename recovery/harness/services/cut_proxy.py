"""CutProxy: stands between ZooKeeper and its clients, loses single replies, and ends sessions
behind their owners' backs.

It understands only the necessary part of ZooKeeper's protocol: frames, the kind and path of a
request, the session of a connection. Its jute records are big-endian, with a length before
everything of no fixed size. Rules of this file:

- a request whose reply is lost was carried out: the connection is cut only when the reply had come.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import Final

from recovery.harness.services.relay import Relay

_HOST: Final = "127.0.0.1"
_SET_DATA: Final = 5
_CREATES: Final = (1, 15)
_CLOSE_SESSION: Final = -11
_HEADER: Final = struct.Struct(">ii")
_CONNECT: Final = struct.Struct(">iqiqi")
_CONNECTED: Final = struct.Struct(">iiqi")
_LENGTH: Final = struct.Struct(">i")
_FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
_HANDSHAKE_S: Final = 10.0

KINDS: Final[Mapping[str, tuple[int, ...]]] = {"create": _CREATES, "write": (_SET_DATA,)}
"""What replies can be lost of."""


class CutProxy(Relay):
    """A proxy for the ZooKeeper at `target` (host:port). An async context manager."""

    def __init__(self, target: str) -> None:
        super().__init__(_HOST, 0)
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._sessions: dict[int, bytes] = {}
        self._wanted: Callable[[int, str], bool] | None = None
        self._lost: asyncio.Event = asyncio.Event()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{_HOST}:{self.port}"

    async def lose_reply(self, kind: str, path: str) -> None:
        """Lose the reply to the next change of this kind (one of KINDS) to a node below `path`, and
        with it the connection.

        Returns when that has happened.
        """
        kinds = KINDS[kind]
        self._lost = asyncio.Event()
        self._wanted = lambda asked, where: asked in kinds and where.startswith(path)
        await self._lost.wait()

    async def expire_sessions(self) -> int:
        """End all sessions that came through here, as if ZooKeeper had received nothing from them
        for too long; how many.

        Their clients learn of it from the end of their connections.
        """
        sessions, self._sessions = self._sessions, {}
        for session, password in sessions.items():
            await self._end_session(session, password)
        return len(sessions)

    async def _end_session(self, session: int, password: bytes) -> None:
        async with asyncio.timeout(_HANDSHAKE_S):
            reader, writer = await asyncio.open_connection(*self._target)
            try:
                asked = _CONNECT.pack(0, 0, 10_000, session, len(password)) + password + b"\0"
                writer.write(_framed(asked))
                answer = await _frame(reader)
                if answer is not None and _CONNECTED.unpack_from(answer)[2] == session:
                    writer.write(_framed(_HEADER.pack(1, _CLOSE_SESSION)))
                    await reader.read()
            finally:
                writer.close()

    # --- one connection ---------------------------------------------------------------------------

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        doomed: list[int] = []
        try:
            sides = [
                asyncio.ensure_future(self._requests(reader, there_writer, doomed)),
                asyncio.ensure_future(self._replies(there_reader, writer, doomed)),
            ]
            try:
                await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for side in sides:
                    side.cancel()
                await asyncio.gather(*sides, return_exceptions=True)
        finally:
            there_writer.close()

    async def _requests(
        self, reader: asyncio.StreamReader, there: asyncio.StreamWriter, doomed: list[int]
    ) -> None:
        first = True
        while (frame := await _frame(reader)) is not None:
            if not first and self._wanted is not None:
                number, kind = _HEADER.unpack_from(frame)
                if self._wanted(kind, _path(frame)):
                    self._wanted = None
                    doomed.append(number)
            first = False
            there.write(_framed(frame))
            await there.drain()

    async def _replies(
        self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: list[int]
    ) -> None:
        first = True
        while (frame := await _frame(there)) is not None:
            if first:
                _, _, session, length = _CONNECTED.unpack_from(frame)
                self._sessions[session] = frame[_CONNECTED.size : _CONNECTED.size + length]
            elif doomed and _LENGTH.unpack_from(frame)[0] in doomed:
                self._lost.set()
                return
            first = False
            writer.write(_framed(frame))
            await writer.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame; None at the end."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if not 0 <= length <= _FRAME_BYTES_MAX:
            return None
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        return None


def _framed(frame: bytes) -> bytes:
    return _LENGTH.pack(len(frame)) + frame


def _path(frame: bytes) -> str:
    """Of a request that begins with one."""
    start = _HEADER.size + _LENGTH.size
    if len(frame) < start:
        return ""
    (length,) = _LENGTH.unpack_from(frame, _HEADER.size)
    return (
        frame[start : start + length].decode(errors="replace")
        if 0 <= length <= len(frame) - start
        else ""
    )
