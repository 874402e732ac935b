"""The command line `segmentstore`: what a person needs to run, look into and check a store.

Split by kind of knowledge: `app` joins the commands, `exit_codes` says what an error means to the shell,
`output` how things are shown, `stores` how a store is opened; the rest are the commands themselves.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line with the arguments of this process; ends it with one of the codes of `exit_codes`."""
    # Not at the top: `import segmentstore.cli` stays light, and typer is loaded only to be used.
    from segmentstore.cli.app import run  # noqa: PLC0415

    run()
