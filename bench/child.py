"""A measurement in a process of its own: fresh memory, fresh caches, nothing left over from the
round before.

`call` runs a function of a bench module in a new interpreter and gives back what it returned
(JSON). The child ends by os._exit: whatever it left open is abandoned as by a crash, which the
recovery case relies on.

All sides have malloc as a service that serves a store has it (`segmentstore.tune_malloc`).
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.workspace import BenchError
from segmentstore.contracts.allocator import tune_malloc

Measured = dict[str, Any]
"""What a round gives back: `value` is the number compared, the rest goes to the JSON as it is."""

_MARK = "bench-result:"


def command(
    module: str, function: str, arguments: Mapping[str, object]
) -> tuple[list[str], dict[str, str]]:
    """The command that runs `module.function(**arguments)` in a fresh process, and its
    environment.
    """
    root = str(Path(__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, inherited] if inherited else [root]),
    }
    program = [sys.executable, "-m", "bench.child", module, function, json.dumps(dict(arguments))]
    return program, environment


def call(
    module: str, function: str, arguments: Mapping[str, object], *, timeout_s: float = 1800.0
) -> Measured:
    """Run `module.function(**arguments)` in a fresh process; arguments and result must be JSON.

    Costs about 0.2 s besides. Raises BenchError with the child's last words if it fails or takes
    too long.
    """
    program, environment = command(module, function, arguments)
    try:
        done = subprocess.run(
            program, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        message = f"{module}.{function} was still running after {timeout_s:.0f} s"
        raise BenchError(message) from None
    marked = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or len(marked) != 1:
        message = (
            f"{module}.{function} failed with exit code {done.returncode}:\n{_ends_of(done.stderr)}"
        )
        raise BenchError(message)
    result: Measured = json.loads(marked[0].removeprefix(_MARK))
    return result


def _ends_of(text: str, length: int = 2000) -> str:
    """Both ends: the cause is often said first, and buried by what follows from it."""
    return text if len(text) <= 2 * length else f"{text[:length]}\n[...]\n{text[-length:]}"


def _main() -> None:
    tune_malloc()
    module, function, arguments = sys.argv[1:]
    result = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    sys.stdout.write(f"\n{_MARK}{json.dumps(result)}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    _main()
