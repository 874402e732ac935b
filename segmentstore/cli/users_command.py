"""`segmentstore users`: the file with the users of the Controller."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.visible import visible
from segmentstore.users import SALT_BYTES, PasswordHash, parse_users, user_line

app = typer.Typer(
    help="The file with the users of the Controller (the setting users_file).",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """With one command alone typer would leave out its name."""


@app.command()
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Created if it is not there.")],
    name: Annotated[str, typer.Argument(metavar="NAME")],
    permissions: Annotated[
        str,
        typer.Argument(
            metavar="PERMISSIONS", help="As prn::/scope:s/*,READ_UPDATE;prn::/scope:t,READ"
        ),
    ],
) -> None:
    """Add a user, or replace the one of that name. The password is the first line of the standard
    input.

    A store that is open takes the change for its next calls.
    """
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise ConfigError("users_file", "the standard input has no password")
    runtime = Runtime()
    hashed = PasswordHash.of(password, runtime.random.randbytes(SALT_BYTES))
    line = user_line(name, hashed, permissions)
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        is_known = name in parse_users(text)
        others = [each for each in text.splitlines() if each.partition(":")[0] != name]
        _replace(file, "".join(f"{each}\n" for each in (*others, line)))
    except OSError as error:
        raise ConfigError("users_file", f"{visible(str(file))}: {error.strerror}") from error
    print(f"{'replaced' if is_known else 'added'} {visible(name)}")


def _replace(file: Path, text: str) -> None:
    """The whole file at once, for its owner alone."""
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600, exist_ok=False)
    new.write_text(text, encoding="utf-8")
    new.replace(file)
