"""What is passed to a broker of a test, looked at first: InvalidArgument names the argument and the value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from penstock.errors import InvalidArgument
from penstock.expr import TopicPattern
from penstock.units import to_micros


def check_text(**given: object) -> None:
    """Each is text, or None."""
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise InvalidArgument(f"{name} is {value!r}, not text")


def check_texts(**given: object) -> None:
    """Each is text or several texts, or None."""
    for name, value in given.items():
        several = cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else [value]
        if value is not None and not all(isinstance(one, str) for one in several):
            raise InvalidArgument(f"{name} is {value!r}, not text or a list of texts")


def check_count(**given: object) -> None:
    """Each is a whole number from 0 on, or None."""
    for name, value in given.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgument(f"{name} is {value!r}, not a whole number")
        if value < 0:
            raise InvalidArgument(f"{name} is {value}, below 0")


def check_topic(name: str, value: object) -> str:
    """A queue, a topic or a pattern that can be used."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {value!r}, not text")
    try:
        TopicPattern(value)
    except ValueError as error:
        raise InvalidArgument(f"{name} is {value!r}: {error}") from None
    return value


def micros_of(name: str, value: object) -> int:
    """Microseconds of a number of seconds, or of a duration as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InvalidArgument(f"{name} is {value!r}, not a number of seconds")
    try:
        return to_micros(value)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"{name}: {error}") from None
