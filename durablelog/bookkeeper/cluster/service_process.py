"""ServiceProcess: one server process that may outlive the program that started it, known by a
record in its folder.

Rules of this file:

- the record is written by the process itself before it becomes the server, so that no server ever
  runs without a record. It holds what the kernel says of the process (its id and its start), and
  the boot;
- a signal goes only to a process that is the recorded one, by a descriptor that cannot come to mean
  another. An id that was reused meanwhile is never signalled;
- a server works in its folder. So the record in a copy of that folder means no process: the copy's
  servers are none of the original's;
- it is no child of the program that started it, and has a session of its own: neither Ctrl-C nor
  the end of a terminal reaches it.
"""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

_STOP_S: Final = 10.0
_OUTPUT_MAX: Final = 8000
_LAUNCH_S: Final = 30.0
_TROUBLES_MAX: Final = 6
_ERROR: Final = re.compile(r" (?:ERROR|FATAL) |^[\w.$]+(?:Exception|Error)\b")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_IN_BACKGROUND: Final = '/bin/sh -c "$0" service "$@" &'
# Standard output stays the caller's pipe until the record is there: its end says so.
_BECOME_SERVER: Final = """
cat "/proc/$$/stat" "$3" >"$1.new" && mv "$1.new" "$1" || exit 1
exec </dev/null >"$2" 2>&1
shift 3
exec "$@"
"""


class _Seen(NamedTuple):
    """A process as the kernel reports it."""

    process: int
    state: str
    began: str
    """In ticks since the machine booted."""
    threads: int

    @property
    def ended(self) -> bool:
        """Its first thread may end before the others, which still hold its files and ports."""
        return self.state in {"Z", "X", "x"} and self.threads <= 1


class ServiceProcess:
    """A server process and its folder, whatever process started it.

    Not safe for use by several threads at once.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        """For people."""
        self.folder = folder.absolute()
        self._record = self.folder / "process"
        self._logged_before = 0
        """Bytes of its log when this object launched it."""

    @property
    def process_id(self) -> int | None:
        """Its id, if it is alive."""
        seen = self._seen()
        return seen.process if seen is not None else None

    @property
    def paused(self) -> bool:
        """Whether it is alive and stopped by SIGSTOP."""
        seen = self._seen()
        return seen is not None and seen.state in {"T", "t"}

    def launch(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start it; it runs on when this program ends. Must not be running. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._record.unlink(missing_ok=True)
        if self._output.exists():
            self._output.replace(self._output.with_suffix(".before"))
        self._logged_before = self.log_file.stat().st_size if self.log_file.exists() else 0
        ended = subprocess.run(
            [
                "/bin/sh",
                "-c",
                _IN_BACKGROUND,
                _BECOME_SERVER,
                self._record,
                self._output,
                _BOOT,
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            timeout=_LAUNCH_S,
            check=False,
        )
        if not self._record.exists():
            raise OSError(
                f"{self.name} could not be started: {ended.stdout.decode(errors='replace').strip()}"
            )

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal; False if it is not there."""
        with self._held() as descriptor:
            return descriptor is not None and _signal(descriptor, number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it: by this signal, or after 10 s by SIGKILL. Returns when it has ended."""
        with self._held() as descriptor:
            if descriptor is not None:
                _signal(descriptor, number)
                # A paused process heeds nothing but SIGKILL.
                _signal(descriptor, signal.SIGCONT)
                if not _ends(descriptor, _STOP_S):
                    _signal(descriptor, signal.SIGKILL)
                    _ends(descriptor, _STOP_S)
        self._record.unlink(missing_ok=True)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended; waits for that, but not longer than so."""
        with self._held() as descriptor:
            return descriptor is None or _ends(descriptor, seconds)

    def limit_file_size(self, size: int) -> None:
        """From now on no file of it may grow beyond `size` bytes: writes fail as on a full disk."""
        process = self.process_id
        if process is None:
            raise ProcessLookupError(f"{self.name} does not run")
        _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (size, hard))

    def output(self) -> str:
        """The end of its log, and of what it wrote elsewhere in this lifetime."""
        told = (_end_of(self.log_file), _end_of(self._output))
        return "\n".join(part for part in told if part)

    def trouble(self) -> str:
        """What it says went wrong since this object launched it, shorter than `output`, which it is
        if it says nothing.
        """
        logged = _end_of(self.log_file, self._logged_before).splitlines()
        lines = [line for line in logged if _ERROR.search(line)]
        lines += [
            line
            for line in _end_of(self._output).splitlines()
            if line and not line.startswith("\t")
        ]
        return "\n".join(lines[-_TROUBLES_MAX:]) or self.output()

    @property
    def log_file(self) -> Path:
        """Where its logger writes."""
        return self.folder / "server.log"

    @property
    def _output(self) -> Path:
        return self.folder / "output.log"

    def _seen(self) -> _Seen | None:
        """The process if it is alive and the one that was recorded."""
        try:
            recorded, boot = self._record.read_text(encoding="utf-8").splitlines()
            wanted = _parsed(recorded)
            if boot != _BOOT.read_text(encoding="ascii").strip():
                return None
            seen = _parsed(Path(f"/proc/{wanted.process}/stat").read_text(encoding="utf-8"))
        except (OSError, ValueError, IndexError):
            return None
        if seen.began != wanted.began or seen.ended or self._works_elsewhere(seen.process):
            return None
        return seen

    def _works_elsewhere(self, process_id: int) -> bool:
        """Whether a process is certainly not the one of this folder, but of what this is a copy
        of.
        """
        try:
            return not self.folder.samefile(Path(f"/proc/{process_id}/cwd"))
        except OSError:
            return False  # of another user, or its first thread has ended: the record counts

    @contextmanager
    def _held(self) -> Iterator[int | None]:
        """A descriptor of the process, None if it is not alive.

        Checked after it was taken: then it is the one meant.
        """
        process = self.process_id
        descriptor = None
        if process is not None:
            try:
                descriptor = os.pidfd_open(process)
            except ProcessLookupError:
                pass  # it was faster
        try:
            yield descriptor if self.process_id == process else None
        finally:
            if descriptor is not None:
                os.close(descriptor)


def wait_for_any_end(processes: Sequence[ServiceProcess], seconds: float) -> None:
    """Return when one of them has ended, or after so long."""
    descriptors = []
    try:
        for process in processes:
            process_id = process.process_id
            if process_id is None:
                return
            try:
                descriptors.append(os.pidfd_open(process_id))
            except ProcessLookupError:
                return
        select.select(descriptors, [], [], seconds)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _end_of(path: Path, start: int = 0) -> str:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # Shorter than it was: it was begun anew.
            file.seek(max(size - _OUTPUT_MAX, start if start <= size else 0))
            return file.read().decode(errors="replace").strip()
    except FileNotFoundError:
        return ""


def _signal(descriptor: int, number: signal.Signals) -> bool:
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    return True


def _ends(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def _parsed(line: str) -> _Seen:
    """The line of /proc/<id>/stat; the name in it may hold anything, brackets too."""
    words = line.rpartition(")")[2].split()
    return _Seen(int(line.split(" ", 1)[0]), words[0], words[19], int(words[17]))
