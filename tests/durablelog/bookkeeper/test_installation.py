"""The jars and classes of BookKeeper: refused if they are not the pinned ones, compiled again when
a source changed.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from durablelog.bookkeeper import installation
from durablelog.bookkeeper.installation import GatewayMissingError
from durablelog.bookkeeper.installation.jars import damaged_jars, pinned_sums
from tests.support.suites import slow

MAIN = "package segmentstore; public final class Gateway { int answer() { return %d; } }"


def silent(_: str) -> None: ...


def link_jars(target: Path) -> None:
    """The jars of this machine, in a folder of the test's own, at no cost."""
    target.mkdir(parents=True)
    for jar in sorted(Path(installation.cluster_classpath()[:-2]).iterdir()):
        (target / jar.name).symlink_to(jar)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation folder with the jars and nothing else."""
    folder = tmp_path / "installation"
    link_jars(folder / installation.jars_folder().name)
    monkeypatch.setenv(installation.FOLDER_VARIABLE, str(folder))
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "java" / "segmentstore"
    folder.mkdir(parents=True)
    (folder / "Gateway.java").write_text(MAIN % 1)
    return folder.parent


def fake_maven(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Maven that does what the test says instead of asking a network; `$target` is where it is to
    put the jars.
    """
    folder.mkdir()
    program = folder / "mvn"
    program.write_text(
        f'#!{sys.executable}\nimport sys\noptions = dict(o[2:].partition("=")[::2] for o '
        'in sys.argv if o[:2] == "-D")\n'
        f'target = options["outputDirectory"]\nassert "--strict-checksums" in sys.argv\n{script}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_what_is_installed_is_what_was_pinned() -> None:
    assert damaged_jars(installation.jars_folder()) == []
    assert {
        "bookkeeper-server-4.17.3.jar",
        "metrics-core-4.1.12.1.jar",
        "snappy-java-1.1.10.5.jar",
    } <= set(pinned_sums())


def test_the_gateway_of_the_jars_is_the_one_of_the_python_side() -> None:
    pins = (Path(__file__).resolve().parents[3] / "constraints.txt").read_text()
    jars = [name for name in pinned_sums() if name.startswith("py4j-")]
    assert [f"py4j=={name[5:-4]}" in pins.splitlines() for name in jars] == [True]


def test_a_changed_a_missing_and_a_foreign_jar_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    link_jars(folder)
    first, second, *_ = sorted(pinned_sums())
    (folder / first).unlink()
    (folder / first).write_bytes(b"another")
    (folder / second).unlink()
    (folder / "stranger.jar").write_bytes(b"")
    assert sorted(damaged_jars(folder)) == sorted(
        [f"{first} has another SHA-256 sum", f"{second} is missing", "stranger.jar is not expected"]
    )


def test_jars_with_other_sums_are_refused_and_nothing_of_them_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "installation"
    monkeypatch.setenv(installation.FOLDER_VARIABLE, str(folder))
    name = min(pinned_sums())
    made = (
        "import pathlib\npathlib.Path(target).mkdir()\n(pathlib.Path(target) / "
        f'"{name}").write_bytes(b"evil")'
    )
    fake_maven(tmp_path / "bin", made, monkeypatch)
    with pytest.raises(
        GatewayMissingError, match=f"not those of jars.sha256.*{name} has another SHA-256 sum"
    ):
        installation.install(silent)
    assert [path.name for path in folder.iterdir()] == ["installing.lock"]


def test_a_maven_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(installation.FOLDER_VARIABLE, str(tmp_path / "installation"))
    fake_maven(tmp_path / "bin", 'sys.exit("no route to anywhere")', monkeypatch)
    with pytest.raises(GatewayMissingError, match="fetching BookKeeper's jars failed") as refused:
        installation.install(silent)
    assert "no route to anywhere" in str(refused.value)


def test_what_is_installed_is_not_fetched_again(
    own_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_maven(tmp_path / "bin", 'sys.exit("asked")', monkeypatch)
    said: list[str] = []
    installation.install(said.append)
    assert said == []


def test_without_jars_the_command_that_brings_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(installation.FOLDER_VARIABLE, str(tmp_path))
    for asked in (installation.cluster_classpath, installation.gateway_classpath):
        with pytest.raises(GatewayMissingError, match=installation.INSTALL_COMMAND) as refused:
            asked()
        assert "\n" not in str(refused.value)


def test_missing_programs_are_one_sentence_each(
    tmp_path: Path, sources: Path, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for asked, name in (
        (installation.java, "java"),
        (installation.javac, "javac"),
        (installation.maven, "mvn"),
    ):
        with pytest.raises(
            GatewayMissingError,
            match=f"{name} is needed .* was not found: install .*apt-get install",
        ) as it:
            asked()
        assert "\n" not in str(it.value)
    with pytest.raises(GatewayMissingError, match="javac is needed"):
        installation.gateway_classpath(sources=sources)
    monkeypatch.setenv(installation.FOLDER_VARIABLE, str(tmp_path / "empty"))
    with pytest.raises(GatewayMissingError, match="java is needed"):
        installation.install(silent)


def test_an_old_java_is_refused(
    tmp_path: Path, sources: Path, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "old" / "bin" / "javac"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho javac 1.8.0_402\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(GatewayMissingError, match="is version 8, and Java 17 or newer is needed"):
        installation.gateway_classpath(sources=sources)


@slow(6)
def test_classes_are_compiled_once_for_each_state_of_the_sources(
    own_folder: Path, sources: Path
) -> None:
    said: list[str] = []
    with ThreadPoolExecutor(
        2
    ) as pool:  # each with the lock file open for itself, as two processes have it
        asked = [
            pool.submit(installation.gateway_classpath, said.append, sources=sources)
            for _ in range(2)
        ]
    first = asked[0].result()
    assert asked[1].result() == first
    jar = Path(first.split(":")[0])
    with zipfile.ZipFile(jar) as packed:
        assert packed.namelist() == ["segmentstore/Gateway.class"]
    assert installation.gateway_classpath(said.append, sources=sources) == first
    assert len(said) == 1
    (sources / "segmentstore" / "Gateway.java").write_text(MAIN % 2)
    second = installation.gateway_classpath(said.append, sources=sources)
    assert second != first
    assert len(said) == 2
    assert {path.name for path in own_folder.iterdir()} == {
        "installing.lock",
        jar.name,
        Path(second.split(":")[0]).name,
        installation.jars_folder().name,
    }


@slow(2)
def test_sources_that_do_not_compile_leave_no_classes(own_folder: Path, sources: Path) -> None:
    (sources / "segmentstore" / "Gateway.java").write_text("nonsense")
    with pytest.raises(GatewayMissingError, match="compiling the gateway to BookKeeper failed"):
        installation.gateway_classpath(sources=sources)
    assert not installation.gateway_jar(sources).exists()
    assert list(own_folder.glob("compiling-*")) == []
    shutil.rmtree(sources)
    with pytest.raises(GatewayMissingError, match="not whole"):
        installation.gateway_classpath(sources=sources)
