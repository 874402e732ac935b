"""Rules about the repository itself: what its files must hold, and what must not stand in them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import segmentstore
from durablelog.durable_data_log import DataLogStatistics
from durablelog.processor_config import ProcessorStatistics
from readindex.cache_storage import CacheStatistics
from readindex.statistics import ReadIndexStatistics
from recovery.background_scrub import ScrubStatistics
from recovery.recovery_processor import RecoveryReport
from segmentstore import StoreOptions, stats_types
from segmentstore.catalog_export import ExportStatistics
from segmentstore.config import SETTINGS
from segmentstore.container.log_archiver import ArchiveStatistics
from segmentstore.container.metadata_checkpoints import SnapshotStatistics
from segmentstore.contracts import errors
from segmentstore.contracts.extras import MODULES, missing_modules
from segmentstore.deprecated_settings import CURRENT_NAMES
from storagewriter.config import StorageWriterStatistics
from tier2.object_names import ENGINE_PREFIXES
from tier2.request_statistics import OperationStatistics

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("segmentstore", "durablelog", "readindex", "storagewriter", "tier2", "recovery")
PYTHON_FOLDERS = (*PACKAGES, "bench", "tests")
FORMAT_PAGES = (
    "archive-objects",
    "archive-parts",
    "block-object",
    "bookkeeper-data-plane",
    "bookkeeper-log",
    "bookkeeper-store-node",
    "catalog",
    "checkpoint",
    "cluster-nodes",
    "controller-tables",
    "data-frame",
    "events",
    "file-log",
    "mailbox",
    "metadata-catalog",
    "metadata-snapshot",
    "object-names",
    "operations",
    "pravega-nodes",
    "scrub-state",
    "store-commands",
    "store-toml",
    "table-records",
    "tier2-checkpoint",
    "wire",
)
LINES_MAX = 580
CONTAINER_TABLES = ("metadata", "segments", "segment_ids")
"""What a container shows of its committed metadata; read only."""
STATISTICS: dict[type, Any] = {
    stats_types.ArchiveStats: ArchiveStatistics,
    stats_types.CacheStats: CacheStatistics,
    stats_types.CatalogStats: ExportStatistics,
    stats_types.LogStats: DataLogStatistics,
    stats_types.OperationStats: OperationStatistics,
    stats_types.ProcessorStats: ProcessorStatistics,
    stats_types.ReadIndexStats: ReadIndexStatistics,
    stats_types.RecoveryStats: RecoveryReport,
    stats_types.ScrubStats: ScrubStatistics,
    stats_types.SnapshotStats: SnapshotStatistics,
    stats_types.StorageWriterStats: StorageWriterStatistics,
}
"""Dictionaries of `stats()`, and the records they are made of: a number joins both."""
TWINS = {
    name: ["segmentstore/blocking.py", module]
    for name, module in (
        ("AttributeIterator", "segmentstore/sessions.py"),
        ("SegmentReader", "segmentstore/sessions.py"),
        ("SegmentStore", "segmentstore/service.py"),
        ("SegmentWriter", "segmentstore/sessions.py"),
    )
}
"""Class names that stand for two things: the blocking API has the names of the asynchronous one."""
# In pieces, so that this file does not hold what it forbids.
FORBIDDEN = re.compile(
    "|".join(
        (
            "/wo" + r"rk/\w",
            "/ro" + r"ot/\w",
            "/ho" + r"me/\w",
            "py" + r"pi\.org",
            "python" + "hosted",
            "mav" + r"en\.org",
            "registry" + r"\.npmjs",
            "index" + "-url",
        )
    ),
    re.IGNORECASE,
)
UNFINISHED = re.compile(
    r"\b(?:TO"
    r"DO|FIX"
    r"ME|X"
    r"XX)\b|pytest\.mark\.(?:sk"
    r"ip|xf"
    r"ail)|pytest\.sk"
    "ip"
)


def tracked_files() -> list[Path]:
    """What is or will be in the repository: git's list where there is a git, else what is there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        return [
            path
            for path in ROOT.rglob("*")
            if path.is_file() and not set(path.parts) & {".venv", "var"}
        ]
    return [
        ROOT / name
        for name in listed.stdout.decode().split("\0")
        if name and (ROOT / name).is_file()
    ]


def python_files() -> list[Path]:
    return [path for folder in PYTHON_FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if (text := path.read_text(encoding="utf-8").strip())
        # To parse all of them would take 4 s of a core.
        and re.match(r'(#.*\n|\n)*r?"""\S', text) is None
    ]
    assert silent == []


def test_no_module_is_too_long() -> None:
    long = {
        str(path.relative_to(ROOT)): length
        for path in python_files()
        if (length := len(path.read_bytes().splitlines())) > LINES_MAX
    }
    assert long == {}


def test_no_file_is_in_the_repository_that_a_run_left_behind() -> None:
    tracked = [path.relative_to(ROOT).as_posix() for path in tracked_files()]
    assert [name for name in tracked if not re.fullmatch(r"[\w./@-]+", name)] == []
    assert [name for name in tracked if Path(name).name in {"LOCK", "lock", "store.toml"}] == []


def test_no_machine_and_no_registry_is_named() -> None:
    found = []
    for path in tracked_files():
        for number, line in enumerate((text_of(path) or "").splitlines(), 1):
            if FORBIDDEN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in python_files()
        for number, line in enumerate((text_of(path) or "").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("page", FORMAT_PAGES)
def test_every_format_has_its_page(page: str) -> None:
    assert (ROOT / "docs" / "formats" / f"{page}.md").is_file()


def test_one_module_spells_out_the_folders_of_tier_2() -> None:
    spelled = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if any(prefix in (text := path.read_text(encoding="utf-8")) for prefix in ENGINE_PREFIXES)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith(ENGINE_PREFIXES)
    }
    elsewhere = [each for each in spelled if not each.startswith("tier2/object_names.py:")]
    assert (len(spelled) > 4, elsewhere) == (True, [])


def test_every_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for folder in (*PACKAGES, "bench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in re.findall(r"(?m)^class ([A-Za-z]\w*)", path.read_text(encoding="utf-8")):
                places.setdefault(name, []).append(f"{path.relative_to(ROOT)}")
    assert {name: where for name, where in places.items() if len(where) > 1} == TWINS


def test_one_module_knows_the_kinds_of_tier1() -> None:
    """Others ask the factory of the logs for what they need to know."""
    asking = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "is_bookkeeper_url" in path.read_text(encoding="utf-8")
    }
    assert asking == {
        "durablelog/bookkeeper/bookkeeper_url.py",
        "segmentstore/settings_sources.py",  # which URL a store may be moved to
        "segmentstore/tier1.py",
        "segmentstore/cli/bookkeeper_store.py",  # the tool for ledgers
    }


def test_every_decision_has_a_number_of_its_own() -> None:
    pages = sorted((ROOT / "docs/decisions").glob("*.md"))
    numbers = [page.name[:4] for page in pages]
    assert numbers == [f"{number:04}" for number in range(1, len(pages) + 1)]
    for page in pages:
        assert page.read_text(encoding="utf-8").lstrip("# ").startswith(page.name[:4]), page


def test_links_in_pages_lead_somewhere() -> None:
    broken = []
    for page in [path for path in tracked_files() if path.suffix == ".md"]:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target) or target.startswith("#"):
                continue
            if not (page.parent / target.partition("#")[0]).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_the_layers_name_every_module_of_the_upper_floors() -> None:
    contracts = {item["id"]: item for item in project()["tool"]["importlinter"]["contracts"]}
    listed = {
        name.strip() for layer in contracts["layers"]["layers"] for name in re.split("[|:]", layer)
    }
    # These two packages have rooms on several floors; the others stand on one.
    split = {name: rooms_of(name) for name in ("segmentstore", "recovery")}
    whole = {name for name in PACKAGES if name not in split}
    assert listed == whole | split["segmentstore"] | split["recovery"]
    light = set(contracts["root-is-light"]["forbidden_modules"])
    assert light == whole | {"recovery"} | split["segmentstore"] - {"segmentstore.contracts"}
    assert set(contracts["recovery-is-beside"]["source_modules"]) == split["recovery"] - {
        "recovery.harness",
    }


def class_in(path: str, name: str) -> ast.ClassDef:
    (found,) = (
        node
        for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    return found


def test_the_parts_of_a_container_are_private() -> None:
    """Ruff's SLF001 then keeps all modules but tests from reaching through the container."""
    names = {
        "segment_calls": "SegmentCalls",
        "container_upkeep": "ContainerUpkeep",
        "container_parts": "ContainerParts",
        "segment_container": "SegmentContainer",
    }
    classes = [
        class_in(f"segmentstore/container/{module}.py", name) for module, name in names.items()
    ]
    attributes = {
        node.attr
        for each in classes
        for node in ast.walk(each)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    assert {name for name in attributes if not name.startswith("_")} == {
        *("container_id", "store_id", "state", "failure", "bytes_read"),
        *CONTAINER_TABLES,
    }
    properties = {
        node.name
        for each in classes
        for node in each.body
        if isinstance(node, ast.FunctionDef)
        and [ast.unparse(each) for each in node.decorator_list] == ["property"]
    }
    assert properties == {
        *("epoch", "is_kept_for_archive", "lacks_log_room", "snapshot_in_progress")
    }


def test_no_module_reaches_through_a_container() -> None:
    reached = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in python_files()
        if path.relative_to(ROOT).parts[0] in (*PACKAGES, "bench")
        and re.search(r"container|home", source := path.read_text("utf-8"))  # else no need to parse
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr not in ("segments", "segment_ids")
        and (node.value.attr in CONTAINER_TABLES or node.value.attr.startswith("_"))
        and re.search(r"(^|\b|_)(container|home)(s\[[^]]*\])?$", ast.unparse(node.value.value))
    ]
    assert reached == []


def rooms_of(package: str) -> set[str]:
    rooms = set()
    for path in (ROOT / package).iterdir():
        if path.suffix == ".py" and not path.stem.startswith("__"):
            rooms.add(f"{package}.{path.stem}")
        elif (path / "__init__.py").is_file():
            rooms.add(f"{package}.{path.name}")
    return rooms


def test_every_package_is_in_the_wheel_and_typed() -> None:
    tool = project()["tool"]
    wheel = tool["hatch"]["build"]["targets"]["wheel"]["packages"]
    # The bench suite and the tests are for a checkout.
    assert set(wheel) == set(PACKAGES)
    assert tool["importlinter"]["root_packages"] == list(PACKAGES)
    assert all((ROOT / name / "__init__.py").is_file() for name in wheel)


def test_pinned_versions_agree() -> None:
    described = project()["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.!+-]+", line) for line in lines)
    pinned = {
        line.partition("==")[0].lower().replace("_", "-"): line.partition("==")[2] for line in lines
    }
    wanted = [
        *map(Requirement, described["dependencies"]),
        *(
            Requirement(item)
            for extra in described["optional-dependencies"].values()
            for item in extra
        ),
    ]
    for item in wanted:
        if item.name == "segmentstore":
            continue
        # A pin here would make the package uninstallable beside what users have.
        assert [each.operator for each in item.specifier] == [">="], item
        assert pinned[item.name.lower()] in item.specifier, item


def test_the_extras_and_their_modules_agree() -> None:
    extras = set(project()["project"]["optional-dependencies"])
    assert set(MODULES) == extras - {"all", "bench-peers", "test"}
    (everything,) = project()["project"]["optional-dependencies"]["all"]
    assert Requirement(everything).extras == set(MODULES)
    assert [name for extra in MODULES for name in missing_modules(extra)] == []


def test_what_type_checkers_see_is_what_there_is() -> None:
    settings = {name: each.type for name, each in SETTINGS.items()}
    options = annotations_of(StoreOptions)
    # `open` makes a URL of a path.
    for place in ("tier2", "archive"):
        assert options.pop(place) == "str | os.PathLike[str]"
        assert settings.pop(place) == "str"
    deprecated = {old: settings[current] for old, current in CURRENT_NAMES.items()}
    assert options == settings | deprecated
    for shown, kept in STATISTICS.items():
        assert annotations_of(shown) == annotations_of(kept), shown


def annotations_of(kind: type) -> dict[str, str]:
    """As they are written."""
    return {name: each.__forward_arg__ for name, each in kind.__annotations__.items()}


def test_every_error_is_exported() -> None:
    there = {name for name in vars(errors) if name.endswith("Error")}
    assert there == {name for name in segmentstore.__all__ if name.endswith("Error")}
    assert all(hasattr(segmentstore, name) for name in segmentstore.__all__)


def test_the_readme_begins_with_what_a_newcomer_needs() -> None:
    head = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30])
    for wanted in ("make run", "make test", "*not*", "→", "docs/ARCHITECTURE.md"):
        assert wanted in head


def test_importing_the_package_loads_none_of_the_engine() -> None:
    program = (
        "import sys, segmentstore, segmentstore.cli\n"
        "loaded = set(sys.modules) & {'durablelog', 'readindex', 'rocksdict', "
        "'storagewriter', 'tier2', 'recovery', 'typer'}\n"
        "print(sorted(loaded))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"
