"""The store's numbers for Prometheus: complete, well formed, served over HTTP, documented."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from recovery.harness.services.server import free_port
from segmentstore import (
    ConfigError,
    SegmentStore,
    SegmentStoreError,
    blocking,
    metrics,
    metrics_endpoint,
    metrics_server,
)
from segmentstore.cluster.membership import join_cluster
from segmentstore.config import CLUSTER
from segmentstore.contracts.local_socket import STORE_SOCKET_NAME
from segmentstore.contracts.runtime import Runtime, thread_executor
from segmentstore.metric_names import (
    CLUSTER_TIMES,
    CONTAINER_METRICS,
    LEFT_OUT,
    OPERATION_METRICS,
    PREFIX,
    STORE_METRICS,
    MetricName,
)
from tests.store.bookkeeper_world import BookKeeperWorld
from tests.store.harness import open_tiny, run, until

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES: tuple[MetricName, ...] = (
    *STORE_METRICS,
    *CLUSTER_TIMES,
    *CONTAINER_METRICS,
    *OPERATION_METRICS,
)


def parsed(text: bytes) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def value(families: Mapping[str, Metric], name: str, /, **labels: str) -> float:
    """The one sample of this name whose labels include these."""
    found = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == PREFIX + name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def fetch(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain")
        body: bytes = answer.read()
        return body


async def scrape(port: int) -> dict[str, Metric]:
    return parsed(await asyncio.to_thread(fetch, port))


async def worked(store: SegmentStore) -> None:
    """A little of everything that counts."""
    await store.create_segment("a")
    for _ in range(10):
        await store.append("a", b"x" * 100)
    await store.flush()
    await store.read("a", 0, 10)
    await store.checkpoint()


# --- the families ---------------------------------------------------------------------------------


def test_the_text_says_what_the_store_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", containers=2) as store:
            await worked(store)
            stats: Any = store.stats()
            families = parsed(store.metrics_text())
            assert value(families, "up") == 1
            assert value(families, "healthy") == 1
            assert value(families, "health_findings") == 0
            assert value(families, "info", store_id=stats["store_id"]) == 1
            assert value(families, "containers", state="running") == 2
            written = [
                value(families, "flush_bytes_total", container=number) for number in ("0", "1")
            ]
            assert sum(written) == 1000
            assert 0 in written
            for container_id, numbers in stats["containers"].items():
                label = str(container_id)
                assert value(families, "log_bytes", container=label) == numbers["log"]["log_bytes"]
                assert (
                    value(families, "log_syncs_total", container=label) == numbers["log"]["syncs"]
                )
                assert (
                    value(families, "recovery_seconds", container=label)
                    == numbers["recovery"]["seconds"]
                )
            turns = stats["longest_turn_s"]
            assert {"packing", "commit", "storage writer"} <= turns.keys()
            for part, seconds in turns.items():
                assert value(families, "longest_turn_seconds", part=part) >= seconds >= 0
            assert families[PREFIX + "flush_bytes"].type == "counter"
            assert families[PREFIX + "log_bytes"].type == "gauge"

    run(main())


def test_the_providers_requests_have_a_histogram_for_each_operation(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", tier2=f"memory://{tmp_path.name}") as store:
            await worked(store)
            stats: Any = store.stats()
            families = parsed(store.metrics_text())
            put = stats["tier2"]["operations"]["put"]
            assert put["requests"] > 0
            assert value(families, "tier2_requests_total", operation="put") == put["requests"]
            assert value(families, "tier2_sent_bytes_total", operation="put") == put["bytes_sent"]
            assert value(families, "tier2_requests_in_flight", operation="put") == 0
            assert (
                value(families, "tier2_request_seconds_count", operation="put") == put["requests"]
            )
            assert (
                value(families, "tier2_request_seconds_bucket", operation="put", le="+Inf")
                == put["requests"]
            )
            assert value(families, "tier2_request_seconds_sum", operation="put") == put["seconds"]
            assert families[PREFIX + "tier2_request_seconds"].type == "histogram"

    run(main())


def test_buckets_add_up_and_errors_are_bounded() -> None:
    numbers = {
        "requests": 7,
        "in_flight": 1,
        "retries": 2,
        "hedges": 1,
        "hedges_won": 1,
        "bytes_sent": 10,
        "bytes_received": 0,
        "errors": {f"kind{number:03d}": 1000 - number for number in range(100)},
        "seconds": 99.5,
        "latency_counts": (1, 0, 2, *([0] * 11), 3),
    }
    snapshot = {
        "store_id": "s",
        "health": ["x"],
        "tier2": {"operations": {"get": numbers}},
        "longest_turn_s": {},
        "cluster": None,
        "wire": None,
        "controller": None,
        "container_states": {},
        "containers": {},
    }
    families = parsed(metrics.metrics_text(snapshot))
    assert value(families, "healthy") == 0
    assert value(families, "tier2_request_seconds_bucket", le="0.001") == 1
    assert value(families, "tier2_request_seconds_bucket", le="0.01") == 3
    assert value(families, "tier2_request_seconds_bucket", le="30.0") == 3
    assert value(families, "tier2_request_seconds_bucket", le="+Inf") == 6
    assert value(families, "tier2_errors_total", kind="kind000") == 1000
    assert value(families, "tier2_errors_total", kind="other") == sum(
        1000 - number for number in range(32, 100)
    )
    assert len(families[PREFIX + "tier2_errors"].samples) == metrics.ERROR_KINDS_MAX + 1


def test_many_containers_are_summed_up_and_of_some_numbers_the_largest_counts() -> None:
    count = metrics.CONTAINERS_MAX + 1
    containers = {
        number: {
            "state": "running" if number else "stopped",
            "segments": 2,
            "log": {"epoch": number},
            "processor": {"throttled_by": "cache" if number % 2 else "", "throttled_s": 0.5},
            "news": {"numbers": 1},
        }
        for number in range(count)
    }
    snapshot: dict[str, Any] = {
        "store_id": "s",
        "health": [],
        "tier2": {"operations": {}},
        "longest_turn_s": {},
        "cluster": None,
        "wire": None,
        "controller": None,
        "container_states": {
            number: {"state": "running" if number else "failed", "since_ms": 5, "cause": None}
            for number in range(count)
        },
        "containers": containers,
    }
    families = parsed(metrics.metrics_text(snapshot))
    assert value(families, "segments", container="all") == 2 * count
    assert value(families, "log_epoch", container="all") == count - 1
    assert value(families, "throttled_seconds_total", container="all") == count / 2
    assert value(families, "containers", state="failed") == 1
    assert value(families, "throttled_containers", by="cache") == count // 2
    assert value(families, "container_news_numbers", container="all") == count


def test_labels_are_of_small_sets(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await worked(store)
            for number in range(50):
                await store.create_segment(f"another/{number}")
            families = parsed(store.metrics_text())
            samples = [sample for family in families.values() for sample in family.samples]
            names = {name for sample in samples for name in sample.labels}
            assert names <= {
                "store_id",
                "container",
                "operation",
                "kind",
                "state",
                "by",
                "part",
                "le",
            }
            assert b"another/" not in store.metrics_text()
            assert len(samples) < 400

    run(main())


# --- nothing is forgotten -------------------------------------------------------------------------


def test_moves_have_a_sample_for_each_container_and_of_many_the_longest() -> None:
    def moved(count: int) -> dict[str, Metric]:
        times = {number: number / 4 for number in range(count)}
        cluster = {"arrival_s": times, "start_s": {}, "stop_s": {7: 0.5}}
        return {family.name: family for family in metrics._move_families(cluster)}

    few = moved(3)
    assert value(few, "cluster_container_arrival_seconds", container="2") == 0.5
    assert value(few, "cluster_container_stop_seconds", container="7") == 0.5
    count = metrics.CONTAINERS_MAX + 1
    assert value(moved(count), "cluster_container_arrival_seconds") == (count - 1) / 4


def shown(store: SegmentStore) -> Any:
    """What a host of a cluster counts."""
    numbers: Any = store.stats()
    return numbers["cluster"]


async def numbers_of_a_host(folder: Path) -> set[str]:
    """The numbers of a store that is a host of its cluster, as far as they are about that."""
    world = BookKeeperWorld()
    tier2 = (folder / "t2").as_uri()
    async with await world.open(folder / "s", tier2=tier2, serve=CLUSTER, wire_port=1) as store:
        await join_cluster(store._parts, Runtime())
        await until(lambda: shown(store)["starts"] == 1)
        assert store.served == [0]
        stats: Any = {"cluster": shown(store)}
        assert store.stats()["health"] == []
        return {path for path, _ in metrics._numbers(stats)}


def test_every_number_of_the_store_has_a_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(
            tmp_path / "s",
            scrub_bytes_per_s=1,
            wire_port=free_port(),
            controller_port=free_port(),
            archive=tmp_path / "a",
        ) as store:
            await worked(store)
            stats: Any = store.stats()
            of_containers = {
                path
                for numbers in stats["containers"].values()
                for path, _ in metrics._numbers(numbers)
            }
            assert of_containers == {row.path for row in CONTAINER_METRICS}
            of_operations = {
                path
                for numbers in stats["tier2"]["operations"].values()
                for path, _ in metrics._numbers(numbers)
            }
            assert {path for path in of_operations if not path.startswith("errors.")} == {
                *(row.path for row in OPERATION_METRICS),
                "seconds",
            }
            stats |= {"containers": {}, "tier2": {}, "longest_turn_s": {}}
            of_store = {path for path, _ in metrics._numbers(stats)}
            of_store |= await numbers_of_a_host(tmp_path / "host")
            assert of_store - LEFT_OUT == {row.path for row in STORE_METRICS}

    run(main())


def test_names_are_unique_and_in_base_units() -> None:
    names = [row.name for row in NAMES]
    assert len(set(names)) == len(names)
    for row in NAMES:
        assert not row.name.endswith(("_total", "_s", "_ms")), row
        assert row.help.endswith("."), row


def test_every_metric_stands_in_the_page() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for row in NAMES:
        ending = "_total" if row.kind == "counter" else ""
        assert f"| `{row.path}` | `{row.name}{ending}` | {row.help} |" in page, row


# --- the port -------------------------------------------------------------------------------------


def test_the_port_serves_what_the_store_counts(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        async with open_tiny(tmp_path / "s", metrics_port=port) as store:
            await worked(store)
            families = await scrape(port)
            assert value(families, "up") == 1
            before = value(families, "requests_committed_total", container="0")
            await store.append("a", b"more")
            assert (
                value(await scrape(port), "requests_committed_total", container="0") >= before + 1
            )
        with pytest.raises(OSError, match="refused"):
            await scrape(port)
        # The port is free for the next one at once.
        async with open_tiny(tmp_path / "s", metrics_port=port):
            assert value(await scrape(port), "up") == 1

    run(main())


def test_scrapes_at_once_are_all_answered(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        async with open_tiny(tmp_path / "s", metrics_port=port) as store:
            await worked(store)
            answers = await asyncio.gather(*(scrape(port) for _ in range(8)))
            assert [value(families, "up") for families in answers] == [1] * 8

    run(main())


def test_silent_connections_are_bounded_shut_no_client_out_and_end_with_the_store(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        port, before = free_port(), set(threading.enumerate())
        async with AsyncExitStack() as stack:
            async with open_tiny(tmp_path / "s", metrics_port=port):
                for _ in range(3 * metrics_server.CONNECTIONS_MAX):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    stack.callback(writer.close)
                assert value(await scrape(port), "up") == 1
                requests = [
                    one for one in threading.enumerate() if one.name.startswith("metrics-requests")
                ]
                assert 0 < len(requests) <= metrics_server.CONNECTIONS_MAX
            left = [
                one
                for one in threading.enumerate()
                if one not in before and one.name.startswith("metrics")
            ]
            for thread in left:
                thread.join(60)
                assert not thread.is_alive()

    run(main())


def test_a_port_in_use_is_a_wrong_setting_and_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(
                ConfigError, match=f"metrics_port: 127.0.0.1 port {port} cannot be opened"
            ):
                await open_tiny(tmp_path / "s", metrics_port=port)
        async with open_tiny(tmp_path / "s") as store:
            assert store.stats()["health"] == []

    run(main())


def test_a_host_that_is_none_is_a_wrong_setting(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="metrics_port"):
            await open_tiny(
                tmp_path / "s", metrics_port=free_port(), metrics_host="256.0.0.1.invalid"
            )
        with pytest.raises(ConfigError, match="metrics_port"):
            await open_tiny(tmp_path / "s", metrics_port=65536)

    run(main())


def test_a_loop_that_does_not_answer_shows_as_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late() -> Mapping[str, Any]:
        raise TimeoutError

    def gone() -> Mapping[str, Any]:
        raise RuntimeError("the event loop ended")

    for take in (late, gone):
        text = b"".join(line for line in _lines(take) if not line.startswith(b"#"))
        assert text == b"segmentstore_up 0.0\n"
    # The loop is held up by the very call that waits for the answer: it cannot come in time.
    monkeypatch.setattr(metrics_endpoint, "ANSWER_S", 0.001)

    async def main() -> None:
        port = free_port()
        async with open_tiny(tmp_path / "s", metrics_port=port):
            assert b"\nsegmentstore_up 0.0\n" in fetch(port)

    run(main())


def _lines(take: metrics_endpoint.Take) -> list[bytes]:
    return generate_latest(metrics.registry(take)).splitlines(keepends=True)


def test_a_program_that_forgets_to_close_still_ends(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, segmentstore\n"
        "async def main():\n"
        "    await segmentstore.open(sys.argv[1], metrics_port=int(sys.argv[2]))\n"
        "    raise SystemExit(7)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "s"), str(free_port())]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=120).returncode == 7


def test_who_does_not_watch_does_not_load_it(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, segmentstore\n"
        "async def main():\n"
        "    async with segmentstore.open(sys.argv[1]) as store:\n"
        "        store.stats()\n"
        "asyncio.run(main())\n"
        "print('prometheus_client' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "s")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=120)
    assert result.stdout == b"False\n"


def test_the_blocking_api_is_served_too(tmp_path: Path) -> None:
    port = free_port()
    with blocking.open(tmp_path / "s", metrics_port=port) as store:
        assert value(asyncio.run(scrape(port)), "up") == 1
        assert value(parsed(store.metrics_text()), "up") == 1
        assert store.collect_garbage().items == ()


def test_a_port_that_is_opened_after_the_store_was_closed_is_closed_too(tmp_path: Path) -> None:
    async def main() -> None:
        port, name = free_port(), f"segmentstore {tmp_path / 's'}"
        begun, go = asyncio.Event(), threading.Event()

        def executor(purpose: str, threads: int) -> Executor:
            made = thread_executor(purpose, threads)
            if purpose == "metrics":
                made.submit(go.wait)
                begun.set()
            return made

        async def opened() -> SegmentStore:
            runtime = Runtime(executor=executor)
            return await open_tiny(tmp_path / "s", runtime=runtime, metrics_port=port)

        opening = asyncio.ensure_future(opened())
        await begun.wait()
        watches = [task for task in asyncio.all_tasks() if task.get_name() == name]
        watches[0].cancel()
        await asyncio.wait(watches)
        go.set()
        store = await opening
        with pytest.raises(SegmentStoreError):
            await store.create_segment("a")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))

    run(main())
    assert not (tmp_path / "s" / STORE_SOCKET_NAME).exists()
