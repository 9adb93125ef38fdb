"""Settings as a test gives them: a mapping, TOML text, or the path of a settings file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from penstock.errors import SettingsError

if TYPE_CHECKING:
    from penstock.config.settings import Settings

Config: TypeAlias = "Mapping[str, object] | str | os.PathLike[str] | None"
"""The structure of the settings file as a mapping, the text of one, or where one is; None: all defaults."""


def is_text(config: str) -> bool:
    """Whether a str is TOML rather than a path: it is empty, or has what no path needs."""
    return not config.strip() or "\n" in config or "=" in config or config.lstrip().startswith(("[", "#"))


def load(config: Config) -> Settings:
    """The settings, checked as the server checks them.  The environment has no say in a test.

    Raises SettingsError for what cannot be used, keys of later versions among it.
    """
    from penstock.config.load import load_file, load_mapping, load_text

    if config is None:
        return load_mapping({})
    if isinstance(config, Mapping):
        return load_mapping(config)
    if isinstance(config, str) and is_text(config):
        return load_text(config)
    return load_file(os.fspath(config))


def as_toml(config: Mapping[str, object]) -> str:
    """The text of a settings file with this content."""
    return "".join(f"{_key(name)} = {_value(value)}\n" for name, value in config.items())


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON leaves DEL as it is, TOML does not


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _key(value)
    if isinstance(value, Mapping):
        table = cast("Mapping[str, object]", value)
        return "{" + ", ".join(f"{_key(name)} = {_value(item)}" for name, item in table.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_value(item) for item in cast("Sequence[object]", value)) + "]"
    raise SettingsError(f"a settings file cannot hold {value!r}, a {type(value).__name__}")
