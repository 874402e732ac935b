"""The verbs of the Spark jobs: one parser for `python -m tier2.spark`, spark-submit's launcher and
`segmentstore spark`.

Rules of this file:

- a verb's module gives `add_parser(subparsers)` and `run(arguments) -> int`, and loads pyspark when
  it runs;
- what breaks ends with 2, never with 1: a scheduler must not take a failure for findings;
- a verb runs in a thread of its own, so that Ctrl-C can cancel its query from this one, and the
  shell gets 130;
- where the user names no master, it is this machine: set here, in the environment, before
  the first session.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.visible import visible
from tier2.object_storage import ObjectStorageError
from tier2.spark.common.command_options import Exit

VERBS: Final = {
    "reconcile": "tier2.spark.reconcile.command",
    "compact": "tier2.spark.compact.command",
    "archive": "tier2.spark.common.archive_command",
}
"""The verbs, and the module of each: `add_parser` and `run`."""

LOCAL_MASTER: Final = "local[*,4]"
"""All cores, and as many attempts of a task as on a cluster; `local[*]` has one."""

_LOOPBACK: Final = "127.0.0.1"
_LOCAL: Final = (
    f"spark.driver.host={_LOOPBACK}",
    f"spark.driver.bindAddress={_LOOPBACK}",
    "spark.ui.enabled=false",
    "spark.ui.showConsoleProgress=false",
    "spark.log.level=ERROR",
)
"""Of a master that is this process: no other machine reaches it, no web page is served, and our own
progress is shown.
"""
_CHECK_S: Final = 1.0
_INTERRUPTED_S: Final = 20.0
"""How long a cancelled verb may take to end before it is left behind."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb, by default of this process's arguments, and end the session; the exit code
    (`Exit`).

    Usage errors and --help raise SystemExit.
    """
    try:
        return execute(parse(arguments))
    finally:
        end_session()


def end_session() -> None:
    """Stop the session of this process, if verbs have made one."""
    _with_session("stop_sessions")


def parse(
    arguments: Sequence[str] | None = None, *, program: str = "python -m tier2.spark"
) -> argparse.Namespace:
    """What `execute` takes; with `tier2_url` if the verb works on a store.

    Usage errors and --help raise SystemExit.
    """
    return build_parser(program).parse_args(arguments)


def execute(arguments: argparse.Namespace) -> int:
    """Run the verb; the exit code (`Exit`).

    Whatever breaks is reported on standard error. A session stays for the next verb.
    """
    choose_master(arguments.master)
    try:
        return _run_interruptibly(lambda: int(arguments.run(arguments)))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return Exit.INTERRUPTED
    except (SegmentStoreError, ObjectStorageError) as error:
        sys.stderr.write(visible(" ".join(str(error).split())) + "\n")
        return Exit.UNDECIDED
    except Exception as error:  # noqa: BLE001 - an uncaught error would end with 1, as findings do
        ended = _ended_session()
        if ended is None:
            traceback.print_exception(error)
        else:
            sys.stderr.write(f"{ended}\n")
        return Exit.UNDECIDED


def build_parser(program: str) -> argparse.ArgumentParser:
    """The parser of all verbs; what it gives has the `verb`, its `run`, and the `master` if the
    user named one.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        description="Check, rewrite and pack for bulk work: Spark jobs over a store's Tier 2.",
        epilog="Exit codes: 0 nothing found or all done, 1 findings, 2 undecided (and "
        "usage), 130 interrupted.",
    )
    parser.add_argument(
        "--master",
        help="of Spark, e.g. spark://host:7077, or sc://host:15002 for Connect; by default "
        "what SPARK_REMOTE, "
        f"PYSPARK_SUBMIT_ARGS, MASTER or spark-defaults.conf say, else {LOCAL_MASTER}",
    )
    subparsers = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    for module_name in VERBS.values():
        module = importlib.import_module(module_name)
        before = set(subparsers.choices)
        module.add_parser(subparsers)
        for name in set(subparsers.choices) - before:
            subparsers.choices[name].set_defaults(run=module.run)
    return parser


def choose_master(said: str | None) -> None:
    """Set Spark's master in the environment, if the user's settings do not.

    Raises SystemExit(2) if it is too late to say so.
    """
    environment = os.environ
    if "PYSPARK_GATEWAY_PORT" in environment:
        if said is not None:
            sys.stderr.write("--master is for spark-submit here, not for the verb\n")
            raise SystemExit(Exit.UNDECIDED)
        return
    said = said or environment.get("SPARK_MASTER")
    if said is not None and said.startswith("sc://"):
        environment["SPARK_REMOTE"] = said
    elif said is not None:
        environment.pop("SPARK_REMOTE", None)
        environment["PYSPARK_SUBMIT_ARGS"] = f"--master {said} pyspark-shell"
    elif not _is_said():
        environment.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        options = " ".join(f"--conf {setting}" for setting in _LOCAL)
        environment["PYSPARK_SUBMIT_ARGS"] = f"--master {LOCAL_MASTER} {options} pyspark-shell"


def _is_said() -> bool:
    if {"SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "MASTER"} & set(os.environ):
        return True
    folders = (
        os.environ.get("SPARK_CONF_DIR"),
        os.path.join(os.environ.get("SPARK_HOME", ""), "conf"),
    )
    return any(folder and (Path(folder) / "spark-defaults.conf").is_file() for folder in folders)


def _run_interruptibly(verb: Callable[[], int]) -> int:
    """What `verb` gives or raises.

    Ctrl-C cancels its queries; it has 20 s to end, and KeyboardInterrupt is raised.
    """
    ended = threading.Event()
    codes: list[int] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            codes.append(verb())
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            errors.append(error)
        finally:
            ended.set()

    # A daemon: what does not heed the cancelling must not keep the process.
    thread = threading.Thread(target=work, name="spark-verb", daemon=True)
    try:
        thread.start()
        # Not for ever at a time: a signal that another thread took does not wake this one.
        while not ended.wait(_CHECK_S):
            pass
    except KeyboardInterrupt:
        _with_session("interrupt_sessions")
        if thread.ident is not None:
            ended.wait(_INTERRUPTED_S)
        raise
    if errors:
        raise errors[0]
    return codes[0]


def _ended_session() -> SegmentStoreError | None:
    """Why everything failed, if the Java process of this process's session has ended."""
    session = sys.modules.get("tier2.spark.common.session")
    return (
        session.SparkEndedError() if session is not None and session.has_ended(_CHECK_S) else None
    )


def _with_session(action: str) -> None:
    """Call a function of `session` that ends something, if a session was ever asked for."""
    session = sys.modules.get("tier2.spark.common.session")
    if session is None:
        return
    try:
        getattr(session, action)()
    except Exception:  # noqa: BLE001
        # The session is broken or just being made: there is nothing to end then.
        traceback.print_exc()
