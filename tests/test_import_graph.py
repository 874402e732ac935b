"""No two modules import each other, by whatever way: at module level, for types alone, or in a
function.

An import under TYPE_CHECKING or in a function runs, but it hides that neither module can be read,
tested or moved without the other. What both need goes into a module below them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("segmentstore", "durablelog", "readindex", "storagewriter", "tier2", "recovery")


def import_graph(root: Path, packages: tuple[str, ...]) -> dict[str, set[str]]:
    """The modules of `packages`, and which of them each imports, wherever in its text."""
    modules = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in packages
        for path in (root / package).rglob("*.py")
    }
    return {
        name: {
            found
            for imported in _imports(ast.parse(path.read_bytes()))
            if (found := _module_of(imported, modules)) is not None and found != name
        }
        for name, path in modules.items()
    }


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module_of(imported: str, modules: Mapping[str, Path]) -> str | None:
    """The module itself, or the one that has the name."""
    return next((name for name in (imported, imported.rpartition(".")[0]) if name in modules), None)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """A way round for each circle that a walk in depth meets."""
    done: set[str] = set()
    found: list[list[str]] = []

    def walk(name: str, way: list[str]) -> None:
        if name in way:
            found.append([*way[way.index(name) :], name])
            return
        if name in done:
            return
        for target in sorted(graph[name]):
            walk(target, [*way, name])
        done.add(name)

    for name in sorted(graph):
        walk(name, [])
    return found


def test_no_module_imports_one_that_imports_it() -> None:
    graph = import_graph(ROOT, PACKAGES)
    assert len(graph) > 400
    assert "tier2.object_storage" in graph["tier2.request_meter"]
    assert [" -> ".join(circle) for circle in circles(graph)] == []


def test_a_circle_is_found_however_it_is_hidden(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "top.py").write_text("import package.typed\n")
    (package / "typed.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.lazy import name\n"
    )
    (package / "lazy.py").write_text("def load():\n    from package import top\n    return top\n")
    graph = import_graph(tmp_path, ("package",))
    assert graph["package.typed"] == {"package.lazy"}
    assert circles(graph) == [["package.lazy", "package.top", "package.typed", "package.lazy"]]
    (package / "lazy.py").write_text("name = 1\n")
    assert circles(import_graph(tmp_path, ("package",))) == []
