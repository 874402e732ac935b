"""Object storage through fsspec: the contract in fsspec's own memory and on a real SFTP server, and
what goes wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import itertools
import socket
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from recovery.harness.services.installing import ssh_keygen
from recovery.harness.services.server import free_port
from recovery.harness.services.sftp_server import Sftp
from recovery.harness.services.shared import shared_server
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.runtime import Runtime
from tests.contracts.object_storage_contract import (
    PAGE_OBJECTS,
    ObjectStorageContract,
    listed,
    unique_id,
)
from tests.support.suites import slow
from tier2.fsspec_object_storage import FsspecObjectStorage
from tier2.locations import open_object_storage
from tier2.object_storage import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStorage,
    StorageRefusedError,
    StorageUnavailableError,
)

SPACES = itertools.count()
DATA = bytes(range(256)) * 20


def lose_next_reply(storage: ObjectStorage) -> None:
    """The back end does the next put, and what it answers never comes."""
    assert isinstance(storage, FsspecObjectStorage)
    files = storage._files
    put = files.put

    def lossy(
        name: str, parts: Sequence[Buffer], unique_id: bytes, metadata: Mapping[str, str]
    ) -> None:
        put(name, parts, unique_id, metadata)
        files.put = put  # type: ignore[method-assign]
        raise ConnectionResetError("the connection was lost")

    files.put = lossy  # type: ignore[method-assign]


class FsspecContract(ObjectStorageContract):
    def lose_next_put_reply(self, storage: ObjectStorage) -> None:
        lose_next_reply(storage)


class TestFsspecMemory(FsspecContract):
    @pytest.fixture(autouse=True)
    def _space(self) -> Iterator[None]:
        self.root = f"/space-{next(SPACES)}"
        yield
        for path in [path for path in MemoryFileSystem.store if path.startswith(self.root + "/")]:
            del MemoryFileSystem.store[path]

    def make(self, folder: Path) -> ObjectStorage:
        return FsspecObjectStorage(f"memory:/{self.root}", Runtime(), page_objects=PAGE_OBJECTS)

    def raw(self, storage: ObjectStorage) -> dict[str, bytes]:
        below = self.root + "/"
        files = {
            path: file for path, file in MemoryFileSystem.store.items() if path.startswith(below)
        }
        return {
            path.removeprefix(below): file.getvalue()
            for path, file in files.items()
            if not path.startswith(f"{below}~")
        }

    def put_empty(self, storage: ObjectStorage, name: str) -> bool:
        MemoryFileSystem().touch(f"{self.root}/{name}")
        return True


class TestFsspecSftp(FsspecContract):
    # More than one window of what is written, and asked for, ahead of the answers.
    large_bytes = 3 * 1024 * 1024 + 1
    root: Path

    def make(self, folder: Path) -> ObjectStorage:
        server = shared_server(Sftp)
        space = f"space-{next(SPACES)}"
        self.root = server.root / space
        return FsspecObjectStorage(
            server.location(space), Runtime(), page_objects=PAGE_OBJECTS, threads=4
        )

    def raw(self, storage: ObjectStorage) -> dict[str, bytes]:
        return files_in(self.root)

    def put_empty(self, storage: ObjectStorage, name: str) -> bool:
        (self.root / name).touch()
        return True


def files_in(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.is_relative_to(root / "~metadata")
    }


def run(url: str, case: Callable[[FsspecObjectStorage], Awaitable[None]], **options: Any) -> None:
    async def body() -> None:
        storage = FsspecObjectStorage(url, Runtime(), **options)
        try:
            await case(storage)
        finally:
            await storage.close()

    asyncio.run(body())


@pytest.fixture
def root() -> Path:
    """A folder of the shared server."""
    return shared_server(Sftp).root / f"space-{next(SPACES)}"


def url_of(root: Path) -> str:
    return shared_server(Sftp).location(root.name)


def test_a_part_that_a_cut_upload_left_is_replaced_by_the_put_that_is_tried_again(
    root: Path,
) -> None:
    async def case(storage: FsspecObjectStorage) -> None:
        for number, left in enumerate((b"", DATA[:1], DATA[:-1])):
            path = root / f"a/{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(left)
            await storage.put(f"a/{number}", [DATA], unique_id(number))
            assert path.read_bytes() == DATA

    run(url_of(root), case)


def test_what_is_no_part_of_ours_is_not_replaced(root: Path) -> None:
    async def case(storage: FsspecObjectStorage) -> None:
        (root / "folder/x").mkdir(parents=True)
        for name, there in (
            ("other", b"other"),
            ("longer", DATA + b"1"),
            ("as-long", DATA[:-1] + b"!"),
        ):
            (root / name).write_bytes(there)
            with pytest.raises(ObjectExistsError):
                await storage.put(name, [DATA], unique_id(1))
            assert (root / name).read_bytes() == there
        with pytest.raises(ObjectExistsError):
            await storage.put("folder/x", [DATA], unique_id(1))

    run(url_of(root), case)


def test_deleting_a_folder_of_that_name_does_nothing(root: Path) -> None:
    async def case(storage: FsspecObjectStorage) -> None:
        (root / "empty/folder").mkdir(parents=True)
        await storage.delete("empty/folder")
        assert (root / "empty/folder").is_dir()

    run(url_of(root), case)


def test_files_of_others_are_not_taken_for_objects(root: Path) -> None:
    async def case(storage: FsspecObjectStorage) -> None:
        await storage.put("a/x", [DATA], unique_id(1))
        (root / "a/not ours").write_bytes(b"1")
        (root / ".hidden dir").mkdir()
        assert [found.name for found in await listed(storage)] == ["a/x"]

    run(url_of(root), case)


def test_several_storages_make_the_same_folders_at_once(root: Path) -> None:
    url = url_of(root)

    async def case() -> None:
        storages = [FsspecObjectStorage(url, Runtime(), threads=2) for _ in range(4)]
        try:
            await asyncio.gather(
                *(
                    storage.put(f"d/e/f/g/{n}", [DATA], unique_id(n))
                    for n, storage in enumerate(storages * 2)
                )
            )
        finally:
            for storage in storages:
                await storage.close()

    asyncio.run(case())
    assert len(files_in(root)) == 8


def test_a_server_that_is_missing_is_named_and_found_again(tmp_path: Path) -> None:
    with Sftp(tmp_path) as server:

        async def case(storage: FsspecObjectStorage) -> None:
            await storage.put("a/x", [DATA], unique_id(1))
            server.kill()
            for call in (
                storage.put("a/y", [DATA], unique_id(2)),
                storage.get_range("a/x", 0, 1),
                storage.head("a/x"),
                storage.delete("a/x"),
                listed(storage),
            ):
                with pytest.raises(StorageUnavailableError):
                    await call
            server.start()
            # A connection of before that its thread still holds fails once; not a second time.
            with contextlib.suppress(StorageUnavailableError):
                await storage.head("a/x")
            await storage.put("a/y", [DATA], unique_id(2))
            assert await storage.get_range("a/x", 0, len(DATA)) == DATA
            assert [found.name for found in await listed(storage)] == ["a/x", "a/y"]

        run(server.location("space"), case)


def test_a_port_without_a_listener_is_unavailable() -> None:
    async def case(storage: FsspecObjectStorage) -> None:
        with pytest.raises(StorageUnavailableError):
            await storage.check()
        assert storage.statistics().errors == 1

    run(f"sftp://somebody@127.0.0.1:{free_port()}/data", case)


def test_wrong_credentials_are_a_refusal_and_no_secret_is_reported(root: Path) -> None:
    server = shared_server(Sftp)
    url = (
        f"sftp://nobody:sesame@127.0.0.1:{server.port}{root}?look_for_keys=false&allow_agent=false"
    )

    async def case(storage: FsspecObjectStorage) -> None:
        with pytest.raises(StorageRefusedError, match="Authentication") as caught:
            await storage.check()
        assert "sesame" not in str(caught.value) + repr(storage) + storage.url

    run(url, case)


class LyingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A back end that does not keep its word, each time in one way."""

    lie = ""

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        data: bytes = super().cat_file(path, None, None)
        if self.lie == "ignores ranges":
            return data
        if self.lie == "cuts replies":
            return data[start:end][:-1]
        return data[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        cut = {"cuts uploads": len(value) - 1, "is full": len(value) // 2}
        super().pipe_file(path, value[: cut.get(self.lie, len(value))], mode)
        if self.lie == "is full":
            raise OSError(errno.ENOSPC, "No space left on device")

    def rm_file(self, path: str) -> None:
        if self.lie != "keeps the deleted":
            super().rm_file(path)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        return [] if self.lie == "lists nothing" else super().ls(path, detail)


def test_a_server_with_another_key_than_the_known_one_is_refused(
    root: Path, tmp_path: Path
) -> None:
    server = shared_server(Sftp)
    others = tmp_path / "known"
    others.write_text(f"[127.0.0.1]:{server.port} {server.key.with_suffix('.pub').read_text()}")

    async def case(storage: FsspecObjectStorage) -> None:
        with pytest.raises(StorageRefusedError, match="known_hosts"):
            await storage.check()

    run(
        url_of(root).replace(quote(str(server.known_hosts), safe=""), quote(str(others), safe="")),
        case,
    )

    async def no_file(storage: FsspecObjectStorage) -> None:
        for call in (
            storage.check(),
            storage.head("x"),
            storage.get_range("x", 0, 1),
            listed(storage),
        ):
            with pytest.raises(StorageUnavailableError, match="ENOENT"):
                await call

    run(url_of(root).replace("known-hosts", "not-there"), no_file)
    assert files_in(root) == {}


def lying_storage() -> FsspecObjectStorage:
    storage = FsspecObjectStorage(f"memory://lies-{next(SPACES)}", Runtime())
    files = storage._files
    # As a scheme of which nothing is known.
    files._location = dataclasses.replace(
        files._location, file_system=LyingFileSystem, scheme="of-nobody"
    )
    files._back_end = files._location.back_end
    return storage


@pytest.mark.parametrize(
    "lie", ["ignores ranges", "cuts replies", "cuts uploads", "keeps the deleted", "lists nothing"]
)
def test_a_back_end_that_does_not_keep_its_word_does_not_pass_the_check(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case() -> None:
        storage = lying_storage()
        await storage.check()
        monkeypatch.setattr(LyingFileSystem, "lie", lie)
        with pytest.raises(StorageUnavailableError):
            await storage.check()
        await storage.close()

    asyncio.run(case())


def test_a_disk_that_is_full_is_named_and_the_put_can_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def case() -> None:
        storage = lying_storage()
        monkeypatch.setattr(LyingFileSystem, "lie", "is full")
        with pytest.raises(StorageUnavailableError, match="ENOSPC"):
            await storage.put("a/x", [DATA], unique_id(1))
        head = await storage.head("a/x")
        assert head is not None
        assert 0 < head.size < len(DATA), "what a full disk leaves"
        monkeypatch.setattr(LyingFileSystem, "lie", "")
        await storage.put("a/x", [DATA], unique_id(1))
        assert await storage.get_range("a/x", 0, len(DATA)) == DATA
        assert dict(storage.statistics().operations["put"].errors) == {"ENOSPC": 1}
        await storage.close()

    asyncio.run(case())


def test_absent_is_distinguished_from_a_range_that_is_too_long_over_many_requests(
    root: Path,
) -> None:
    async def case(storage: FsspecObjectStorage) -> None:
        await storage.put("x", [b"1" * 100_000], unique_id(1))
        assert await storage.get_range("x", 1, 99_999) == b"1" * 99_999
        with pytest.raises(ObjectNotFoundError):
            await storage.get_range("y", 0, 100_000)

    run(url_of(root), case)


def test_closing_waits_for_a_put_whose_caller_has_left(root: Path) -> None:
    async def case(storage: FsspecObjectStorage) -> None:
        put = asyncio.create_task(storage.put("x", [DATA * 100], unique_id(1)))
        await asyncio.sleep(0)
        put.cancel()
        await asyncio.wait([put])
        await storage.close()
        assert files_in(root) == {"x": DATA * 100}

    run(url_of(root), case)


def test_a_server_of_webhdfs_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tier2.fsspec_files.SILENCE_S", 0.05)

    async def body(port: int) -> None:
        storage = FsspecObjectStorage(f"webhdfs://127.0.0.1:{port}/objects", Runtime())
        with pytest.raises(StorageUnavailableError):
            await storage.put("x", [b"x"], unique_id(1))
        await storage.close()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(asyncio.wait_for(body(silent.getsockname()[1]), 60))


def test_closing_has_a_timeout_with_a_back_end_that_never_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tier2.fsspec_object_storage.CLOSE_TIMEOUT_S", 0.01)
    answer = threading.Event()

    async def body() -> None:
        storage = FsspecObjectStorage("memory://silent", Runtime())
        monkeypatch.setattr(storage._files, "head", lambda _name: answer.wait())
        looking = asyncio.create_task(storage.head("x"))
        await asyncio.sleep(0)
        assert storage._running
        looking.cancel()
        await asyncio.wait((looking,))
        try:
            await asyncio.wait_for(storage.close(), 60)
        finally:
            answer.set()

    asyncio.run(body())


def test_the_setting_opens_it(root: Path) -> None:
    async def case() -> None:
        storage = open_object_storage(url_of(root), Runtime())
        assert isinstance(storage, FsspecObjectStorage)
        await storage.check()
        await storage.close()

    asyncio.run(case())
    assert files_in(root) == {}


@slow(2)
def test_the_passphrase_of_a_key_comes_from_a_file(root: Path, tmp_path: Path) -> None:
    server = shared_server(Sftp)
    key, secret = tmp_path / "key", tmp_path / "secret"
    key.write_bytes(server.key.read_bytes())
    key.chmod(0o600)
    subprocess.run(
        [ssh_keygen(), "-q", "-p", "-P", "", "-N", "open sesame", "-f", str(key)], check=True
    )
    url = url_of(root).replace(quote(str(server.key), safe=""), quote(str(key), safe=""))

    async def refused(storage: FsspecObjectStorage) -> None:
        with pytest.raises(StorageRefusedError):
            await storage.check()

    async def wrong(storage: FsspecObjectStorage) -> None:
        # What paramiko says of it may as well be a connection that is torn: it is tried again.
        with pytest.raises(StorageUnavailableError) as caught:
            await storage.check()
        assert "close" not in str(caught.value)

    async def taken(storage: FsspecObjectStorage) -> None:
        await storage.check()

    secret.write_text("close sesame")
    for lacks in (url, f"{url}&passphrase_file={secret}.absent"):
        run(lacks, refused)
    run(f"{url}&passphrase_file={secret}", wrong)
    secret.write_text("open sesame\n")
    run(f"{url}&passphrase_file={secret}", taken)


def test_an_option_of_a_wrong_kind_is_not_tried_again(root: Path) -> None:
    async def refused(storage: FsspecObjectStorage) -> None:
        with pytest.raises(StorageRefusedError, match="does not take these options"):
            await storage.check()

    run(f"{url_of(root)}&timeout=soon", refused)
