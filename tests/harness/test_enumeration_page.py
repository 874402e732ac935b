"""The page about crash testing says how far the enumeration goes: with the numbers that it goes
by.
"""

from __future__ import annotations

import re
from pathlib import Path

from recovery.harness.enumeration.driver import CAPS, DEEPER_CAP, DEEPER_OF, DEEPER_OF_LONG
from tests.harness.test_enumerate import SHARE

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs/crash-testing.md").read_text(
    encoding="utf-8"
)


def test_the_page_has_the_cap_of_every_stage_and_number_of_operations() -> None:
    rows = re.findall(r"^  \| .*\(`(\w+)`\) ((?:\| \d* ?)+)\|$", PAGE, re.MULTILINE)
    assert {stage: tuple(map(int, re.findall(r"\d+", cells))) for stage, cells in rows} == CAPS


def test_the_page_says_what_is_crashed_during_a_recovery_and_what_the_tests_leave_out() -> None:
    said = " ".join(PAGE.split())
    assert f"one recovery of {DEEPER_OF} (objects as files," in said
    assert f"or idle segments: of {DEEPER_OF * DEEPER_OF_LONG})" in said
    assert f"with {DEEPER_CAP} outcomes of each power cut" in said
    assert f"the tests divide them by {SHARE}, and try 2 at the least" in said
