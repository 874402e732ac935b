"""The harness is tested by breaking the engine: each rule once, and it must notice; unbroken, the
same runs are clean.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from durablelog.file.group_writer import GroupWriter
from recovery.harness.mutants.catalogue import MUTANTS, NOT_HERE
from recovery.harness.mutants.hunting import Caught, MutantReport, run_mutant, run_mutants
from recovery.harness.mutants.mutant import Edit, Hunt, Mutant, MutantError
from segmentstore.contracts.disk import make_directories
from tests.support.suites import share

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "mutant", share([*MUTANTS[18:], *MUTANTS[:18]], 40, 4), ids=lambda mutant: mutant.name
)
def test_every_mutant_is_caught_and_the_engine_is_clean_on_the_very_run_that_caught_it(
    mutant: Mutant,
) -> None:
    caught = run_mutant(mutant)
    assert caught is not None, f"{mutant.rule}: {mutant.breaks} No run showed it."
    result = mutant.hunt.scenario(caught.plan).run()
    assert [str(violation) for violation in result.violations] == []


def test_every_mutant_has_a_name_and_a_rule_of_its_own_words() -> None:
    assert len(MUTANTS) >= 25
    for of_all in (
        lambda mutant: mutant.name,
        lambda mutant: mutant.breaks,
        lambda mutant: mutant.edits,
    ):
        assert len(dict.fromkeys(map(of_all, MUTANTS))) == len(MUTANTS)
    assert all(mutant.rule.startswith("4.") for mutant in MUTANTS)
    assert all(mutant.hunt.seeds_max <= 120 for mutant in MUTANTS)


def test_every_bug_of_the_peers_is_planted_again_or_it_is_said_why_not() -> None:
    made = {bug for mutant in MUTANTS for bug in mutant.bugs}
    assert made | NOT_HERE.keys() == {f"B{number}" for number in range(1, 21)}
    assert not made & NOT_HERE.keys()
    assert all(NOT_HERE.values())


def test_every_test_that_is_named_instead_of_a_mutant_exists() -> None:
    reasons = " ".join(NOT_HERE.values())
    named = re.findall(r"\b(tests/[\w/]+\.py)::(\w+)", reasons)
    assert len(named) == reasons.count("tests/") > 0
    for path, name in named:
        assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), (
            f"{path} has no {name}"
        )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_applying_breaks_the_code_within_the_block_and_nothing_behind_it(mutant: Mutant) -> None:
    functions = [edit.function() for edit in mutant.edits]
    codes = [function.__code__ for function in functions]
    with mutant.apply():
        assert all(
            function.__code__ is not code for function, code in zip(functions, codes, strict=True)
        )
    assert [function.__code__ for function in functions] == codes


def test_what_was_broken_is_whole_again_after_an_error() -> None:
    code = GroupWriter.commit.__code__
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "acknowledged-before-the-sync")
    with pytest.raises(ZeroDivisionError), mutant.apply():
        assert GroupWriter.commit.__code__ is code, 1 // 0
    assert GroupWriter.commit.__code__ is code


def test_who_imported_a_function_by_its_name_runs_the_mutant() -> None:
    class NoDisk:
        def is_directory(self, path: str) -> bool:
            raise ZeroDivisionError

    edit = Edit(
        "segmentstore.contracts.disk:make_directories", "path = os.path.abspath(path)", "return"
    )
    with mutant_of(edit).apply():
        make_directories(NoDisk(), "a")  # type: ignore[arg-type] # it is not checked
    with pytest.raises(ZeroDivisionError):
        make_directories(NoDisk(), "a")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (
            Edit("durablelog.file.group_writer:GroupWriter.put", "no such text", ""),
            "is there 0 times",
        ),
        (Edit("durablelog.file.group_writer:GroupWriter.put", "position", ""), "times"),
        (Edit("durablelog.file.group_writer:GroupWriter.no_such", "", ""), "no_such"),
        (Edit("durablelog.file.group_writer:GroupWriter", "", ""), "not a function"),
        (Edit("durablelog.no_such:thing", "", ""), "no_such"),
    ],
)
def test_a_mutant_that_does_not_fit_the_code_any_more_is_an_error(edit: Edit, reason: str) -> None:
    code = GroupWriter.put.__code__
    with pytest.raises(MutantError, match=reason), mutant_of(edit).apply():
        pass
    assert GroupWriter.put.__code__ is code


def test_a_mutant_that_breaks_nothing_is_reported_as_missed_and_the_others_as_caught() -> None:
    harmless = mutant_of(
        Edit(
            "durablelog.file.group_writer:GroupWriter.put",
            "sequence += 1",
            "sequence = 1 + sequence",
        )
    )
    broken = next(mutant for mutant in MUTANTS if mutant.name == "acknowledged-before-the-sync")
    seen: list[tuple[int, int]] = []

    def look(report: MutantReport) -> None:
        seen.append((len(report.caught), len(report.missed)))

    report = run_mutants(look, mutants=(harmless, broken))
    assert report.missed == ["none"]
    assert [caught.mutant for caught in report.caught] == [broken.name]
    assert seen == [(0, 1), (1, 1)]
    assert (report.count, type(report.caught[0])) == (2, Caught)


def mutant_of(edit: Edit) -> Mutant:
    return Mutant(
        "none", "4.2", "Nothing.", (edit,), Hunt(workload="appends", seeds_max=1, process_runs=2)
    )
