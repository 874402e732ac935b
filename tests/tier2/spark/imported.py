"""What the Spark jobs import from others, wherever in their modules: read from the sources, for a
lazy import counts too.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def imported_by_the_jobs() -> set[str]:
    """Top-level packages of others that tier2.spark's modules, and what of ours they import,
    import.
    """
    waiting = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "tier2" / "spark").rglob("*.py")
    ]
    seen: set[str] = set()
    found: set[str] = set()
    while waiting:
        module = waiting.pop()
        path = _file_of(module)
        if module in seen or path is None:
            continue
        seen.add(module)
        for name in _imports(path):
            top = name.partition(".")[0]
            if (ROOT / top / "__init__.py").is_file():
                waiting.append(name)
            elif top not in sys.stdlib_module_names:
                found.add(top)
    return found


def _file_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    return next(
        (each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None
    )


def _imports(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # Of a package either a module or a name in it.
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names
