"""RemoteActions: what the Controller does to segments that another process serves.

As Pravega's Controller: by the commands of its wire protocol, with a token of its own.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from segmentstore.contracts.errors import (
    BadOffsetError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from segmentstore.controller.host_connection import HostConnection
from segmentstore.controller.segment_actions import HostUnavailableError, SegmentState
from segmentstore.controller.stream_model import ScalingPolicy
from segmentstore.published_hosts import PublishedAddress
from segmentstore.wire.commands import (
    Command,
    CreateSegment,
    CreateTableSegment,
    DeleteSegment,
    DeleteTableSegment,
    GetStreamSegmentInfo,
    MergeSegmentsBatch,
    NoSuchSegment,
    SealSegment,
    SegmentAlreadyExists,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentPolicyUpdated,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentTruncated,
    StreamSegmentInfo,
    TruncateSegment,
    UpdateSegmentPolicy,
)

_MISSING: Final = (NoSuchSegment,)


class RemoteActions:
    """Segments of one address. `token` gives a token for all segments, "" where none is needed."""

    def __init__(
        self,
        address: PublishedAddress,
        token: Callable[[], str],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = address
        self._token = token
        self._connection = HostConnection(address, tls)

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        await self._connection.close()

    async def create(self, name: str, policy: ScalingPolicy, rollover_bytes: int) -> None:
        await self._ask(
            lambda number: CreateSegment(
                number, name, policy.rate, policy.kind, self._token(), rollover_bytes
            ),
            SegmentCreated,
            SegmentAlreadyExists,
        )

    async def create_table(self, name: str, key_length: int) -> None:
        await self._ask(
            lambda number: CreateTableSegment(number, name, self._token(), key_length=key_length),
            SegmentCreated,
            SegmentAlreadyExists,
        )

    async def seal(self, name: str) -> None:
        await self._ask(
            lambda number: SealSegment(number, name, self._token()),
            SegmentSealed,
            SegmentIsSealed,
            *_MISSING,
        )

    async def delete(self, name: str) -> None:
        await self._ask(
            lambda number: DeleteSegment(number, name, self._token()), SegmentDeleted, *_MISSING
        )

    async def delete_table(self, name: str) -> None:
        await self._ask(
            lambda number: DeleteTableSegment(
                number, name, must_be_empty=False, token=self._token()
            ),
            SegmentDeleted,
            *_MISSING,
        )

    async def truncate(self, name: str, offset: int) -> None:
        reply = await self._ask(
            lambda number: TruncateSegment(number, name, offset, self._token()),
            SegmentTruncated,
            SegmentIsTruncated,
            *_MISSING,
        )
        if isinstance(reply, SegmentIsTruncated) and reply.start_offset < offset:
            detail = f"it begins at {reply.start_offset}, and ends before"
            raise BadOffsetError(name, offset, reply.start_offset, detail)

    async def merge_batch(self, target: str, sources: Sequence[str]) -> None:
        reply = await self._ask(
            lambda number: MergeSegmentsBatch(number, target, tuple(sources), self._token()),
            SegmentsBatchMerged,
            SegmentIsSealed,
            *_MISSING,
        )
        if isinstance(reply, SegmentIsSealed):
            raise SegmentSealedError(reply.segment)
        if isinstance(reply, NoSuchSegment):
            raise SegmentNotFoundError(reply.segment)

    async def info(self, name: str) -> SegmentState | None:
        reply: Any = await self._ask(
            lambda number: GetStreamSegmentInfo(number, name, self._token()),
            StreamSegmentInfo,
            *_MISSING,
        )
        if isinstance(reply, NoSuchSegment):
            return None
        return SegmentState(reply.start_offset, reply.length, reply.sealed)

    async def update_policy(self, name: str, policy: ScalingPolicy) -> None:
        await self._ask(
            lambda number: UpdateSegmentPolicy(
                number, name, policy.rate, policy.kind, self._token()
            ),
            SegmentPolicyUpdated,
            SegmentIsSealed,
            *_MISSING,
        )

    async def _ask(self, make: Callable[[int], Any], *expected: type[Command]) -> Command:
        reply = await self._connection.ask(make)
        if not isinstance(reply, expected):
            self._refused(reply)
        return reply

    def _refused(self, reply: Command) -> NoReturn:
        host, port = self._address
        raise HostUnavailableError(f"{host}:{port}", f"it answers {reply}")
