"""A password planted in every kind of URL: it is refused, or kept from every message, file, node,
log line, repr and number.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import fsspec.config  # type: ignore[import-untyped]
import pytest

from durablelog.durable_data_log_factory import StoreIdentity
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.config import StoreConfig
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.urls import redacted
from segmentstore.opening import OpeningStore
from segmentstore.store_file import parse_store_file
from tests.cli.shell import segmentstore as command
from tests.store.bookkeeper_world import ROOT, BookKeeperWorld
from tests.store.harness import open_lazy, read_all, run, until
from tests.support.guarded_files import SECRET, GuardedFileSystem, register
from tests.support.suites import share

TIER2_URLS = [
    f"sftp://me:{SECRET}@127.0.0.1:1/data/x",
    f"sftp://me@127.0.0.1:1/x?password={SECRET}",
    f"sftp://me@127.0.0.1:1/x?key_filename=/k&passphrase={SECRET}",
    f"sftp:/me:{SECRET}@127.0.0.1/x",
    f"webhdfs://me:{SECRET}@127.0.0.1:1/x",
    f"webhdfs://127.0.0.1:1/x?token={SECRET}",
    f"ftp://me:{SECRET}@127.0.0.1:1/x",
    f"s3://me:{SECRET}@bucket/p",
    f"s3://bucket/p?secret_access_key={SECRET}",
    f"s3://bucket/p?endpoint_url=http://me:{SECRET}@127.0.0.1:1",
    f"s3a://me:{SECRET}@bucket/p",
    f"abfs://c@account/p?account_key={SECRET}",
    f"gs://bucket/p?token={SECRET}",
    f"memory://me:{SECRET}@x",
    f"file:///x?password={SECRET}",
    f"nobody-knows://me:{SECRET}@h/x",
    f"me:{SECRET}@h",
]
TIER1_URLS = [
    f"bookkeeper://me:{SECRET}@zoo:2181/p",
    f"bookkeeper://zoo:2181/p?password={SECRET}",
    f"bookkeeper:/me:{SECRET}@zoo/p",
    f"me:{SECRET}@zoo",
]
PLAIN = "guarded://me@h/place"
KEPT = f"guarded://me:{SECRET}@h/place"


@pytest.fixture(autouse=True)
def _guarded() -> Iterator[None]:
    register()
    yield
    GuardedFileSystem.away = False


def everything_said(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    said = [f"{record.getMessage()} {record.exc_info!r}" for record in caplog.records]
    cause: BaseException | None = error
    while cause is not None:
        said.append(f"{cause} {cause!r} {vars(cause)}")
        cause = cause.__cause__
    return " ".join(said)


def files_that_hold_it(folder: Path) -> list[str]:
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize("url", TIER2_URLS)
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_tier2_url_with_a_secret_makes_no_store(
    url: str, by: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options, environment = (
        ({"tier2": url}, {}) if by == "option" else ({}, {"SEGMENTSTORE_TIER2": url})
    )
    opening = OpeningStore(str(tmp_path / "s"), options, environment, Runtime())

    async def body() -> None:
        await opening

    with caplog.at_level(logging.DEBUG), pytest.raises(ConfigError, match="secret") as caught:
        run(body())
    assert caught.value.setting == "tier2"
    assert SECRET not in everything_said(caught.value, caplog) + repr(opening)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("url", TIER1_URLS)
def test_a_tier1_url_with_a_secret_makes_no_store(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        await open_lazy(tmp_path / "s", tier1=url)

    with caplog.at_level(logging.DEBUG), pytest.raises(ConfigError) as caught:
        run(body())
    assert SECRET not in everything_said(caught.value, caplog)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("url", share(TIER2_URLS, 4, 0.3))
def test_a_command_line_with_a_secret_is_refused_and_not_repeated(url: str, tmp_path: Path) -> None:
    results = [command("restore", url, tmp_path / "new")]
    if ":/" in url:
        results += [command("ls", url), command("append", url, "a")]
    if "://" in url:
        results.append(command("spark", "reconcile", url))
    for result in results:
        assert result.code in {ExitCode.USAGE, ExitCode.REFUSED}
        assert SECRET not in result.err + result.out.decode()
    assert os.listdir(tmp_path) == []


def test_the_refusal_says_what_to_do_instead() -> None:
    for url, instead in (
        (
            f"sftp://me:{SECRET}@h/x",
            "key_filename=/path, or name a file with it by password_file=/path",
        ),
        (f"sftp://me@h/x?passphrase={SECRET}", "FSSPEC_SFTP_PASSPHRASE"),
        (
            f"abfs://c@a/x?account_key={SECRET}",
            "account_key_file=/path, or set FSSPEC_ABFS_ACCOUNT_KEY",
        ),
        (f"s3://me:{SECRET}@b/x", "AWS_ACCESS_KEY_ID"),
    ):
        with pytest.raises(ConfigError, match=instead):
            run(awaited(OpeningStore("nowhere", {"tier2": url}, {}, Runtime())))


async def awaited(opening: OpeningStore) -> None:
    await opening


def created_of_old(folder: Path) -> Path:
    """A store from when passwords were taken: with one in its store.toml, which others can read."""
    folder.mkdir()
    file = folder / "store.toml"
    file.write_text(
        'version = 1\nstore_id = "0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10"\ncontainers = '
        '1\ntier1 = "file"\n'
        f'tier2 = "{KEPT}"\n'
    )
    file.chmod(0o644)
    return folder


def test_a_store_of_old_opens_and_shows_its_secret_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = created_of_old(tmp_path / "s")

    async def body() -> None:
        async with open_lazy(folder) as store:
            await store.create_segment("a")
            await store.append("a", b"before")
            await store.flush()
            finding = str(store.stats()["health"])
            assert "store.toml holds a secret (password) of tier2" in finding
            assert "password_file=" in finding
            GuardedFileSystem.away = True
            await store.append("a", b" and after")
            flush = store.flush("a")
            flushing = asyncio.ensure_future(flush)
            await until(lambda: "no answer" in str(store.stats()["health"]))
            said = json.dumps(store.stats(), default=repr)
            assert "guarded://***@h" in said or "guarded://me:***@h" in said
            assert SECRET not in said
            GuardedFileSystem.away = False
            await flushing
            assert SECRET not in repr(store) + repr(store.config) + repr(store._parts) + repr(
                store._parts.storage
            )
            assert await read_all(store, "a") == b"before and after"

    with caplog.at_level(logging.DEBUG):
        run(body())
    assert SECRET not in " ".join(record.getMessage() for record in caplog.records)
    assert files_that_hold_it(folder) == [str(folder / "store.toml")]
    assert stat.S_IMODE((folder / "store.toml").stat().st_mode) == 0o600
    assert SECRET not in repr(parse_store_file((folder / "store.toml").read_text()))
    for arguments in (
        ("ls", folder),
        ("verify", folder),
        ("objects", folder),
        ("gc", folder),
        ("info", folder, "a"),
    ):
        result = command(*arguments)
        assert result.code == ExitCode.DONE
        assert SECRET not in result.err + result.out.decode()


def test_the_same_place_may_be_given_with_and_without_the_secret_of_old(tmp_path: Path) -> None:
    folder = created_of_old(tmp_path / "s")
    (tmp_path / "secret").write_text(f"{SECRET}\nnot this\n")
    by_file = f"{PLAIN}?password_file={tmp_path / 'secret'}"

    async def body() -> None:
        for number, url in enumerate((KEPT, by_file)):
            async with open_lazy(folder, tier2=url) as store:
                if not number:
                    await store.create_segment("a")
                await store.append("a", b"x")
                await store.flush()
        for wrong in (
            f"guarded://me:other@h/place?color={SECRET}",
            "guarded://me@h/elsewhere",
            "memory://x",
        ):
            with pytest.raises(ConfigError) as caught:
                await open_lazy(folder, tier2=wrong)
            assert SECRET not in str(caught.value).replace(f"color={SECRET}", "")
        # What health asks for, done by hand.
        file = folder / "store.toml"
        file.write_text(file.read_text().replace(KEPT, by_file))
        async with open_lazy(folder) as store:
            assert await read_all(store, "a") == b"xx"
            assert store.stats()["health"] == []

    run(body())
    assert files_that_hold_it(folder) == []


def test_fsspecs_own_configuration_gives_a_password_and_it_is_kept_as_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        monkeypatch.setitem(fsspec.config.conf, "guarded", {"password": "of yesterday"})
        with pytest.raises(ConfigError, match="wrong password in") as caught:
            await open_lazy(tmp_path / "s", tier2=PLAIN)
        assert "of yesterday" not in everything_said(caught.value, caplog)
        monkeypatch.setitem(fsspec.config.conf, "guarded", {"password": SECRET})
        await (await open_lazy(tmp_path / "s", tier2=PLAIN)).close()

    run(body())
    assert files_that_hold_it(tmp_path / "s") == []


def test_a_new_store_keeps_its_file_to_its_owner(tmp_path: Path) -> None:
    async def body() -> None:
        await (await open_lazy(tmp_path / "s")).close()

    run(body())
    assert stat.S_IMODE((tmp_path / "s" / "store.toml").stat().st_mode) == 0o600


def test_a_password_that_is_exchanged_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of yesterday")
    url = f"{PLAIN}?password_file={secret}"

    async def body() -> None:
        with pytest.raises(ConfigError, match="refuses") as caught:
            await open_lazy(tmp_path / "s", tier2=url)
        # Also where the file system quotes it: neither in the message, nor in the causes that a
        # traceback shows.
        assert "of yesterday" not in everything_said(caught.value, caplog)
        secret.write_text(SECRET)
        async with open_lazy(tmp_path / "s", tier2=url) as store:
            await store.create_segment("a")
            await store.append("a", b"x")
            await store.flush()
            assert store.stats()["health"] == []

    run(body())
    assert files_that_hold_it(tmp_path / "s") == []


def test_a_node_of_old_is_reported_and_a_folder_may_say_it_without(tmp_path: Path) -> None:
    async def body() -> None:
        world = BookKeeperWorld()
        (tmp_path / "secret").write_text(SECRET)
        by_file = f"{PLAIN}?password_file={tmp_path / 'secret'}"
        async with await world.open(tmp_path / "maker", tier2=by_file) as store:
            await store.create_segment("a")
            await store.append("a", b"x")
        content = world.tree.content(ROOT)
        assert content is not None
        assert SECRET not in content.data.decode()
        # As an older program would have written it.
        old = json.loads(content.data) | {"tier2": KEPT}
        world.tree.put(ROOT, json.dumps(old).encode())
        async with await world.open(tmp_path / "maker") as store:
            finding = str(store.stats()["health"])
            assert "node in ZooKeeper holds a secret" in finding
            assert await read_all(store, "a") == b"x"
        async with await world.open(tmp_path / "joiner", tier2=by_file) as store:
            assert await read_all(store, "a") == b"x"
            assert SECRET not in str(store.stats())
        assert (
            files_that_hold_it(tmp_path / "maker") == files_that_hold_it(tmp_path / "joiner") == []
        )

    run(body())


def test_what_is_printed_of_settings_holds_no_secret() -> None:
    identity = StoreIdentity("0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10", 1, KEPT)
    for shown in (
        repr(StoreConfig(tier2=KEPT)),
        str(StoreConfig(tier2=KEPT)),
        repr(identity),
        f"{identity}",
    ):
        assert SECRET not in shown
        assert redacted(KEPT) in shown


def test_a_misspelled_option_is_final_and_named(tmp_path: Path) -> None:
    async def body(url: str) -> None:
        await open_lazy(tmp_path / "s", tier2=url)

    for url, named in (
        ("sftp://me@127.0.0.1:1/x?key_file=/k", "'key_file', only .*key_filename"),
        ("webhdfs://me@127.0.0.1:1/x?kerbros=true", "'kerbros', only .*kerberos"),
        ("ftp://127.0.0.1:1/x?tsl=true", "'tsl', only .*tls"),
        (f"{PLAIN}?password_file=relative", "password_file is not the absolute path"),
        (f"{PLAIN}?password_file=/not/there", "password_file: /not/there: No such file"),
    ):
        with pytest.raises(ConfigError, match=named):
            run(body(url))
