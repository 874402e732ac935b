"""User code under mypy and pyright, both strict: what is right passes, each mistake is reported.

pyright runs as basedpyright, which is the same program with its own Node.js: pyright's own package
fetches both when it first runs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.suites import slow

HERE = Path(__file__).parent
SAMPLES = {"sample_right.py": "sample_right.py", "sample_wrong.py": "sample_wrong.py.txt"}
"""By their names in the program of the user."""
WRONG = "# wrong:"


def expected(sample: str) -> set[int]:
    lines = (HERE / SAMPLES[sample]).read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if WRONG in line}


def check(reported: dict[str, dict[int, str]]) -> None:
    for sample in SAMPLES:
        found = reported[sample]
        unasked = {line: text for line, text in found.items() if line not in expected(sample)}
        assert unasked == {}, sample
        assert expected(sample) - found.keys() == set(), f"{sample}: not reported"


@pytest.fixture(scope="module")
def user_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples in a folder of their own, as a program that uses the installed package."""
    folder = tmp_path_factory.mktemp("user-code")
    for sample, file in SAMPLES.items():
        (folder / sample).write_bytes((HERE / file).read_bytes())
    return folder


@slow(8)
def test_mypy_sees_what_a_user_sees(user_code: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--no-error-summary",
        *SAMPLES,
    ]
    done = subprocess.run(command, cwd=user_code, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    reported: dict[str, dict[int, str]] = {sample: {} for sample in SAMPLES}
    for line in done.stdout.splitlines():
        match = re.match(r"(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*)", line)
        if match is not None:
            reported[match["file"]][int(match["line"])] = match["text"]
        else:
            assert ": note: " in line, line
    check(reported)


def test_pyright_sees_what_a_user_sees(user_code: Path) -> None:
    settings = {"typeCheckingMode": "strict", "include": ["."]}
    (user_code / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=user_code, capture_output=True, text=True, check=False)
    reported: dict[str, dict[int, str]] = {sample: {} for sample in SAMPLES}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        reported[Path(each["file"]).name][each["range"]["start"]["line"] + 1] = each["message"]
    check(reported)
