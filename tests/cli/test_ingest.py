"""Files into segments, exactly once: cut anywhere and run again, no line is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import segmentstore as library
from segmentstore.cli import ingest as ingest_module
from segmentstore.cli.exit_codes import CommandError, ExitCode
from segmentstore.cli.ingest import IngestProgress, IngestReport, ingest
from segmentstore.cli.ingest_plan import plan_files, writer_id_for
from tests.cli.shell import segmentstore, start

TEXT = {
    "a.txt": b"one\ntwo\n",
    "deep/b.txt": b"no newline at the end",
    "empty.txt": b"",
    "c.bin": b"\x00\n\r\n\xff",
}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def contents(store: Path) -> dict[str, bytes]:
    async def run() -> dict[str, bytes]:
        async with library.open(store) as opened:
            names = [info.name async for info in opened.list_segments()]
            return {
                name: b"".join([chunk async for chunk in opened.reader(name)]) for name in names
            }

    return asyncio.run(run())


def run_ingest(store: Path, paths: Sequence[Path], writers: int = 3) -> IngestReport:
    async def run() -> IngestReport:
        async with library.open(store) as opened:
            return await ingest(opened, plan_files(paths), writers=writers)

    return asyncio.run(run())


def test_each_file_becomes_a_segment_byte_for_byte(tmp_path: Path) -> None:
    files = write(tmp_path / "in", TEXT)
    said = segmentstore("ingest", tmp_path / "s", files, "--prefix", "p/", "--json").json()
    assert (said["files"], said["lines"], said["bytes"]) == (4, 6, sum(map(len, TEXT.values())))
    assert contents(tmp_path / "s") == {f"p/{name}": data for name, data in TEXT.items()}


def test_a_second_run_adds_nothing(tmp_path: Path) -> None:
    files = write(tmp_path / "in", TEXT)
    run_ingest(tmp_path / "s", [files])
    again = run_ingest(tmp_path / "s", [files])
    assert (again.files, again.lines, again.lines_before) == (4, 0, 6)
    assert contents(tmp_path / "s") == TEXT


def test_a_file_that_has_grown_is_continued(tmp_path: Path) -> None:
    files = write(tmp_path / "in", {"a": b"one\n"})
    run_ingest(tmp_path / "s", [files])
    write(files, {"a": b"one\ntwo\nthree"})
    report = run_ingest(tmp_path / "s", [files])
    assert (report.lines_before, report.lines) == (1, 2)
    assert contents(tmp_path / "s") == {"a": b"one\ntwo\nthree"}


@pytest.mark.parametrize(
    "changed", [b"one\n", b"one\ntwo!\nthree\n", b""], ids=["shorter", "longer line", "empty"]
)
def test_a_file_whose_earlier_lines_changed_is_refused(tmp_path: Path, changed: bytes) -> None:
    files = write(tmp_path / "in", {"a": b"one\ntwo\n"})
    run_ingest(tmp_path / "s", [files])
    write(files, {"a": changed})
    refused = segmentstore("ingest", tmp_path / "s", files)
    assert refused.code == ExitCode.REFUSED
    assert "the file has changed" in refused.err
    assert contents(tmp_path / "s") == {"a": b"one\ntwo\n"}


def test_a_segment_written_to_by_another_is_refused(tmp_path: Path) -> None:
    files = write(tmp_path / "in", {"a": b"one\n"})
    run_ingest(tmp_path / "s", [files])
    segmentstore("append", tmp_path / "s", "a", stdin=b"stray\n")
    with pytest.raises(CommandError, match="written to by something else"):
        run_ingest(tmp_path / "s", [files])


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lines=st.lists(st.sampled_from([b"\n", b"x\n", b"longer line\n"]), max_size=12), data=st.data()
)
def test_any_part_of_an_earlier_run_is_continued(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    done = data.draw(st.integers(0, len(lines)))
    files = write(folder / "in", {"a": b"".join(lines)})

    async def run() -> bytes:
        async with library.open(
            folder / "s", tier1="memory", tier2="memory://cut", shared_tier2=True
        ) as store:
            await store.create_segment("a")
            async with store.writer("a", writer_id_for("a")) as writer:
                for line in lines[:done]:
                    await writer.append(line)
            report = await ingest(store, plan_files([files]))
            assert (report.lines_before, report.lines) == (done, len(lines) - done)
            return b"".join([chunk async for chunk in store.reader("a")])

    assert asyncio.run(run()) == b"".join(lines)


def test_a_small_window_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "OUTSTANDING_LINES_MAX", 3)
    monkeypatch.setattr(ingest_module, "OUTSTANDING_BYTES_MAX", 16)
    files = {
        f"f{index}": b"".join(b"%d %s\n" % (n, b"." * (n % 40)) for n in range(200))
        for index in range(5)
    }
    run_ingest(tmp_path / "s", [write(tmp_path / "in", files)])
    assert contents(tmp_path / "s") == files


def test_progress_only_grows_and_ends_at_the_report(tmp_path: Path) -> None:
    files = write(tmp_path / "in", {f"f{index}": b"line\n" * 500 for index in range(4)})
    seen: list[tuple[int, int]] = []

    def note(progress: IngestProgress) -> None:
        seen.append((progress.files, progress.lines))

    async def run() -> IngestReport:
        async with library.open(tmp_path / "s") as store:
            return await ingest(store, plan_files([files]), on_progress=note)

    report = asyncio.run(run())
    assert seen == sorted(seen)
    assert seen[-1] == (report.files, report.lines) == (4, 2000)


def test_a_line_no_append_may_hold_is_named(tmp_path: Path) -> None:
    files = write(tmp_path / "in", {"a": b"short\n" + b"x" * 20 + b"\n"})

    async def run() -> None:
        async with library.open(tmp_path / "s", append_bytes_max=10) as store:
            await ingest(store, plan_files([files]))

    with pytest.raises(
        CommandError, match=r"a, line 2: an append of 21 bytes is over the limit of 10"
    ):
        asyncio.run(run())


def test_paths_that_are_not_there_are_a_usage_error(tmp_path: Path) -> None:
    assert segmentstore("ingest", tmp_path / "s", tmp_path / "absent").code == ExitCode.USAGE
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, ExitCode.INTERRUPTED)]
)
def test_interrupted_and_run_again_it_goes_on(
    tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    body = b"".join(b"line %d\n" % number for number in range(20_000))
    plain = tmp_path / "plain"
    plain.write_bytes(body)
    child = start("ingest", tmp_path / "s", plain, "--json")
    # The store's file is there once the child has the store: from then on it is somewhere in the
    # work, or done.
    while not (tmp_path / "s" / "store.toml").exists() and child.poll() is None:
        os.sched_yield()
    child.send_signal(sent)
    child.communicate()
    assert child.returncode in {code, ExitCode.DONE}
    report = run_ingest(tmp_path / "s", [plain])
    assert report.lines + report.lines_before == 20_000
    assert contents(tmp_path / "s") == {"plain": body}
