"""Class archives: really used, made once, and never in the way, whatever state they are in."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from durablelog.bookkeeper import installation
from durablelog.bookkeeper.archiving.class_archiving import LOCK, make_class_archives
from durablelog.bookkeeper.gateway.gateway_process import GatewayProcess
from durablelog.bookkeeper.installation import (
    JavaProgram,
    archive_options,
    programs_without_archive,
)
from durablelog.bookkeeper.installation.class_archives import recording_options
from tests.support.suites import share, slow

MAINS = {
    JavaProgram.GATEWAY: "segmentstore.Gateway",
    JavaProgram.ZOOKEEPER: "org.apache.zookeeper.server.quorum.QuorumPeerMain",
    JavaProgram.BOOKIE: "org.apache.bookkeeper.server.Main",
    JavaProgram.SHELL: "org.apache.bookkeeper.bookie.BookieShell",
}
NO_MAIN = "org.slf4j.Logger"


def java_command(program: JavaProgram, options: Sequence[str], main: str) -> list[str]:
    """Without arguments each of them says so, and ends."""
    gateway = program is JavaProgram.GATEWAY
    classpath = installation.gateway_classpath() if gateway else installation.cluster_classpath()
    return [installation.java(), *options, "-cp", classpath, main]


def record_little(folder: Path, scratch: Path) -> None:
    """Archives of one class each: real ones, in a second."""
    for program in JavaProgram:
        command = java_command(program, recording_options(program, folder), NO_MAIN)
        subprocess.run(command, capture_output=True, check=False)


@pytest.fixture(scope="module")
def archives() -> Path:
    """Those of this machine, as an installation makes them."""
    said: list[str] = []
    make_class_archives(said.append)
    assert programs_without_archive() == [], said
    return installation.archives_folder()


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation folder with jars and gateway, and no archives."""
    folder = tmp_path / "installation"
    folder.mkdir()
    gateway, jars = installation.gateway_classpath().split(":")
    (folder / Path(jars).parent.name).symlink_to(Path(jars).parent)
    shutil.copy2(gateway, folder)
    monkeypatch.setenv(installation.FOLDER_VARIABLE, str(folder))
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def pieces() -> set[str]:
    return {LOCK, installation.jars_folder().name, installation.gateway_jar().name}


@pytest.fixture
def gateways() -> Iterator[list[GatewayProcess]]:
    started: list[GatewayProcess] = []
    yield started
    for gateway in started:
        gateway.stop()


@pytest.mark.parametrize("program", share(JavaProgram, 4, 3))
def test_every_program_loads_its_classes_from_its_archive(
    program: JavaProgram, archives: Path, tmp_path: Path
) -> None:
    log = tmp_path / "loaded"
    options = [*archive_options(program), f"-Xlog:class+load=info:file={log}"]
    subprocess.run(java_command(program, options, MAINS[program]), capture_output=True, check=False)
    (told,) = [line for line in log.read_text().splitlines() if f" {MAINS[program]} " in line]
    assert told.endswith("source: shared objects file (top)")


def test_a_gateway_uses_its_archive_unasked(archives: Path, gateways: list[GatewayProcess]) -> None:
    gateways.append(GatewayProcess("token"))
    assert str(archives / "gateway-") in Path(f"/proc/{gateways[0].pid}/maps").read_text()


@pytest.mark.parametrize(
    "damage", share(["torn in the middle", "strange", "empty", "of another program"], 4, 3)
)
def test_a_gateway_starts_beside_an_archive_that_is_damaged(
    damage: str, archives: Path, tmp_path: Path, gateways: list[GatewayProcess]
) -> None:
    other = JavaProgram.ZOOKEEPER if damage == "of another program" else JavaProgram.GATEWAY
    (good,) = archives.glob(f"{other}-*.jsa")
    content = bytearray(good.read_bytes())
    if damage == "torn in the middle":
        middle = len(content) // 2
        content[middle:] = bytes(len(content) - middle)
    elif damage != "of another program":
        content[:] = b"" if damage == "empty" else b"no archive at all"
    (tmp_path / f"gateway-{len(content)}.jsa").write_bytes(content)
    options = archive_options(JavaProgram.GATEWAY, tmp_path)
    assert options
    gateways.append(GatewayProcess("token", archive=options))
    assert gateways[0].alive
    assert str(tmp_path) not in Path(f"/proc/{gateways[0].pid}/maps").read_text()
    assert JavaProgram.GATEWAY in programs_without_archive(tmp_path)


def test_an_archive_that_is_cut_short_is_not_shown_to_java(archives: Path, tmp_path: Path) -> None:
    (good,) = archives.glob("gateway-*.jsa")
    # Java would die of it.
    (tmp_path / good.name).write_bytes(good.read_bytes()[:-1])
    assert archive_options(JavaProgram.GATEWAY, tmp_path) == []
    assert archive_options(JavaProgram.GATEWAY, tmp_path / "absent") == []


@slow(10)
def test_two_who_install_at_once_make_archives_once_and_again_for_another_jar(
    own_folder: Path,
) -> None:
    said: list[str] = []
    with ThreadPoolExecutor(
        2
    ) as pool:  # each with the lock file open for itself, as two processes have it
        asked = [pool.submit(make_class_archives, said.append, record_little) for _ in range(2)]
    assert [made.result() for made in asked] == [None, None]
    assert len(said) == 1
    assert "making class archives" in said[0]
    assert programs_without_archive() == []
    folder = installation.archives_folder()
    assert names(own_folder) == {*pieces(), folder.name}
    before = names(folder)
    # As after an update of Java: what is there does not fit any more.
    os.utime(installation.gateway_jar(), (1, 1))
    assert programs_without_archive() == [JavaProgram.GATEWAY]
    make_class_archives(said.append, record_little)
    assert len(said) == 2
    assert programs_without_archive() == []
    assert names(own_folder) == {*pieces(), folder.name}
    assert len(names(folder)) == len(before) == len(JavaProgram)


@slow(4)
def test_archives_of_which_one_is_not_whole_are_not_taken(own_folder: Path) -> None:
    def record_and_tear(folder: Path, scratch: Path) -> None:
        record_little(folder, scratch)
        archive = folder / "bookie.jsa"
        archive.chmod(0o600)
        os.truncate(archive, archive.stat().st_size // 2)

    left = own_folder / "recording-killed"
    (left / "cluster").mkdir(parents=True)
    said: list[str] = []
    make_class_archives(said.append, record_and_tear)
    assert len(said) == 2
    assert said[1].endswith(
        "starts more slowly without: Java does not take the archive that it left of bookie"
    )
    assert names(own_folder) == pieces()


def test_a_recording_that_fails_is_one_line_and_leaves_nothing(
    own_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho this machine is not for coffee\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    said: list[str] = []
    make_class_archives(said.append)
    assert len(said) == 2
    assert (
        "starts more slowly without: ZooKeeper ended while starting: this machine is not for coffee"
        in said[1]
    )
    assert "\n" not in said[1]
    assert names(own_folder) == pieces()


def test_an_installation_that_cannot_be_written_is_one_line(own_folder: Path) -> None:
    (own_folder / LOCK).mkdir()
    said: list[str] = []
    make_class_archives(said.append)
    assert len(said) == 1
    assert "cannot be written" in said[0]
