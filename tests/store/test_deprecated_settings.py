"""Settings by the names that they had before: accepted with a warning, wherever a setting is."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest

import segmentstore
from segmentstore import ConfigError, DeprecatedSettingWarning, blocking
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.config import StoreConfig
from segmentstore.deprecated_settings import CURRENT_NAMES
from segmentstore.store_file import FILE_NAME
from tests.cli.shell import segmentstore as command

NAMES = sorted(CURRENT_NAMES.items())
IN_TOML = {True: "true", False: "false", 1234.0: "1234", 99.0: "99"}


def values(current: str) -> tuple[bool, bool] | tuple[float, float]:
    """Two values of a setting; the first is not its default."""
    return (True, False) if current == "local_server" else (1234.0, 99.0)


def note(old: str, current: str) -> str:
    return f"setting {old} is deprecated; its name is {current}$"


def config_of(place: Path, **options: Any) -> StoreConfig:
    async def session() -> StoreConfig:
        async with segmentstore.open(place, **options) as store:
            return store.config

    return asyncio.run(session())


@pytest.mark.parametrize(("old", "current"), NAMES)
def test_an_option_by_its_old_name_is_in_force(old: str, current: str, tmp_path: Path) -> None:
    value, _ = values(current)
    options: Any = {old: value}
    with pytest.warns(DeprecatedSettingWarning, match=note(old, current)) as seen:
        config = config_of(tmp_path / "s", **options)
    assert config.settings()[current] == value
    assert [warning.filename for warning in seen] == [__file__], "it names the caller's line"
    assert issubclass(DeprecatedSettingWarning, DeprecationWarning)


def test_the_blocking_api_warns_at_the_line_of_its_caller(tmp_path: Path) -> None:
    with pytest.warns(DeprecatedSettingWarning, match="mailbox_poll_interval_s$") as seen:
        blocking.open(tmp_path / "s", mailbox_poll_s=7).close()
    assert [warning.filename for warning in seen] == [__file__]


@pytest.mark.parametrize(("old", "current"), NAMES)
def test_a_store_file_with_the_old_name_opens(old: str, current: str, tmp_path: Path) -> None:
    value, other = values(current)
    config_of(tmp_path)
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write(f"{old} = {IN_TOML[value]}\n")
    with pytest.warns(DeprecatedSettingWarning, match="^store.toml: " + note(old, current)):
        config = config_of(tmp_path)
    assert config.settings()[current] == value
    with pytest.warns(DeprecatedSettingWarning):
        assert config_of(tmp_path, **{current: other}).settings()[current] == other


@pytest.mark.parametrize(("old", "current"), NAMES)
def test_a_variable_with_the_old_name_is_in_force(
    old: str, current: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"SEGMENTSTORE_{old.upper()}"
    value, _ = values(current)
    monkeypatch.setenv(variable, IN_TOML[value])
    said = note(variable, f"SEGMENTSTORE_{current.upper()}")
    with pytest.warns(DeprecatedSettingWarning, match=said) as seen:
        config = config_of(tmp_path / "s")
    assert (config.settings()[current], len(seen)) == (value, 1)
    monkeypatch.setenv(variable, "soon")
    with pytest.warns(DeprecatedSettingWarning), pytest.raises(ConfigError, match=variable):
        config_of(tmp_path / "s")


def test_a_command_says_it_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config_of(tmp_path)
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write("mailbox_poll_s = 5\n")
    monkeypatch.setenv("SEGMENTSTORE_CATALOG_EXPORT_S", "0")
    variable = (
        "setting SEGMENTSTORE_CATALOG_EXPORT_S is deprecated; "
        "its name is SEGMENTSTORE_CATALOG_EXPORT_INTERVAL_S"
    )
    line = "setting mailbox_poll_s is deprecated; its name is mailbox_poll_interval_s"
    for name in ("checkpoint", "verify"):
        shown = command(name, tmp_path)
        assert shown.code == ExitCode.DONE
        assert shown.err.splitlines() == [
            f"segmentstore: warning: {said}" for said in (variable, f"store.toml: {line}")
        ]


def test_both_names_in_one_place_are_refused(tmp_path: Path) -> None:
    options: Any = {"mailbox_poll_s": 1.0, "mailbox_poll_interval_s": 2.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecatedSettingWarning)
        for opening in (config_of, blocking.open):
            with pytest.raises(ConfigError, match="deprecated name of mailbox_poll_interval_s"):
                opening(tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


def test_an_old_name_of_the_wrong_type_is_named_by_todays(tmp_path: Path) -> None:
    options: Any = {"catalog_export_s": "soon"}
    with (
        pytest.warns(DeprecatedSettingWarning),
        pytest.raises(ConfigError, match="catalog_export_interval_s"),
    ):
        config_of(tmp_path, **options)
