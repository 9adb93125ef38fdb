"""Arguments of a consumer, as basic.consume has them.  Each raises InvalidArgument with name and value; null is one."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import InvalidArgument
from penstock.records.tables import Timestamp


def text_of(arguments: Mapping[str, object], name: str) -> str | None:
    """A text; None when it is not there."""
    if name not in arguments:
        return None
    value = arguments[name]
    if not isinstance(value, str):
        raise InvalidArgument(f"consumer argument {name} is {value!r}, not text")
    return value


def count_of(arguments: Mapping[str, object], name: str, least: int | None) -> int | None:
    """A whole number, 0 or more where `least` is 0; None when it is not there."""
    if name not in arguments:
        return None
    value = arguments[name]
    if not isinstance(value, int) or isinstance(value, bool | Timestamp) or (least is not None and value < least):
        raise InvalidArgument(
            f"consumer argument {name} is {value!r}, not an integer{'' if least is None else ' >= 0'}"
        )
    return value


def flag(arguments: Mapping[str, object], name: str) -> bool:
    """Whether a consumer argument that is true or false is true."""
    value = arguments.get(name, False)
    if not isinstance(value, bool):
        raise InvalidArgument(f"consumer argument {name} is {value!r}, not true or false")
    return value
