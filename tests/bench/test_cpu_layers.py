"""A sample of the CPU is of the innermost layer that is known; a load gives what the table needs.
No timing.
"""

from __future__ import annotations

import selectors
import sys
from pathlib import Path
from types import FrameType

import pytest

from bench import child, cpu_layers, cpu_sampler, recovery
from bench.child import Measured
from bench.cpu_sampler import CALLERS, COLLECTOR, LAYERS, OTHER, ROOT, CpuSampler, layer_of

SELECTORS = str(selectors.__file__)
EVENTS = str(Path(SELECTORS).parent / "asyncio" / "events.py")
JSON = str(Path(SELECTORS).parent / "json" / "decoder.py")


def in_repository(*names: str) -> list[str]:
    return [str(ROOT / name) for name in names]


@pytest.mark.parametrize(
    ("file", "layer"),
    [
        ("bench/loads.py", CALLERS),
        ("bench/peers/tail.py", CALLERS),
        ("segmentstore/service.py", "segmentstore"),
        ("segmentstore/container/operations.py", "segmentstore"),
        ("segmentstore/contracts/metadata.py", "segmentstore.contracts"),
        ("segmentstore/contracts/collector.py", COLLECTOR),
        ("durablelog/operation_processor.py", "durablelog"),
        ("durablelog/file/group_writer.py", "durablelog.file"),
        ("durablelog/catalog/key_store.py", "durablelog.catalog"),
        ("readindex/read_index.py", "readindex"),
        ("storagewriter/storage_writer.py", "storagewriter"),
        ("tier2/file_object_storage.py", "tier2"),
        ("tests/bench/test_cpu_layers.py", OTHER),
        (".venv/lib/durablelog/other.py", OTHER),
    ],
)
def test_each_module_has_its_layer(file: str, layer: str) -> None:
    assert layer_of(in_repository(file)) == layer
    assert layer in LAYERS


def test_every_layer_of_a_path_is_a_row_of_the_table() -> None:
    assert {layer for _, layer in cpu_sampler._PATHS} < set(LAYERS)
    assert len(set(LAYERS)) == len(LAYERS)


def test_the_innermost_frame_of_a_known_layer_counts() -> None:
    outer = [EVENTS, *in_repository("bench/child.py")]
    assert layer_of([JSON, *in_repository("tier2/locations.py"), *outer]) == "tier2"
    assert layer_of([SELECTORS, *outer]) == "asyncio"
    assert layer_of([JSON]) == OTHER
    assert layer_of([]) == OTHER


@pytest.mark.parametrize(
    ("file", "function", "timeout", "waits"),
    [
        (SELECTORS, "select", -1, True),
        (SELECTORS, "select", 0.5, True),
        (SELECTORS, "select", 0, False),
        (SELECTORS, "register", None, False),
        (EVENTS, "select", -1, False),
    ],
)
def test_only_a_select_with_time_waits(
    file: str, function: str, timeout: float | None, waits: bool
) -> None:
    assert cpu_sampler.is_waiting(file, function, timeout) is waits


def frame_of(file: str, source: str = "found = _getframe()") -> FrameType:
    """A frame of a module that is imagined to be `file`."""
    names: dict[str, object] = {"_getframe": sys._getframe}
    exec(compile(source, file, "exec"), names)
    found = names["found"]
    assert isinstance(found, FrameType)
    return found


def test_samples_are_counted_by_layer_but_not_while_the_loop_waits() -> None:
    sampler = CpuSampler()
    (inside,) = in_repository("readindex/imagined.py")
    for _ in range(2):
        sampler._sample(0, frame_of(inside))
    waiting = "def select(timeout):\n    return _getframe()\nfound = select({})"
    sampler._sample(0, frame_of(SELECTORS, waiting.format(-1)))
    sampler._sample(0, frame_of(SELECTORS, waiting.format(0)))
    sampler._collecting("start", {})
    sampler._sample(0, frame_of(inside))
    sampler._collecting("stop", {})
    sampler._sample(0, None)
    assert sampler.shares().samples == {"readindex": 2, "asyncio": 1, COLLECTOR: 1, OTHER: 1}


def test_an_error_is_that_of_a_share_of_samples() -> None:
    assert cpu_sampler.standard_error(0.2, 400) == pytest.approx(0.02)
    assert cpu_sampler.standard_error(0.2, 0) == 1.0


TINY: dict[str, dict[str, int]] = {
    "callers": {"appends_each": 1},
    "producer": {"count": 300},
    "large": {"count": 20},
    "idle": {"segments": 60, "appends": 100},
    "replay": {"operations": 500},
}


@pytest.mark.parametrize("load", sorted(cpu_layers.LOADS))
def test_a_load_gives_operations_cpu_and_samples(load: str, tmp_path: Path) -> None:
    arguments = {"directory": str(tmp_path), **TINY[load]}
    if load == "replay":
        child.call(recovery.__name__, "fill_engine", arguments)
    measured = child.call(cpu_layers.__name__, f"{load}_round", arguments)
    assert measured["operations"] > 0
    assert 0 < measured["main_s"] <= measured["process_s"]
    assert set(measured["samples"]) <= set(LAYERS)


def measured_as(samples: dict[str, int]) -> Measured:
    return {"operations": 1_000_000, "main_s": 3.0, "process_s": 4.0, "samples": samples}


def test_the_table_divides_the_main_threads_cpu_and_has_the_rest_apart() -> None:
    table = cpu_layers.table({"producer": measured_as({"durablelog": 3, "tier2": 1})})
    lines = table.splitlines()
    assert lines[0] == "| µs of CPU for one, share | one producer, 100 B, 1,024 in flight |"
    assert "| durablelog | 2.25 (56%) |" in lines
    assert "| tier2 | 0.75 (19%) |" in lines
    assert "| readindex |  |" in lines
    assert "| other threads | 1 (25%) |" in lines
    assert "| all | 4 (100%) |" in lines
    assert "| samples; error of a fifth | 4; ± 20.0% |" in lines


def test_a_table_without_samples_has_the_sums() -> None:
    lines = cpu_layers.table({"idle": measured_as({})}).splitlines()
    assert "| all | 4 (100%) |" in lines
    assert "| samples; error of a fifth | 0; ± 100.0% |" in lines


def test_all_loads_have_sizes_and_a_function() -> None:
    for load in cpu_layers.LOADS:
        assert load in cpu_layers._QUICK
        assert load in cpu_layers._FULL
        assert callable(getattr(cpu_layers, f"{load}_round"))
