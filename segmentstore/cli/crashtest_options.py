"""Which options of `segmentstore crashtest` go together; the others are refused before anything is
run.

An option that would change nothing is a mistake of the caller, which believes that it does. So the
author of a new option says here where it has no meaning, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from segmentstore.cli.exit_codes import CommandError

_ONE_RUN: Final = "it narrates one run, and nothing is drawn, counted or kept"
_THROUGH: Final = "it ends when it is through; --depth makes it shorter"
_SIMULATED: Final = "it kills no real process"

MEANINGLESS: Final[Mapping[str, Mapping[str, str]]] = {
    "--mode simulate": {
        "exact": _SIMULATED,
        "depth": "how much its clients do is drawn from the seed",
    },
    "--mode kill": {
        "points": "they are of the simulated world; kinds of kills are counted always",
        "depth": "how much its clients do is drawn from the seed",
        "plan": "a plan is of a simulated run",
    },
    "--mode enumerate": {
        "seconds": _THROUGH,
        "runs": _THROUGH,
        "seed": "it makes every crash point, and nothing is drawn",
        "workload": "its workloads are all the short ones, see --depth",
        "plan": "a plan is of a simulated run; --replay narrates a crash point",
        "folder": "it keeps no files: the name of a crash point says all of it",
        "exact": _SIMULATED,
    },
    "--replay": dict.fromkeys(
        ("seconds", "runs", "seed", "jobs", "points", "folder", "exact", "depth"), _ONE_RUN
    ),
    "--plan": {
        **dict.fromkeys(
            ("seconds", "runs", "seed", "jobs", "points", "folder", "exact", "depth"), _ONE_RUN
        ),
        "workload": "the plan has its own",
    },
    "--runs": {"seconds": "so many runs are made, however long they take"},
}
"""By what was asked for: the options, by the names of their parameters, that mean nothing with it,
and why.
"""


def check_options(mode: str, given: Mapping[str, object]) -> None:
    """Raise CommandError if an option was given that means nothing.

    `given` are those of the command line, with their values.
    """
    if "replay" in given and "plan" in given:
        raise CommandError("either --replay or --plan: a plan has its seed in it")
    if "replay" in given and mode == "kill":
        raise CommandError(
            "a real kill cannot be replayed: when it comes is up to the machine; --seed "
            "draws the same kinds again"
        )
    for asked in (f"--mode {mode}", *(f"--{name}" for name in given)):
        for name, why in MEANINGLESS.get(asked, {}).items():
            if name in given:
                option = "--no-exact" if name == "exact" and not given[name] else f"--{name}"
                raise CommandError(f"{asked} has no {option}: {why}")
