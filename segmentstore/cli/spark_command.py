"""`segmentstore spark VERB STORE ...`: the Spark jobs (tier2/spark), on a store's folder as well as
on a Tier-2 URL.

The jobs see Tier 2 alone. Only the engine can do what is here. It finds a store's Tier 2. Of a
store that no process has open, it exports the catalog before a job and takes up the job's requests
to an owner. Of a store that is open nothing is touched: its owner answers the job.
"""

from __future__ import annotations

import importlib.util
from argparse import Namespace
from typing import Annotated, NamedTuple

import typer

from segmentstore.cli import output
from segmentstore.cli.catalog_command import export_stopped
from segmentstore.cli.exit_codes import CommandError, sentence
from segmentstore.cli.stores import refuse_cluster, require_store
from segmentstore.cli.temporary_owner import TemporaryOwner
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.runtime import Runtime
from segmentstore.settings_sources import merge_settings
from segmentstore.store_folder import read_store_file, tier2_url

UNDECIDED = 2
"""As the jobs have it (tier2/spark/common/command_options.py): schedulers distinguish a failure
from findings by it.
"""


class _Store(NamedTuple):
    """A store whose folder was named."""

    location: str
    store_id: str
    url: str
    """Of its Tier 2; it may hold a secret."""
    containers: range


def spark(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VERB STORE [OPTIONS]", help="`segmentstore spark --help` has the verbs."
        ),
    ] = None,
) -> None:
    """Check (`reconcile`) or rewrite (`compact`) what is in Tier 2 with Spark.

    STORE is a store's folder or a Tier-2 URL.

    Exit codes are the jobs' own: 0 nothing found or all done, 1 findings, 2 undecided.
    """
    try:
        code = run_verb(arguments or ["--help"])
    finally:
        end_session()
    raise typer.Exit(code)


def run_verb(arguments: list[str]) -> int:
    """Run a verb in this process; its exit code.

    The session stays for the next verb. Usage errors raise SystemExit.
    """
    try:
        require_extra("spark", "segmentstore spark")
        # Not at the top: no other command pays for it, nor needs it to be installed.
        from tier2.spark import commands  # noqa: PLC0415

        parsed = commands.parse(arguments, program="segmentstore spark")
        location = getattr(parsed, "tier2_url", None)
        if location is not None:
            refuse_cluster(location, "jobs work on Tier 2: name its URL, or the folder of a host")
        if location is None or "://" in location:
            return commands.execute(parsed)
        store = _find(location)
        parsed.tier2_url, parsed.store_folder = store.url, store.location
        parsed.store_id = getattr(parsed, "store_id", None) or store.store_id
        if export_stopped(location) is None:
            return commands.execute(parsed)
        parsed.stopped = True
        if not _asks_owners(parsed):
            return commands.execute(parsed)
        with TemporaryOwner(store.location, store.url, store.containers) as owner:
            code = commands.execute(parsed)
        if owner.failure is not None:
            output.print_error(f"no process could answer for {location}: {sentence(owner.failure)}")
        return code
    except SegmentStoreError as error:
        output.print_error(sentence(error))
        return UNDECIDED


def end_session() -> None:
    """Stop the session that verbs of this process have made, if any did."""
    if importlib.util.find_spec("pyspark") is not None:
        from tier2.spark import commands  # noqa: PLC0415

        commands.end_session()


def _find(location: str) -> _Store:
    require_store(location)
    file = read_store_file(location, Runtime())
    assert file is not None, location
    config = merge_settings({}, {}, file.settings, existing=True)
    url = tier2_url(location, config)
    if url.startswith("memory://"):
        raise CommandError(
            f"the objects of {location} are in the memory of a process ({url}): no job can see them"
        )
    return _Store(location, file.store_id, url, range(config.containers))


def _asks_owners(parsed: Namespace) -> bool:
    """Whether the verb, so called, puts messages to owners that change something."""
    if parsed.verb == "compact":
        return not parsed.dry_run
    return bool(getattr(parsed, "execute", False))
