"""TLS of both ports: certificates, handshakes that fail, files that change."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from segmentstore.server import server_context, tls
from segmentstore.server.tls import CertificateFiles
from segmentstore.server.wire_server import WireServer
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import Hello, KeepAlive, ReadSegment, SegmentRead
from tests.controller.grpc_client import served as served_controller
from tests.server.wire_client import connected, served
from tests.store.certificates import make_certificates
from tests.store.harness import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_certificates(tmp_path / "keys")
    return tmp_path / "keys"


def files_of(folder: Path, name: str = "server") -> CertificateFiles:
    return CertificateFiles(str(folder / f"{name}.crt"), str(folder / f"{name}.key"), Runtime())


def trusting(folder: Path, authority: str = "ca") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / f"{authority}.crt"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def replace(folder: Path, name: str, by: str) -> None:
    for suffix in ("crt", "key"):
        shutil.copyfile(folder / f"{by}.{suffix}", folder / f"new.{suffix}")
        (folder / f"new.{suffix}").rename(folder / f"{name}.{suffix}")


async def accepted(server: WireServer) -> None:
    """Until a connection has come."""
    while server.context.counts.connections == 0:  # noqa: ASYNC110 - the test's own loop
        await asyncio.sleep(0)


class TestWire:
    def test_appends_and_large_reads_pass(self, tmp_path: Path, folder: Path) -> None:
        async def main() -> None:
            async with (
                served(
                    tmp_path,
                    certificates=files_of(folder),
                    append_bytes_max=1 << 20,
                    queue_bytes_max=4 << 20,
                ) as (_, server),
                connected(server.port, tls=trusting(folder)) as client,
            ):
                await client.create("s")
                assert await client.set_up("s") == -(1 << 63)
                data = bytes(range(256)) * 256
                client.append(1, data)
                await client.acked(1)
                read = await client.ask(ReadSegment("s", 0, 1 << 20, "", 9), SegmentRead)
                assert data.startswith(read.data)

        run(main())

    def test_a_client_that_does_not_wait_for_the_handshake_to_be_over(
        self, tmp_path: Path, folder: Path
    ) -> None:
        """Its first bytes come with the last ones of the handshake."""

        async def main() -> None:
            async with served(tmp_path, certificates=files_of(folder)) as (_, server):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                client = trusting(folder).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
                while True:
                    try:
                        client.do_handshake()
                    except ssl.SSLWantReadError:
                        writer.write(outgoing.read())
                        incoming.write(await reader.read(1 << 16))
                    else:
                        break
                client.write(encode(Hello(16, 5)) + encode(KeepAlive()))
                writer.write(outgoing.read())
                expected = encode(Hello(16, 5)) + encode(KeepAlive())
                found = b""
                while len(found) < len(expected):
                    incoming.write(await reader.read(1 << 16))
                    with suppress(ssl.SSLWantReadError):
                        while True:
                            found += client.read(1 << 16)
                assert found == expected
                writer.close()

        run(main())

    def test_a_failed_handshake_ends_its_connection_alone(
        self, tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with served(tmp_path, certificates=files_of(folder)) as (_, server):
                async with connected(server.port, tls=trusting(folder)) as client:
                    for _ in range(3):
                        async with connected(server.port, hello=False) as plain:
                            plain.put(Hello(16, 5))
                            assert await plain.take() is None
                    with pytest.raises(ssl.SSLCertVerificationError):
                        await asyncio.open_connection(
                            "127.0.0.1", server.port, ssl=trusting(folder, "other")
                        )
                    assert await client.ask(KeepAlive(), KeepAlive) == KeepAlive()
                await server.no_connections()

        with caplog.at_level(logging.WARNING):
            run(main())
        failures = [each for each in caplog.messages if "TLS handshake failed" in each]
        assert sum("wrong version number" in each for each in failures) == 1
        assert len(failures) == 2

    def test_a_client_that_hangs_up_in_the_handshake(self, tmp_path: Path, folder: Path) -> None:
        async def main() -> None:
            async with served(tmp_path, certificates=files_of(folder)) as (_, server):
                for sent in (b"", b"\x16\x03\x01"):
                    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                    writer.write(sent)
                    writer.close()
                    await writer.wait_closed()
                    await accepted(server)
                    await server.no_connections()

        run(main())

    def test_a_silent_client_is_closed(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            async with (
                served(tmp_path, certificates=files_of(folder)) as (_, server),
                connected(server.port, hello=False) as client,
            ):
                assert await client.take() is None
                await server.no_connections()

        monkeypatch.setattr(tls, "HELLO_S", 0.01)
        assert server_context.HELLO_S == 10.0
        run(main())

    def test_a_stop_waits_for_no_handshake(self, tmp_path: Path, folder: Path) -> None:
        async def main() -> None:
            async with (
                served(tmp_path, certificates=files_of(folder)) as (_, server),
                connected(server.port, hello=False) as client,
            ):
                await accepted(server)
                await server.close()
                assert await client.take() is None
                await server.no_connections()

        run(main())

    def test_old_versions_of_tls_are_refused(self, tmp_path: Path, folder: Path) -> None:
        async def main() -> None:
            async with served(tmp_path, certificates=files_of(folder)) as (_, server):
                old = trusting(folder)
                old.set_ciphers("ALL:@SECLEVEL=0")
                with warnings.catch_warnings(action="ignore"):
                    old.minimum_version = ssl.TLSVersion.TLSv1
                    old.maximum_version = ssl.TLSVersion.TLSv1_1
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await asyncio.open_connection("127.0.0.1", server.port, ssl=old)

        run(main())

    def test_new_connections_get_the_new_certificate(self, tmp_path: Path, folder: Path) -> None:
        async def main() -> None:
            async with (
                served(tmp_path, certificates=files_of(folder)) as (_, server),
                connected(server.port, tls=trusting(folder)) as before,
            ):
                replace(folder, "server", "stranger")
                async with connected(server.port, tls=trusting(folder, "other")) as after:
                    assert await after.ask(KeepAlive(), KeepAlive) == KeepAlive()
                assert await before.ask(KeepAlive(), KeepAlive) == KeepAlive()

        run(main())


class TestController:
    def test_calls_are_encrypted_and_get_the_new_certificate(self, folder: Path) -> None:
        files = files_of(folder)

        async def main(authority: str) -> None:
            trusted = (folder / f"{authority}.crt").read_bytes()
            async with served_controller(
                key_pair=files.key_pair, root_certificates=trusted
            ) as service:
                assert (await service.call("createScope", scope="s")).status == 0

        run(main("ca"))
        replace(folder, "server", "stranger")
        run(main("other"))


class TestFiles:
    def test_what_cannot_be_used_leaves_the_certificate_before_it(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        files = files_of(folder)
        before = files.current()
        (folder / "server.key").write_bytes((folder / "stranger.key").read_bytes())
        assert files.current() is before
        assert files.current() is before
        (folder / "server.crt").unlink()
        assert files.current() is before
        replace(folder, "server", "stranger")
        assert files.current().chain == (folder / "stranger.crt").read_bytes()
        assert len(caplog.messages) == 2
        assert "the TLS certificate is not replaced" in caplog.text

    @pytest.mark.parametrize("broken", ["missing", "other key", "no PEM", "password"])
    def test_files_without_a_certificate_are_refused(self, folder: Path, broken: str) -> None:
        key = folder / "server.key"
        if broken == "missing":
            key.unlink()
        elif broken == "other key":
            key.write_bytes((folder / "client.key").read_bytes())
        elif broken == "no PEM":
            key.write_bytes(b"no key")
        else:
            read = serialization.load_pem_private_key(key.read_bytes(), None)
            key.write_bytes(
                read.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.BestAvailableEncryption(b"secret"),
                )
            )
        with pytest.raises(ConfigError, match="tls_certificate_file"):
            files_of(folder)
