"""Topics as patterns: when an `underlying_topic` is one, and what it matches (RE2, unanchored, linear in the text)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

PATTERN_SIGNS = frozenset("^$*+?()[]{}|\\")
"""A topic that holds one of these is a pattern; a dot alone does not make it one."""


class _Compiled(Protocol):
    def search(self, text: str) -> object: ...


class _Options(Protocol):
    log_errors: bool


class _Re2(Protocol):
    """What is used of google-re2, which has no types."""

    error: type[Exception]

    def Options(self) -> _Options: ...  # noqa: N802 - its name there

    def compile(self, pattern: str, options: _Options) -> _Compiled: ...


def topic_pattern(topic: str) -> Callable[[str], bool]:
    """Whether a key is shown by `topic`.  Raises ValueError saying what RE2 does not read."""
    if not PATTERN_SIGNS.intersection(topic):
        return lambda key: key == topic
    re2 = cast("_Re2", import_module("re2"))
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(topic, options)
    except re2.error as error:
        why: object = error.args[0] if error.args else ""
        text = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise ValueError(f"{topic!r} is no RE2 pattern: {text}") from None
    return lambda key: compiled.search(key) is not None
