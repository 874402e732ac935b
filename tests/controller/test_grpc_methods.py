"""The service over a real channel: each method, and each of its statuses."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.permission import Permission
from segmentstore.controller.authorization import ForbiddenCallError, UnauthenticatedCallError
from segmentstore.controller.controller_server import METHODS
from segmentstore.controller.messages import MESSAGES
from segmentstore.controller.names import make_segment_id
from tests.controller.controller_world import STREAM
from tests.controller.fake_store import FakeDisk, FakeProcess
from tests.controller.grpc_client import Served, served

INFO = {"scope": "s", "stream": "a"}
NONE = {"scope": "s", "stream": "none"}
NO_SCOPE = {"scope": "none", "stream": "a"}
ONE = {"stream_info": INFO, "scaling": {"segments": 1}}
CODE = grpc.StatusCode


@asynccontextmanager
async def with_stream(process: FakeProcess | None = None) -> AsyncIterator[Served]:
    async with served(process=process) as service:
        await service.call("createScope", scope="s")
        await service.call("createStream", **ONE)
        yield service


async def status(service: Served, method: str, **fields: Any) -> int:
    return int((await service.call(method, **fields)).status)


@asynccontextmanager
async def answered(code: Any) -> AsyncIterator[None]:
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code() is code


def test_every_method_has_messages_and_a_resource() -> None:
    assert len({method.name for method in METHODS}) == len(METHODS) == 46
    for method in METHODS:
        assert method.resource(MESSAGES[method.request]()).startswith("prn::/")
        fields = MESSAGES[method.response].DESCRIPTOR.fields_by_name
        assert ("status" in fields) == (method.statuses is not None), method.name


def test_scopes() -> None:
    async def main() -> None:
        async with served() as service:
            assert await status(service, "createScope", scope="s") == 0
            assert await status(service, "createScope", scope="s") == 2
            assert await status(service, "createScope", scope="a b") == 3
            assert (await service.call("checkScopeExists", scope="s")).exists
            assert not (await service.call("checkScopeExists", scope="t")).exists
            await service.call("createStream", **ONE)
            assert await status(service, "deleteScope", scope="s") == 3
            assert await status(service, "deleteScope", scope="t") == 2
            page = await service.call("listScopes")
            assert list(page.scopes) == ["s"]
            assert not (await service.call("listScopes", token=page.token)).scopes
            assert await status(service, "deleteScopeRecursive", scope="s") == 0
            assert await status(service, "deleteScopeRecursive", scope="s") == 2

    asyncio.run(main())


def test_a_request_once_more_has_its_answer_by_its_id() -> None:
    table = {"scope": "s", "name": "t", "partitions": 1, "primary_key_length": 4}
    again: Sequence[tuple[str, dict[str, Any]]] = (
        ("createScope", {"scope": "s"}),
        ("createStream", ONE),
        ("createKeyValueTable", table),
        ("deleteKeyValueTable", {"scope": "s", "name": "t"}),
        ("sealStream", INFO),
        ("deleteStream", INFO),
        ("deleteScope", {"scope": "s"}),
    )

    async def main() -> None:
        async with served() as service:
            for number, (method, fields) in enumerate(again):
                headers = (("requestid", str(number - 3)),)
                for _ in range(2):
                    answer = await service.client.call(method, headers, **fields)
                    assert answer.status == 0, method
            for method, fields in (again[0], again[1]):
                for form in ("", "x", "1" * 21):
                    headers = (("requestid", form),)
                    answer = await service.client.call(method, headers, **fields)
                    assert answer.status == (2 if form else 0), method

    asyncio.run(main())


def test_streams() -> None:
    async def main() -> None:
        async with with_stream() as service:
            assert await status(service, "createStream", **ONE) == 2
            assert await status(service, "createStream", stream_info=NO_SCOPE) == 3
            bad = {"scope": "s", "stream": "a b"}
            assert await status(service, "createStream", stream_info=bad) == 4
            few = {"stream_info": NONE, "scaling": {"segments": -1}}
            assert await status(service, "createStream", **few) == 1
            tagged = {**ONE, "tags": {"tags": ["x"]}, "retention": {"kind": 1, "param": 5}}
            assert await status(service, "updateStream", **tagged) == 0
            assert await status(service, "updateStream", stream_info=NONE) == 2
            assert await status(service, "updateStream", stream_info=NO_SCOPE) == 3
            found = await service.call("getStreamConfiguration", **INFO)
            assert found == MESSAGES["StreamConfig"](**tagged)
            assert (await service.call("checkStreamExists", **INFO)).exists
            assert not (await service.call("checkStreamExists", **NONE)).exists
            page = await service.call("listStreamsInScope", scope={"scope": "s"})
            assert [each.stream for each in page.streams] == ["_MARKa", "a"]
            rest = await service.call("listStreamsInScope", scope={"scope": "s"}, token=page.token)
            assert not rest.streams
            assert await status(service, "listStreamsInScope", scope={"scope": "none"}) == 2
            found = await service.call("listStreamsInScopeForTag", scope={"scope": "s"}, tag="x")
            assert [each.stream for each in found.streams] == ["a"]
            service.disk.write("s/a/0.#epoch.0", b"123")
            assert await status(service, "truncateStream", stream_info=INFO, cut={0: 2}) == 0
            assert await status(service, "truncateStream", stream_info=INFO, cut={0: 9}) == 1
            assert await status(service, "truncateStream", stream_info=NONE, cut={0: 2}) == 2
            assert await status(service, "truncateStream", stream_info=NO_SCOPE) == 3
            assert await status(service, "deleteStream", **INFO) == 3
            assert await status(service, "deleteStream", **NONE) == 2
            assert await status(service, "sealStream", **INFO) == 0
            assert await status(service, "sealStream", **INFO) == 0
            assert await status(service, "sealStream", **NONE) == 2
            assert await status(service, "sealStream", **NO_SCOPE) == 3
            assert await status(service, "updateStream", **ONE) == 4
            assert not (await service.call("getCurrentSegments", **INFO)).ranges
            assert await status(service, "deleteStream", **INFO) == 0

    asyncio.run(main())


def test_segments() -> None:
    async def main() -> None:
        async with with_stream() as service:
            service.disk.write("s/a/0.#epoch.0", b"123")
            (current,) = (await service.call("getCurrentSegments", **INFO)).ranges
            assert (current.low, current.high, current.segment_id.segment_id) == (0.0, 1.0, 0)
            halves = [{"low": 0.0, "high": 0.5}, {"low": 0.5, "high": 1.0}]
            scaled = await service.call("scale", stream_info=INFO, sealed=[0], ranges=halves)
            created = [make_segment_id(1, 1), make_segment_id(2, 1)]
            assert (scaled.status, scaled.epoch) == (0, 0)
            assert [each.segment_id.segment_id for each in scaled.segments] == created
            assert await status(service, "scale", stream_info=INFO, sealed=[0]) == 2
            assert await status(service, "scale", stream_info=NONE, sealed=[0]) == 1
            for epoch, expected in ((0, 1), (1, 0), (2, 2), (-1, 2)):
                assert (
                    await status(service, "checkScale", stream_info=INFO, epoch=epoch) == expected
                )
            assert await status(service, "checkScale", stream_info=NONE) == 2
            old = {"stream_info": INFO, "segment_id": 0}
            for name in ("getSegmentsImmediatelyFollowing", "getSegmentsImmediatlyFollowing"):
                found = await service.call(name, **old)
                assert [
                    (each.range.segment_id.segment_id, list(each.predecessors))
                    for each in found.successors
                ] == [(each, [0]) for each in created]
            found = await service.call("getEpochSegments", stream_info=INFO, epoch=0)
            assert len(found.ranges) == 1
            head = await service.call("getSegments", stream_info=INFO)
            assert [(each.segment_id.segment_id, each.offset) for each in head.segments] == [(0, 0)]
            between = await service.call("getSegmentsBetween", stream_info=INFO, first={0: 1})
            assert [each.segment_id for each in between.segments] == [0, *created]
            assert not (await service.call("isSegmentValid", **old)).valid
            new = {"stream_info": INFO, "segment_id": created[0]}
            assert (await service.call("isSegmentValid", **new)).valid
            assert (await service.call("isStreamCutValid", stream_info=INFO, cut={0: 1})).valid
            cut = {created[0]: 1}
            assert not (await service.call("isStreamCutValid", stream_info=INFO, cut=cut)).valid
            uri = await service.call("getURI", **old)
            assert (uri.endpoint, uri.port) == ("127.0.0.1", 12345)
            (server,) = (await service.call("getControllerServerList")).servers
            assert server == uri
            assert not (await service.call("getDelegationToken", **INFO)).token
            position = {"stream_info": INFO, "cut": cut}
            assert await status(service, "noteTimestampFromWriter", position=position) == 0
            assert await status(service, "removeWriter", stream_info=INFO) == 0

    asyncio.run(main())


def test_what_has_no_status_is_answered_with_a_code_that_is_not_retried() -> None:
    async def main() -> None:
        async with with_stream() as service:
            for name in ("getCurrentSegments", "getStreamConfiguration"):
                for missing in (NONE, NO_SCOPE):
                    async with answered(CODE.NOT_FOUND):
                        await service.call(name, **missing)
            async with answered(CODE.NOT_FOUND):
                await service.call("getSegments", stream_info=NONE)
            async with answered(CODE.NOT_FOUND):
                await service.call(
                    "getSegmentsImmediatelyFollowing", stream_info=INFO, segment_id=9
                )
            async with answered(CODE.INVALID_ARGUMENT):
                await service.call("getEpochSegments", stream_info=INFO, epoch=1)
            async with answered(CODE.INVALID_ARGUMENT):
                await service.call("getSegmentsBetween", stream_info=INFO, first={5: 5})
            async with answered(CODE.INVALID_ARGUMENT):
                await service.call("createTransaction", stream_info=INFO, lease_ms=5)
            async with answered(CODE.NOT_FOUND):
                await service.call("createTransaction", stream_info=NONE, lease_ms=20_000)
            async with answered(CODE.INVALID_ARGUMENT):
                await service.client.raw("getURI", b"\xff\xff\xff")
            async with answered(CODE.NOT_FOUND):
                await service.call("getCurrentSegmentsKeyValueTable", scope="s", name="t")

    asyncio.run(main())


async def settled(service: Served, transaction: Any) -> None:
    """What was decided is done by a task of the Controller."""
    while await status(service, "checkTransactionState", **transaction) in (2, 4):
        pass


def test_transactions() -> None:
    async def main() -> None:
        async with with_stream() as service:
            begin = {"stream_info": INFO, "lease_ms": 20_000}
            created = await service.call("createTransaction", **begin)
            assert len(created.segments) == 1
            one = {"stream_info": INFO, "transaction": created.transaction}
            assert await status(service, "checkTransactionState", **one) == 1
            assert await status(service, "pingTransaction", **one, lease_ms=30_000) == 0
            assert await status(service, "pingTransaction", **one, lease_ms=600_001) == 1
            assert (
                await status(
                    service,
                    "scale",
                    stream_info=INFO,
                    sealed=[0],
                    ranges=[{"low": 0.0, "high": 1.0}],
                )
                == 2
            )
            assert await status(service, "commitTransaction", **one) == 0
            assert await status(service, "commitTransaction", **one) == 0
            assert await status(service, "abortTransaction", **one) == 1
            await settled(service, one)
            assert await status(service, "checkTransactionState", **one) == 3
            assert await status(service, "pingTransaction", **one, lease_ms=30_000) == 5
            created = await service.call("createTransaction", **begin)
            other = {"stream_info": INFO, "transaction": created.transaction}
            assert await status(service, "abortTransaction", **other) == 0
            assert await status(service, "commitTransaction", **other) == 1
            await settled(service, other)
            assert await status(service, "checkTransactionState", **other) == 5
            assert await status(service, "pingTransaction", **other, lease_ms=30_000) == 6
            ended = await service.call("listCompletedTransactions", stream_info=INFO)
            outcomes = {
                each.transaction.SerializeToString(): each.outcome for each in ended.transactions
            }
            assert outcomes == {
                one["transaction"].SerializeToString(): 0,
                other["transaction"].SerializeToString(): 1,
            }
            unknown = {"stream_info": INFO, "transaction": {"high": -1, "low": -1}}
            assert await status(service, "checkTransactionState", **unknown) == 0
            assert await status(service, "pingTransaction", **unknown, lease_ms=30_000) == 7
            for name in ("commitTransaction", "abortTransaction"):
                assert await status(service, name, **unknown) == 3
                assert await status(service, name, stream_info=NONE) == 2
            assert [name for name in service.disk.segments if "#" in name[16:]] == []

    asyncio.run(main())


def test_reader_groups_and_subscribers() -> None:
    async def main() -> None:
        async with with_stream() as service:
            starting = [{"stream_info": INFO, "cut": {0: 0}}]
            sent = {"scope": "s", "name": "g", "uuid": "u", "retention": 1, "refresh_ms": 3}
            wanted = {**sent, "starting": starting}
            created = await service.call("createReaderGroup", **wanted)
            assert created.status == 0
            assert created.configuration == MESSAGES["ReaderGroupConfiguration"](**wanted)
            again = await service.call("createReaderGroup", **{**wanted, "uuid": "v"})
            assert (again.status, again.configuration) == (0, created.configuration)
            assert await status(service, "createReaderGroup", scope="none", name="g") == 2
            assert await status(service, "createReaderGroup", scope="s", name="_g") == 3
            found = await service.call("getReaderGroupConfig", scope="s", name="g")
            assert (found.status, found.configuration) == (0, created.configuration)
            assert await status(service, "getReaderGroupConfig", scope="s", name="h") == 2
            assert len((await service.call("getCurrentSegments", scope="s", stream="_RGg")).ranges)
            listed = await service.call("listSubscribers", **INFO)
            assert (listed.status, list(listed.subscribers)) == (0, ["s/g"])
            assert await status(service, "listSubscribers", **NONE) == 2
            report = {
                "subscriber": "s/g",
                "uuid": "u",
                "stream_cut": {"stream_info": INFO, "cut": {0: 5}},
            }
            name = "updateSubscriberStreamCut"
            assert await status(service, name, **report) == 0
            earlier = {"stream_info": INFO, "cut": {0: 4}}
            assert await status(service, name, **{**report, "stream_cut": earlier}) == 4
            assert await status(service, name, **{**report, "generation": 1}) == 5
            assert await status(service, name, **{**report, "subscriber": "g2"}) == 3
            missing = {"stream_info": NONE, "cut": {0: 5}}
            assert await status(service, name, **{**report, "stream_cut": missing}) == 2
            updated = await service.call("updateReaderGroup", **{**sent, "retention": 0})
            assert (updated.status, updated.generation) == (0, 1)
            assert await status(service, "updateReaderGroup", **sent) == 3
            assert await status(service, "updateReaderGroup", **{**sent, "name": "h"}) == 2
            assert not (await service.call("listSubscribers", **INFO)).subscribers
            info = {"scope": "s", "name": "g"}
            assert await status(service, "deleteReaderGroup", **info, uuid="v") == 2
            assert await status(service, "deleteReaderGroup", **info, uuid="u") == 0
            assert not (await service.call("checkStreamExists", scope="s", stream="_RGg")).exists

    asyncio.run(main())


def test_key_value_tables() -> None:
    async def main() -> None:
        async with with_stream() as service:
            config = {
                "scope": "s",
                "name": "t",
                "partitions": 2,
                "primary_key_length": 4,
                "secondary_key_length": 2,
            }
            assert await status(service, "createKeyValueTable", **config) == 0
            assert await status(service, "createKeyValueTable", **config) == 2
            assert await status(service, "createKeyValueTable", **{**config, "scope": "none"}) == 3
            assert await status(service, "createKeyValueTable", **{**config, "name": "_"}) == 4
            too_long = {**config, "name": "u", "primary_key_length": 255}
            assert await status(service, "createKeyValueTable", **too_long) == 1
            found = await service.call("getKeyValueTableConfiguration", scope="s", name="t")
            assert found.configuration == MESSAGES["KeyValueTableConfig"](**config)
            assert await status(service, "getKeyValueTableConfiguration", scope="s") == 2
            ranges = await service.call("getCurrentSegmentsKeyValueTable", scope="s", name="t")
            assert [(each.low, each.high) for each in ranges.ranges] == [(0.0, 0.5), (0.5, 1.0)]
            assert service.disk.segments["s/t_kvtable/1.#epoch.0"].key_length == 6
            page = await service.call("listKeyValueTablesInScope", scope={"scope": "s"})
            assert [each.name for each in page.tables] == ["t"]
            rest = await service.call(
                "listKeyValueTablesInScope", scope={"scope": "s"}, token=page.token
            )
            assert not rest.tables
            assert await status(service, "listKeyValueTablesInScope") == 2
            assert await status(service, "deleteKeyValueTable", scope="s", name="t") == 0
            assert await status(service, "deleteKeyValueTable", scope="s", name="t") == 2

    asyncio.run(main())


class Users:
    """One user, with permission to read."""

    async def authorize(
        self, metadata: Sequence[tuple[str, str | bytes]], resource: str, permission: Permission
    ) -> str:
        if dict(metadata).get("authorization") != "Basic YTpi":
            raise UnauthenticatedCallError("no such user")
        if permission is not Permission.READ:
            raise ForbiddenCallError(f"{resource} is read only")
        return f"token of {resource}"


def test_callers_are_checked_and_get_a_token() -> None:
    async def main() -> None:
        async with served(Users()) as service:
            headers = (("authorization", "Basic YTpi"),)
            async with answered(CODE.UNAUTHENTICATED):
                await service.call("getDelegationToken", **INFO)
            async with answered(CODE.PERMISSION_DENIED):
                await service.call("sealStream", headers, **INFO)
            found = await service.call("getDelegationToken", headers, **INFO)
            assert found.token == "token of prn::/scope:s/stream:a"

    asyncio.run(main())


class Unreachable(FakeProcess):
    """A process whose calls fail."""

    error: Exception | None = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def test_errors_of_the_store_are_retried_and_bugs_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        process = Unreachable(FakeDisk())
        async with served(process=process) as service:
            process.error = TierUnavailableError("tier1", "away")
            async with answered(CODE.UNAVAILABLE):
                await service.call("createScope", scope="s")
            process.error = KeyError("a bug")
            for _ in range(3):
                assert await status(service, "createScope", scope="s") == 1
                async with answered(CODE.INTERNAL):
                    await service.call("checkScopeExists", scope="s")
            process.error = None
            assert service.calls.statistics() == {
                "calls": 7,
                "calls_in_flight": 0,
                "transactions_open": 0,
                "refusals": {
                    "createScope: UNAVAILABLE": 1,
                    "createScope: INTERNAL": 3,
                    "checkScopeExists: INTERNAL": 3,
                },
            }

    asyncio.run(main())
    logged = [each for each in caplog.records if re.match(r"\w+: ", each.getMessage())]
    assert len(logged) == 1


async def turns_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nothing of ours announces it
        await asyncio.sleep(0)


def test_a_call_whose_client_hangs_up_is_carried_out() -> None:
    async def main() -> None:
        async with with_stream() as service:
            streams, calls = service.controller.streams, service.calls.calls
            async with streams.locked(STREAM):
                whole = [{"low": 0.0, "high": 1.0}]
                call = asyncio.ensure_future(
                    service.call("scale", stream_info=INFO, sealed=[0], ranges=whole)
                )
                await turns_until(lambda: len(calls) == 1)
                (running,) = calls
                call.cancel()
                await turns_until(call.done)
                assert not running.done()
            await turns_until(running.done)
            assert (await streams.record(STREAM)).epoch == 1

    asyncio.run(main())


def test_a_call_that_fails_when_its_client_has_hung_up_is_no_fault_of_the_program() -> None:
    reported: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: reported.append(fault))
        process = Unreachable(FakeDisk())
        async with with_stream(process) as service:
            calls = service.calls.calls
            async with service.controller.streams.locked(STREAM):
                method = next(each for each in METHODS if each.name == "sealStream")
                data = MESSAGES[method.request](**INFO).SerializeToString()
                call = asyncio.ensure_future(service.calls.answer(method, data, ()))
                await turns_until(lambda: len(calls) == 1)
                (running,) = calls
                call.cancel()
                await turns_until(call.done)
                process.error = TierUnavailableError("tier1", "away")
            await turns_until(running.done)
            process.error = None
            assert "exception=CallEnd" in repr(running)  # asked for, it would count as seen
            del running

    asyncio.run(main())
    gc.collect()
    assert reported == []
