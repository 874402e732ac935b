"""Which files an ingest takes and which segment each becomes. Reads folders, opens no file.

Rules: a directory is walked in sorted order, regular files only, links not followed. A file named
directly is taken whatever it is reached by; the store's own folder is left out. Two files that
would become one segment are refused before anything is written.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from segmentstore.cli.exit_codes import CommandError
from segmentstore.contracts.segments import check_segment_name

WRITER_NAMESPACE = uuid.UUID("6f0e3d1c-3f5c-5f4e-9a53-2c1b7e0d4a11")
"""Never change it: a writer's id is what makes a second ingest go on where the first one was."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One file and the segment it becomes."""

    path: Path
    segment: str
    size: int
    """Bytes, when it was planned; for progress."""


def writer_id_for(segment: str) -> uuid.UUID:
    """The id of the exactly-once writer of a segment: the same in every run."""
    return uuid.uuid5(WRITER_NAMESPACE, segment)


def plan_files(
    paths: Sequence[Path],
    *,
    prefix: str = "",
    store: Path | None = None,
    suffix: str = "",
    without: Iterable[str] = (),
) -> list[PlannedFile]:
    """The files under `paths`, in the order given, each with its segment's name.

    The name is `prefix` + the path relative to the directory given, or + the name of the file
    given. In directories only names ending in `suffix` are taken, and directories called as in
    `without` are left out. Raises CommandError (a path that is not there, two files for one
    segment) and InvalidNameError.
    """
    excluded = frozenset(without)
    own = store.resolve() if store is not None else None
    planned: list[PlannedFile] = []
    taken: dict[str, Path] = {}
    for path in paths:
        for found, relative in _files(path, suffix, excluded, own):
            name = check_segment_name(prefix + relative)
            if name in taken:
                raise CommandError(f"{taken[name]} and {found} would both become segment {name!r}")
            taken[name] = found
            planned.append(PlannedFile(found, name, found.stat().st_size))
    return planned


def _files(
    path: Path, suffix: str, excluded: frozenset[str], own: Path | None
) -> Iterator[tuple[Path, str]]:
    if path.is_file():
        yield path, path.name
        return
    if not path.is_dir():
        raise CommandError(f"{path} is neither a file nor a directory")
    for folder, folders, names in os.walk(path, onerror=_refuse):
        here = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if name not in excluded and (own is None or (here / name).resolve() != own)
        )
        if own is not None and here.resolve() == own:
            folders.clear()
            continue
        for name in sorted(names):
            found = here / name
            if name.endswith(suffix) and not found.is_symlink() and found.is_file():
                yield found, PurePath(os.path.relpath(found, path)).as_posix()


def _refuse(error: OSError) -> None:
    raise CommandError(f"{error.filename} cannot be read: {error.strerror}") from error
