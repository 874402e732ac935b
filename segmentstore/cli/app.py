"""The application: the commands joined, and the one place where errors become exit codes."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, TextIO

import typer

import segmentstore
from segmentstore.cli import (
    archive_command,
    bench_command,
    bookkeeper_command,
    catalog_command,
    cluster_command,
    crashtest_command,
    data_commands,
    doctor_command,
    gc_command,
    health_command,
    ingest_command,
    inspection_commands,
    mailbox_command,
    output,
    past_commands,
    restore_command,
    scrub_command,
    segment_commands,
    serve_command,
    spark_command,
    users_command,
    watch_commands,
)
from segmentstore.cli.exit_codes import ExitCode, exit_code_for, sentence
from segmentstore.contracts.errors import (
    DeprecatedSettingWarning,
    SegmentStoreError,
    UnknownSettingWarning,
)
from segmentstore.settings_sources import deprecated_variables, unknown_variables

app = typer.Typer(
    name="segmentstore",
    epilog="Exit codes: 0 done, 1 refused, 2 usage, 3 corruption found, 4 store in use, 5 not "
    "available, 6 restored with losses.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(value: bool) -> None:
    if value:
        print(f"segmentstore {segmentstore.__version__}")
        raise typer.Exit(ExitCode.DONE)


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """A segment store: small appends durable at once, moved in the background to cheap storage."""


_DATA = "Data"
_SEGMENTS = "Segments"
_STORE = "The store"

app.command(name="ingest", rich_help_panel=_DATA)(ingest_command.ingest_command)
app.command(name="append", rich_help_panel=_DATA)(data_commands.append)
app.command(name="cat", rich_help_panel=_DATA)(data_commands.cat)
app.command(name="tail", rich_help_panel=_DATA)(watch_commands.tail)
app.command(name="ls", rich_help_panel=_SEGMENTS)(segment_commands.ls)
app.command(name="info", rich_help_panel=_SEGMENTS)(segment_commands.info)
app.command(name="create", rich_help_panel=_SEGMENTS)(segment_commands.create)
app.command(name="seal", rich_help_panel=_SEGMENTS)(segment_commands.seal)
app.command(name="truncate", rich_help_panel=_SEGMENTS)(segment_commands.truncate)
app.command(name="merge", rich_help_panel=_SEGMENTS)(segment_commands.merge)
app.command(name="rm", rich_help_panel=_SEGMENTS)(segment_commands.rm)
app.command(name="attrs", rich_help_panel=_SEGMENTS)(segment_commands.attrs)
app.command(name="stats", rich_help_panel=_STORE)(watch_commands.stats)
app.command(name="health", rich_help_panel=_STORE)(health_command.health_command)
app.command(name="top", rich_help_panel=_STORE)(watch_commands.top)
app.command(name="flush", rich_help_panel=_STORE)(segment_commands.flush)
app.command(name="checkpoint", rich_help_panel=_STORE)(segment_commands.checkpoint)
app.command(name="log", rich_help_panel=_STORE)(inspection_commands.log)
app.command(name="objects", rich_help_panel=_STORE)(inspection_commands.objects)
app.command(name="verify", rich_help_panel=_STORE)(inspection_commands.verify)
app.command(name="restore", rich_help_panel=_STORE)(restore_command.restore)
app.command(name="gc", rich_help_panel=_STORE)(gc_command.gc)
app.command(name="mailbox", rich_help_panel=_STORE)(mailbox_command.mailbox)
app.command(name="serve", rich_help_panel=_STORE)(serve_command.serve_command)
app.command(name="scrub", rich_help_panel=_STORE)(scrub_command.scrub_command)
app.command(name="doctor", rich_help_panel=_STORE)(doctor_command.doctor_command)
# What comes behind it is the jobs' own to read: tier2/spark/commands.py.
_SPARK = {"allow_interspersed_args": False, "ignore_unknown_options": True, "help_option_names": []}
app.command(name="spark", rich_help_panel=_STORE, context_settings=_SPARK)(spark_command.spark)
app.add_typer(archive_command.app, name="archive", rich_help_panel=_STORE)
archive_command.app.command(name="show")(past_commands.show)
archive_command.app.command(name="verify")(past_commands.verify)
archive_command.app.command(name="replay")(past_commands.replay)
app.add_typer(catalog_command.app, name="catalog", rich_help_panel=_STORE)
app.add_typer(cluster_command.app, name="cluster", rich_help_panel=_STORE)
app.add_typer(bookkeeper_command.app, name="bookkeeper", rich_help_panel=_STORE)
app.add_typer(users_command.app, name="users", rich_help_panel=_STORE)
app.command(name="bench", rich_help_panel=_STORE)(bench_command.bench_command)
app.command(name="crashtest", rich_help_panel=_STORE)(crashtest_command.crashtest_command)


@contextmanager
def _settings_warned_of() -> Iterator[None]:
    """Print a line for each warning about a setting, once in a command."""
    printed: set[str] = set()
    show_others = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, DeprecatedSettingWarning | UnknownSettingWarning):
            show_others(message, category, filename, lineno, file, line)
        elif str(message) not in printed:
            printed.add(str(message))
            output.print_error(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", DeprecatedSettingWarning)
        warnings.simplefilter("always", UnknownSettingWarning)
        warnings.showwarning = show
        # Not every command opens the store, which would say it.
        for unknown in unknown_variables(os.environ):
            warnings.warn(unknown, UnknownSettingWarning, stacklevel=2)
        for deprecated in deprecated_variables(os.environ):
            warnings.warn(deprecated, DeprecatedSettingWarning, stacklevel=2)
        yield


def run(arguments: Sequence[str] | None = None) -> None:
    """Run one command, by default of this process's arguments; always raises SystemExit with an
    ExitCode.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of folders may hold bytes that are not UTF-8; in JSON what is written for them is
        # the escape that is due.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _settings_warned_of():
            app(args=None if arguments is None else list(arguments), prog_name="segmentstore")
    except SegmentStoreError as error:
        output.print_error(sentence(error))
        sys.exit(exit_code_for(error))
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        output.abandon_stdout()
        sys.exit(ExitCode.DONE)
    except OSError as error:
        if error.filename is None:
            raise
        # Of a path that the command line itself went to; the engine's have a tier.
        output.print_error(sentence(error))
        sys.exit(ExitCode.UNAVAILABLE)
    sys.exit(ExitCode.DONE)
