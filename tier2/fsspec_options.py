"""Options of fsspec's file systems: which there are, and those whose value is in a file.

An option `<secret>_file=/path` is ours, for every file system: the first line of the file is the
value of `<secret>`. It is read at each connection, so a secret that was exchanged needs no restart.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.urls import FILE_SUFFIX, is_secret_name

SFTP_SCHEMES: Final = frozenset(("sftp", "ssh"))

SECRET_BYTES_MAX: Final = 4096
_NOT_TEXT: Final = frozenset(
    (
        "self",
        "hostname",
        "pkey",
        "sock",
        "disabled_algorithms",
        "transport_factory",
        "auth_strategy",
    )
)
"""What paramiko takes and no URL can say."""
_OF_SFTP: Final = frozenset(("known_hosts", "host_key_policy", "temppath", "host"))
_FSSPECS_OWN: Final = "fsspec.implementations."


class SecretFileError(Exception):
    """The file of a secret cannot be read, or holds none; says nothing of what was read."""


def known_options(
    scheme: str, file_system: type[Any], *, strict: bool = True
) -> frozenset[str] | None:
    """The options it takes; None where it takes any, or where they cannot be known.

    With `strict` also where it passes over unknown ones in silence, as those of fsspec itself do.
    """
    if scheme in SFTP_SCHEMES:
        # Not at the top: it is large. fsspec hands every option on to it.
        import paramiko  # noqa: PLC0415

        return (
            frozenset(inspect.signature(paramiko.SSHClient.connect).parameters) - _NOT_TEXT
            | _OF_SFTP
        )
    parameters = inspect.signature(file_system.__init__).parameters.values()
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    drops_others = file_system.__module__.startswith(_FSSPECS_OWN) and "__init__" in vars(
        file_system
    )
    if takes_any and (strict or not drops_others):
        return None
    taken = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(each.name for each in parameters if each.kind in taken and each.name != "self")


def secret_of_file(key: str, known: frozenset[str] | None) -> str | None:
    """The option whose value is in the file that `key` names; None if `key` names no such file."""
    name = key.removesuffix(FILE_SUFFIX)
    if name == key or not is_secret_name(name):
        return None
    # Its own option, or neither is one.
    return None if known is not None and (key in known or name not in known) else name


def with_secrets(
    options: Mapping[str, Any], files: Mapping[str, str], runtime: Runtime
) -> dict[str, Any]:
    """The options and what is in `files` (option to path) now. Blocking. Raises SecretFileError."""
    return {**options, **{name: _first_line(name, path, runtime) for name, path in files.items()}}


def _first_line(name: str, path: str, runtime: Runtime) -> str:
    try:
        file = runtime.disk.open(path)
        try:
            data = file.pread(0, min(file.size(), SECRET_BYTES_MAX + 1))
        finally:
            file.close()
    except OSError as error:
        raise SecretFileError(f"{name}{FILE_SUFFIX}: {path}: {error.strerror or error}") from None
    line = data.partition(b"\n")[0].removesuffix(b"\r")
    try:
        text = line.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or len(line) > SECRET_BYTES_MAX:
        detail = f"does not begin with a line of 1 to {SECRET_BYTES_MAX} bytes of UTF-8"
        raise SecretFileError(f"{name}{FILE_SUFFIX}: {path} {detail}")
    return text
