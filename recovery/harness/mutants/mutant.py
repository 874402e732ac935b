"""Mutant: the production code with one rule broken, for as long as it is applied, and how it is
hunted.

A mutant is an edit of source text: in one function, one piece of text becomes another. What is
compiled from it takes the place of the function's code and of nothing else. So every holder of the
function runs the mutant: callers that imported it by name, tables of bound methods, classes derived
from its own. Rules of this file:

- the text to be edited must be there exactly once: a mutant whose rule was written anew elsewhere
  fails, and does not quietly become the engine itself;
- nothing stays: the code that was there comes back however the block ends;
- one mutant at a time in a process, and no store open while one comes or goes.
"""

from __future__ import annotations
import __future__

import functools
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import Any, Final, Literal, Protocol

from recovery.harness.runs.plan import Plan, Tier1, draw_plan, on_bookkeeper
from recovery.harness.runs.run_result import RunResult
from recovery.harness.runs.scenario import Scenario

_FUTURE_FLAGS: Final = __future__.annotations.compiler_flag
"""What a module's first import says of its functions, where only one of them is compiled."""


class MutantError(Exception):
    """A mutant does not fit the code any more: `reason` says which text of which function is not
    there.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Edit:
    """In the function at `place` ("module:qualified.name"), `before` becomes `after`.

    Further lines of both are indented like the line on which the text begins.
    """

    place: str
    before: str
    after: str

    def function(self) -> FunctionType:
        """The function to be edited. Raises MutantError if there is none."""
        module_name, _, path = self.place.partition(":")
        try:
            found: Any = importlib.import_module(module_name)
            for part in path.split("."):
                found = inspect.getattr_static(found, part)
        except (ImportError, AttributeError) as error:
            raise MutantError(f"{self.place}: {error}") from error
        found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        if not isinstance(found, FunctionType):
            raise MutantError(f"{self.place} is a {type(found).__name__}, not a function")
        return found


class SimulatedRun(Protocol):
    """One run of a plan."""

    def run(self) -> RunResult:
        """Carry it out, and check it. Never raises."""


ScenarioOf = Callable[[Plan], SimulatedRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunt:
    """Where a mutant is searched for: drawn plans with something held fast."""

    seeds_max: int = 30
    """It must show within so many seeds."""
    workload: str = "everything"
    tier1: Tier1 = "file"
    tier2: Literal["object", "file"] = "object"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """In the place of what was drawn."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Of faults; those not named never strike."""
    kernel_syncs: bool = False
    """Small groups of the log are written by the loop, and synced by the kernel."""
    process_runs: int = 6
    scenario: ScenarioOf = Scenario
    cycles: Sequence[Mapping[str, Any]] = ({"ending": "power"},)
    """What is held fast in the first process run, the second one, and so on, and round again."""

    def plan(self, name: str, number: int) -> Plan:
        """The plan of seed `number` for the mutant of this name."""
        # Many short process runs, whatever the workload: its own plans may be few long ones.
        drawn = draw_plan(f"mutants/{name}/{number}", "default", cycles=self.process_runs)
        plan = replace(
            drawn,
            workload=self.workload,
            tier1=self.tier1,
            tier2=self.tier2,
            settings={**drawn.settings, **self.settings},
            rates=dict(self.rates),
            kernel_syncs=self.kernel_syncs,
            cycles=tuple(
                replace(
                    cycle,
                    **{
                        "rot": "",
                        "catalog": "",
                        "clock": "",
                        "far_clock": "",
                        "stops_behind": None,
                        "cancelled_at": None,
                        **self.cycles[place % len(self.cycles)],
                    },
                )
                for place, cycle in enumerate(drawn.cycles)
            ),
        )
        return on_bookkeeper(plan) if self.tier1 == "bookkeeper" else plan


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule broken."""

    name: str
    rule: str
    """The rule of DESIGN 4, with its section, that does not hold any more."""
    breaks: str
    """What the broken engine does, in one sentence."""
    edits: tuple[Edit, ...]
    hunt: Hunt
    bugs: tuple[str, ...] = ()
    """Numbers of the peers' bugs that it makes again."""

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Break the rule within this block. Raises MutantError, with nothing changed."""
        with ExitStack() as stack:
            edits: dict[str, list[tuple[str, str]]] = {}
            for edit in self.edits:
                edits.setdefault(edit.place, []).append((edit.before, edit.after))
            codes = {place: edited_code(place, tuple(texts)) for place, texts in edits.items()}
            for edit in self.edits:
                function = edit.function()
                stack.callback(setattr, function, "__code__", function.__code__)
                function.__code__ = codes[edit.place]
            yield


@functools.cache
def edited_code(place: str, texts: tuple[tuple[str, str], ...]) -> CodeType:
    """The code of the function at a place with texts of its source replaced. Raises MutantError."""
    function = Edit(place, "", "").function()
    source = textwrap.dedent(inspect.getsource(function))
    for before, after in texts:
        source = _replaced(place, source, before, after)
    lines_before = function.__code__.co_firstlineno - 1
    flags = function.__code__.co_flags & _FUTURE_FLAGS
    module = compile(
        "\n" * lines_before + source,
        function.__code__.co_filename,
        "exec",
        flags,
        dont_inherit=True,
    )
    found = [
        constant
        for constant in module.co_consts
        if isinstance(constant, CodeType) and constant.co_name == function.__name__
    ]
    if len(found) != 1 or found[0].co_freevars != function.__code__.co_freevars:
        raise MutantError(f"{place} cannot be compiled by itself")
    return found[0]


def _replaced(place: str, source: str, before: str, after: str) -> str:
    position = source.find(before.partition("\n")[0])
    line = source[source.rfind("\n", 0, position) + 1 :]
    indent = "\n" + line[: len(line) - len(line.lstrip())]
    before = before.replace("\n", indent)
    if source.count(before) != 1:
        raise MutantError(f"{place}: {before!r} is there {source.count(before)} times")
    return source.replace(before, after.replace("\n", indent))
