"""What a new user meets first: misspelled settings, completion, the version, and what is not
installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import segmentstore
from segmentstore import ConfigError, UnknownSettingWarning, blocking
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.config import SETTINGS
from segmentstore.settings_sources import ENVIRONMENT_PREFIX, OTHER_VARIABLES
from tests.cli.shell import ROOT
from tests.cli.shell import segmentstore as command


def test_a_misspelled_variable_is_warned_of_at_each_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGMENTSTORE_FLUSH_AGE", "1")
    monkeypatch.setenv("SEGMENTSTORE_TIER2", "")
    said = r"^SEGMENTSTORE_FLUSH_AGE .* did you mean SEGMENTSTORE_FLUSH_AGE_S\?$"
    with pytest.warns(UnknownSettingWarning, match=said) as seen:
        _ = segmentstore.open(tmp_path / "s")
    assert [warning.filename for warning in seen] == [__file__], "it names the caller's line"
    with pytest.warns(UnknownSettingWarning, match=said) as seen:
        blocking.open(tmp_path / "s").close()
    assert len(seen) == 1
    shown = command("ls", tmp_path / "s")
    assert shown.code == ExitCode.DONE
    assert re.fullmatch(r"segmentstore: warning: SEGMENTSTORE_FLUSH_AGE .*\n", shown.err)


def test_no_variable_of_ours_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = set()
    for folder in ("segmentstore", "durablelog", "readindex", "storagewriter", "tier2", "recovery"):
        for path in (ROOT / folder).rglob("*.py"):
            named |= set(
                re.findall(r'"(SEGMENTSTORE_[A-Z0-9_]+)"', path.read_text(encoding="utf-8"))
            )
    settings = {ENVIRONMENT_PREFIX + name.upper() for name in SETTINGS}
    assert named - settings == OTHER_VARIABLES
    for name in OTHER_VARIABLES:
        monkeypatch.setenv(name, str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ = segmentstore.open(tmp_path / "s")


def test_an_unknown_setting_names_the_closest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"setting contaners: .* did you mean containers\?"):
        blocking.open(tmp_path / "s", contaners=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"there is no such setting$"):
        blocking.open(tmp_path / "s", zzz=2)  # type: ignore[call-arg]
    blocking.open(tmp_path / "s").close()
    with (tmp_path / "s" / "store.toml").open("a") as file:
        file.write("flush_byte = 7\n")
    shown = command("info", tmp_path / "s")
    assert (shown.code, "did you mean flush_bytes?" in shown.err) == (ExitCode.USAGE, True)


def test_the_shell_completes_commands_and_options() -> None:
    for words, wanted in (
        ("segmentstore cra", b"crashtest"),
        ("segmentstore catalog e", b"export"),
    ):
        environment = {
            **os.environ,
            "_SEGMENTSTORE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        program = [sys.executable, "-m", "segmentstore"]
        shown = subprocess.run(program, env=environment, capture_output=True, check=False)
        assert shown.stdout.split() == [wanted], shown.stderr
    assert b"--install-completion" in command("--help").out


def test_the_version_is_reported() -> None:
    shown = command("--version")
    assert (shown.code, shown.out.decode()) == (
        ExitCode.DONE,
        f"segmentstore {segmentstore.__version__}\n",
    )


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [
        ("greenlet", "harness", ["crashtest", "--runs", "1"]),
        ("kazoo", "bookkeeper", ["bookkeeper", "status", "."]),
        ("pyspark", "spark", ["spark", "reconcile", "s3://bucket"]),
        ("botocore", "s3", ["restore", "s3://bucket/x", "new"]),
        ("paramiko", "sftp", ["restore", "sftp://host/x", "new"]),
    ],
)
def test_a_missing_extra_is_named_with_what_installs_it(
    module: str, extra: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == module else find_spec(name, *rest),
    )
    shown = command(*arguments)
    assert shown.code == ExitCode.USAGE
    assert (
        f"needs {module}, which is not installed: pip install 'segmentstore[{extra}]'" in shown.err
    )
    assert "setting" not in shown.err
    assert os.listdir() == []


def test_the_command_without_its_extra_says_so_in_one_line() -> None:
    program = (
        "import sys; sys.modules['typer'] = None\n"
        "import importlib.util as util; found = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'typer' else found(name, *rest)\n"
        "from segmentstore.cli import main; main()\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert shown.returncode == ExitCode.USAGE
    assert shown.stderr == (
        "segmentstore: the command line needs typer, which is not installed: pip install "
        "'segmentstore[cli]'\n"
    )
