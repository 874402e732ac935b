"""Users of the Controller: credentials, permissions, tokens, a file that changes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import segmentstore
from recovery.harness.services.server import free_port
from segmentstore import StoreOptions
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.permission import Permission
from segmentstore.contracts.runtime import Runtime
from segmentstore.controller import authorization
from segmentstore.controller.authorization import (
    BusyAuthorizerError,
    ForbiddenCallError,
    UnauthenticatedCallError,
    UserAuthorizer,
    UsersFile,
)
from segmentstore.users import PasswordHash
from segmentstore.wire.commands import AppendSetup, AuthTokenCheckFailed, SetupAppend
from segmentstore.wire.tokens import TokenKey
from tests.controller.grpc_client import GrpcClient, served
from tests.server.wire_client import WRITER, connected
from tests.store.certificates import make_certificates
from tests.store.harness import run

KEY = TokenKey(b"a key of tests, known to all of them")
READ, UPDATE = Permission.READ, Permission.READ_UPDATE
CODE = grpc.StatusCode
ALL = "prn::*,READ_UPDATE"


def cheap(password: str) -> PasswordHash:
    """With parameters that take no time."""
    key = hashlib.scrypt(password.encode(), salt=b"salt", n=2, r=1, p=1, dklen=32)
    return PasswordHash(b"salt", key, n=2, r=1)


def write(path: Path, **users: tuple[str, str]) -> None:
    lines = [f"{name}:{cheap(word)}:{given}\n" for name, (word, given) in users.items()]
    new = path.with_name("new")
    new.write_text("".join(lines))
    new.replace(path)


def break_file(path: Path) -> None:
    path.write_text("admin:secret\n")


def remove(path: Path) -> None:
    path.unlink()


def basic(name: str, password: str) -> tuple[tuple[str, str], ...]:
    text = base64.b64encode(f"{name}:{password}".encode()).decode()
    return (("authorization", f"Basic {text}"),)


@asynccontextmanager
async def authorizer_of(path: Path) -> AsyncIterator[UserAuthorizer]:
    made = UserAuthorizer(UsersFile(str(path)), KEY, Runtime())
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    write(
        path,
        admin=("secret", ALL),
        reader=("word", "prn::/scope:s/stream:a,READ; prn::/scope:s/reader-group:g,READ"),
    )
    return path


def test_calls_are_answered_by_the_service(users: Path) -> None:
    async def main() -> None:
        async with authorizer_of(users) as checks, served(checks) as service:
            admin, reader = basic("admin", "secret"), basic("reader", "word")
            assert (await service.call("createScope", admin, scope="s")).status == 0

            async def refused(headers: Any, method: str, **fields: Any) -> Any:
                with pytest.raises(grpc.RpcError) as caught:
                    await service.call(method, headers, **fields)
                assert "secret" not in str(caught.value)
                return caught.value.code()

            info = {"scope": "s", "stream": "a"}
            for bad in (
                None,
                basic("admin", "word"),
                basic("nobody", "secret"),
                basic("admin", ""),
                (("authorization", "Bearer secret"),),
                (("authorization", "Basic %%%"),),
                (("authorization", "Basic /w=="),),
                (("authorization", ""),),
            ):
                assert await refused(bad, "checkScopeExists", scope="s") is CODE.UNAUTHENTICATED
            assert await refused(reader, "createScope", scope="t") is CODE.PERMISSION_DENIED
            assert await refused(reader, "sealStream", **info) is CODE.PERMISSION_DENIED
            answer = await service.call("getDelegationToken", reader, **info)
            assert KEY.check(answer.token, 0).resources == {"s/a": READ}
            answer = await service.call("getDelegationToken", admin, **info)
            assert KEY.check(answer.token, 0).resources == {"s/a": UPDATE, "s/a_kvtable": UPDATE}

    run(main())


@pytest.mark.parametrize(
    ("resource", "granted"),
    [
        ("prn::/scope:s/stream:a", {"s/a": READ}),
        # A reader writes the state of its group.
        ("prn::/scope:s/stream:_RGg", {"s/_RGg": UPDATE}),
        ("prn::/scope:s/reader-group:g", {"s/_RGg": UPDATE}),
        ("prn::/scope:s/stream:_MARKa", {"s/_MARKa": READ}),
        ("prn::/scope:s/stream:b", None),
        ("prn::/scope:s/stream:_RGother", None),
        ("prn::/scope:s/stream:_MARKb", None),
        ("prn::/scope:s", None),
    ],
)
def test_what_a_reader_gets(
    users: Path, resource: str, granted: dict[str, Permission] | None
) -> None:
    async def main() -> None:
        async with authorizer_of(users) as checks:
            headers = basic("reader", "word")
            if granted is None:
                with pytest.raises(ForbiddenCallError):
                    await checks.authorize(headers, resource, READ)
            else:
                token = await checks.authorize(headers, resource, READ)
                assert KEY.check(token, 0).resources == granted
                with pytest.raises(ForbiddenCallError):
                    await checks.authorize(headers, resource, UPDATE)

    run(main())


def test_tokens_are_for_the_segments_of_a_table_and_there_is_none_for_a_scope(users: Path) -> None:
    async def main() -> None:
        async with authorizer_of(users) as checks:
            admin = basic("admin", "secret")
            table = await checks.authorize(admin, "prn::/scope:s/key-value-table:t", UPDATE)
            assert KEY.check(table, 0).allow("s/t_kvtable/0.#epoch.0", UPDATE)
            # So the Java client asks for it.
            stream = await checks.authorize(admin, "prn::/scope:s/stream:t", READ)
            assert KEY.check(stream, 0).allow("s/t_kvtable/0.#epoch.0", UPDATE)
            assert await checks.authorize(admin, "prn::/scope:s", UPDATE) == ""
            assert await checks.authorize(admin, "prn::/", READ) == ""

    run(main())


def test_a_change_of_the_file_holds_for_the_next_call(
    users: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with authorizer_of(users) as checks:
            stream = "prn::/scope:s/stream:a"
            admin = basic("admin", "secret")
            await checks.authorize(admin, stream, UPDATE)
            write(users, admin=("secret", "prn::*,READ"))
            with pytest.raises(ForbiddenCallError):
                await checks.authorize(admin, stream, UPDATE)
            write(users, admin=("changed", ALL))
            with pytest.raises(UnauthenticatedCallError):
                await checks.authorize(admin, stream, READ)
            await checks.authorize(basic("admin", "changed"), stream, UPDATE)
            break_file(users)
            for _ in range(2):
                await checks.authorize(basic("admin", "changed"), stream, UPDATE)
            remove(users)
            await checks.authorize(basic("admin", "changed"), stream, UPDATE)
            write(users, other=("secret", ALL))
            with pytest.raises(UnauthenticatedCallError):
                await checks.authorize(basic("admin", "changed"), stream, READ)

    with caplog.at_level(logging.WARNING):
        run(main())
    assert len(caplog.messages) == 2
    assert "secret" not in caplog.text


def test_one_password_is_checked_once_for_calls_at_a_time(
    users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    matches = PasswordHash.matches

    def count(hashed: PasswordHash, password: str) -> bool:
        counted.append(password)
        return matches(hashed, password)

    async def main() -> None:
        async with authorizer_of(users) as checks:
            stream = "prn::/scope:s/stream:a"
            calls = [checks.authorize(basic("admin", "secret"), stream, READ) for _ in range(50)]
            await asyncio.gather(*calls)
            await checks.authorize(basic("admin", "secret"), stream, READ)
            assert counted == ["secret"]
            for wrong in ("a", "b"):
                with pytest.raises(UnauthenticatedCallError):
                    await checks.authorize(basic("nobody", wrong), stream, READ)
            # A user that there is not costs as much.
            assert counted == ["secret", "a", "b"]

    monkeypatch.setattr(PasswordHash, "matches", count)
    run(main())


def test_a_password_changed_while_the_old_one_is_checked_is_not_accepted_any_more(
    users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, matches = threading.Event(), PasswordHash.matches

    def wait(hashed: PasswordHash, password: str) -> bool:
        assert gate.wait(60)
        return matches(hashed, password)

    async def main() -> None:
        async with authorizer_of(users) as checks:
            stream, old = "prn::/scope:s/stream:a", basic("admin", "secret")
            first = asyncio.ensure_future(checks.authorize(old, stream, READ))
            await asyncio.sleep(0)
            write(users, admin=("changed", ALL))
            second = asyncio.ensure_future(checks.authorize(old, stream, READ))
            await asyncio.sleep(0)
            gate.set()
            await first
            for call in (second, checks.authorize(old, stream, READ)):
                with pytest.raises(UnauthenticatedCallError):
                    await call

    monkeypatch.setattr(PasswordHash, "matches", wait)
    run(main())


def test_a_flood_of_wrong_passwords_is_bounded(
    users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with authorizer_of(users) as checks:
            stream = "prn::/scope:s/stream:a"
            calls = [checks.authorize(basic("admin", str(n)), stream, READ) for n in range(10)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert sum(type(each) is BusyAuthorizerError for each in outcomes) == 7
            assert sum(type(each) is UnauthenticatedCallError for each in outcomes) == 3
            await checks.authorize(basic("admin", "secret"), stream, READ)

    monkeypatch.setattr(authorization, "_CHECKS_MAX", 3)
    run(main())


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="users_file: it cannot be read: No such file"):
        UsersFile(str(tmp_path / "none"))
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        UsersFile(str(tmp_path / "latin"))


def test_the_settings_of_a_store_open_both_ports_with_all_of_it(
    tmp_path: Path, users: Path
) -> None:
    make_certificates(tmp_path / "keys")
    secret = b"a key of tests, known to all of them"
    (tmp_path / "token").write_bytes(secret + b"\n")
    trusted = (tmp_path / "keys" / "ca.crt").read_bytes()
    wire_port, controller_port = free_port(), free_port()
    tls = ssl.create_default_context(cadata=trusted.decode())
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    options: StoreOptions = {
        "wire_port": wire_port,
        "controller_port": controller_port,
        "tls_certificate_file": str(tmp_path / "keys" / "server.crt"),
        "tls_key_file": str(tmp_path / "keys" / "server.key"),
        "users_file": str(users),
        "token_key_file": str(tmp_path / "token"),
    }

    async def main() -> None:
        channel = grpc.aio.secure_channel(
            f"127.0.0.1:{controller_port}", grpc.ssl_channel_credentials(trusted)
        )
        async with (
            segmentstore.open(str(tmp_path / "store"), **options),
            channel,
            connected(wire_port, tls=tls) as wire,
        ):
            call = GrpcClient(channel).call
            admin = basic("admin", "secret")
            stream = {"scope": "s", "stream": "a"}
            await call("createScope", admin, scope="s")
            await call("createStream", admin, stream_info=stream, scaling={"segments": 1})
            token = (await call("getDelegationToken", admin, **stream)).token
            setup = SetupAppend(1, WRITER, "s/a/0.#epoch.0", token)
            assert (await wire.ask(setup, AppendSetup)).request_id == 1
            await wire.ask(setup._replace(token=""), AuthTokenCheckFailed)

    run(main())


@pytest.mark.parametrize(
    ("name", "said"),
    [("none", "token_key_file: it cannot be read"), ("users", "users_file: line 1 has no hash")],
)
def test_a_store_does_not_open_with_files_that_it_cannot_use(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "token").write_bytes(bytes(range(65, 100)))
    (tmp_path / "users").write_text("a:b:")
    options: StoreOptions = {
        "wire_port": free_port(),
        "controller_port": free_port(),
        "users_file": str(tmp_path / "users"),
        "token_key_file": str(tmp_path / ("token" if name == "users" else name)),
    }

    async def main() -> None:
        with pytest.raises(ConfigError, match=said):
            async with segmentstore.open(str(tmp_path / "store"), **options):
                pass

    run(main())
