"""What people see of a URL: never a password, never a key."""

from __future__ import annotations

import dataclasses
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.urls import has_secret, redacted
from tests.tier2.spark.reconcile_dry import LocalSpark
from tier2.spark.commands import parse
from tier2.spark.common.command_options import Exit
from tier2.spark.compact import report as compaction_report
from tier2.spark.compact.job import plan_compaction
from tier2.spark.reconcile import report as reconcile_report
from tier2.spark.reconcile.inventory import open_inventory
from tier2.spark.reconcile.inventory_rows import InventoryError, key_rules
from tier2.spark.reconcile.job import reconcile
from tier2.spark.source.options import parse_options


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sftp://bob:s3cret@h/data/", "sftp://bob:***@h/data/"),
        ("sftp://bob:s3:cr@t@h:22/data/", "sftp://bob:***@h:22/data/"),
        ("sftp:/bob:s3cret@h/data", "sftp:/bob:***@h/data"),
        ("sftp://bob@h:22/data", "sftp://bob@h:22/data"),
        ("abfs://c@account/data?account_key=s3cret", "abfs://c@account/data?account_key=***"),
        ("/data/a:b@c?x", "/data/a:b@c?x"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
        ("file:///a:b@c", "file:///a:b@c"),
        ("sftp:///bob:s3cret@h/data", "sftp:///bob:***@h/data"),
        ("sftp://bob:s3/cr?et@h/data", "sftp://bob:***@h/data"),
        (
            "sftp://bob@[::1]:22/a@b?key_filename=/k&known_hosts=/h",
            "sftp://bob@[::1]:22/a@b?key_filename=/k&known_hosts=/h",
        ),
        ("bookkeeper://a:2181,b:2181/p?x=c@d", "bookkeeper://a:2181,b:2181/p?x=c@d"),
        ("gs://bucket/p?token=/keys/k.json", "gs://bucket/p?token=/keys/k.json"),
        ("gs://bucket/p?token=anon", "gs://bucket/p?token=anon"),
        (
            "x://h/p?look_for_keys=false&p%61ssword=s3cret",
            "x://h/p?look_for_keys=false&p%61ssword=***",
        ),
        (
            "s3://b/p?endpoint_url=http%3A%2F%2Fme%3As3cret%40h",
            "s3://b/p?endpoint_url=http://me:***@h",
        ),
        ("simplecache::sftp://bob:s3cret@h/data", "simplecache::sftp://bob:***@h/data"),
        ("simplecache::sftp://bob@h:22/data", "simplecache::sftp://bob@h:22/data"),
        ("ab/00000000/x", "ab/00000000/x"),
    ],
)
def test_password_and_keys_are_taken_away_and_nothing_else(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert has_secret(text) == (text != shown)


def test_keys_of_a_place_begin_with_its_url_without_the_query() -> None:
    assert key_rules("abfs://c@account/data/?account_key=s3cret").prefixes == (
        "abfs://c@account/data/",
        "",
    )
    assert "s3cret" in key_rules("sftp://bob:s3cret@h/data").prefixes[0]


def test_a_listing_that_is_not_there_is_named_without_its_secrets() -> None:
    with pytest.raises(InventoryError) as caught:
        open_inventory("sftp://bob:s3cret@h/x.csv?key=s3cret", "memory://x")
    assert "sftp://bob:***@h/x.csv?key=***" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_mistyped_url_of_the_data_source_is_named_without_its_secrets() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options({"path": "sftp:/bob:s3cret@h/data", "segment": "x"}, streaming=False)
    assert "s3cret" not in str(caught.value)


class Guarded(MemoryFileSystem):  # type: ignore[misc]
    """Files in memory, of a scheme whose URLs have a user and a password."""

    protocol = "guarded"

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        host, slash, rest = path.removeprefix("guarded://").partition("/")
        return super()._strip_protocol(f"/{rest}" if slash and "@" in host else path)


@pytest.fixture
def guarded() -> str:
    fsspec.register_implementation("guarded", Guarded, clobber=True)
    return "guarded://bob:s3cret@h/data?token=s3cret"


def test_an_option_with_a_secret_is_refused_for_plans_show_options() -> None:
    with pytest.raises(ConfigError, match="password_file=") as caught:
        parse_options({"tier2": "sftp://bob:s3cret@h/data", "segment": "x"}, streaming=False)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("verb", ["reconcile", "compact"])
def test_a_command_line_of_a_job_with_a_secret_is_refused_for_every_user_sees_it(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([verb, "sftp://bob:s3cret@h/data"])
    assert ended.value.code == Exit.UNDECIDED
    said = capsys.readouterr().err
    assert "password_file=" in said
    assert "s3cret" not in said


def test_a_compaction_does_not_show_the_password(guarded: str) -> None:
    planned = plan_compaction(guarded, snapshots="newest")
    assert planned.summary.url == "guarded://bob@h/data"
    assert "s3cret" not in compaction_report.summary_text(planned.summary, planned.rows)


def test_a_reconciliation_does_not_show_the_password(guarded: str) -> None:
    result = reconcile(LocalSpark().as_spark(), guarded, snapshots="newest")
    assert result.summary.url == "guarded://bob@h/data"
    assert "s3cret" not in str(dataclasses.asdict(result.summary))
    assert "s3cret" not in str(reconcile_report.summary_json(result.summary, result.condemned))
