"""Where settings come from, and which source prevails.

A value comes from the first of: the option given to `open`, the environment
(`SEGMENTSTORE_<NAME>`), `store.toml` in the store's folder, the default. What is fixed at creation
is written to `store.toml` then; naming another value later is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from durablelog.bookkeeper.bookkeeper_url import is_bookkeeper_url
from segmentstore.config import FIXED, SETTINGS, StoreConfig, did_you_mean, shown, typed_setting
from segmentstore.contracts.errors import ConfigError
from segmentstore.deprecated_settings import CURRENT_NAMES, deprecation_notes, with_current_names
from tier2.credentials import refuse_secrets, stands_for

ENVIRONMENT_PREFIX = "SEGMENTSTORE_"
OTHER_VARIABLES = frozenset(
    ENVIRONMENT_PREFIX + name
    for name in (
        "BOOKKEEPER_CLIENT_SETTINGS",
        "BOOKKEEPER_JARS",
        "BOOKKEEPER_PASSWORD",
        "GATEWAY",
        "GATEWAY_LOG",
        "GATEWAY_TOKEN",
        "SERVICES",
        "ZOOKEEPER_AUTH",
    )
)
"""Variables of ours that are no settings; a test finds them in the sources."""
_URLS = ("tier1", "tier2", "archive")
_TRUTH = {"true": True, "false": False, "1": True, "0": False}
"""What the environment may say for a setting that is on or off."""


def merge_settings(
    options: Mapping[str, object],
    environment: Mapping[str, str],
    file: Mapping[str, object],
    *,
    existing: bool,
) -> StoreConfig:
    """The settings in force.

    Raises ConfigError for an unknown or malformed one, or a fixed one that differs.

    Of a `tier1` on BookKeeper it is fixed which store it names; an opening of the store sees
    whether the servers have it.
    """
    values: dict[str, object] = dict(file)
    stored = values.get("tier2")
    for source in (
        _from_environment(environment),
        {name: typed_setting(name, value) for name, value in with_current_names(options).items()},
    ):
        for name, value in source.items():
            if name in _URLS:
                refuse_secrets(str(value), file.get(name), setting=name)
            fixed = (
                existing and name in FIXED and not (name == "tier2" and stands_for(value, stored))
            )
            if (
                fixed
                and name == "tier1"
                and is_bookkeeper_url(str(value))
                and is_bookkeeper_url(str(values[name]))
            ):
                # Not at the top: only a store on BookKeeper pays for it.
                from durablelog.bookkeeper.bookkeeper_location import (  # noqa: PLC0415
                    check_may_follow,
                )

                check_may_follow(str(values[name]), str(value))
                fixed = False
            if fixed and value != values[name]:
                asked, created = shown(value), shown(values[name])
                raise ConfigError(name, f"{asked} asked for, but the store was made with {created}")
            values[name] = value
    return StoreConfig.from_settings(values)


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, text in environment.items():
        name = key.removeprefix(ENVIRONMENT_PREFIX).lower()
        current = CURRENT_NAMES.get(name, name)
        if key.startswith(ENVIRONMENT_PREFIX) and current in SETTINGS:
            values[name] = _parsed(current, text, key)
    return with_current_names(values)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that looks like one of ours and is none.

    Cheap: called at each opening.
    """
    names = (*SETTINGS, *CURRENT_NAMES)
    known = {ENVIRONMENT_PREFIX + name.upper() for name in names} | OTHER_VARIABLES
    return [
        f"{key} in the environment is no setting of a segment store, and is "
        f"ignored{did_you_mean(key, known)}"
        for key in environment
        if key.startswith(ENVIRONMENT_PREFIX) and key not in known
    ]


def deprecated_variables(environment: Iterable[str]) -> list[str]:
    """A sentence for each variable that sets something by its deprecated name."""
    return deprecation_notes(environment, ENVIRONMENT_PREFIX)


def _parsed(name: str, text: str, key: str) -> object:
    default: Any = SETTINGS[name].default
    kind = type(default)
    if kind is bool:
        if text not in _TRUTH:
            raise ConfigError(key, f"{text!r} is not one of {', '.join(_TRUTH)}")
        return _TRUTH[text]
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(key, f"{text!r} is not a number") from None
