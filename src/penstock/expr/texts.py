"""Tests of text: LIKE, BEGINS WITH, ENDS WITH.  True if any element of an array passes; numbers are taken as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from penstock.expr.meter import meter
from penstock.expr.patterns import Search
from penstock.expr.values import Value, flatten, text, to_bytes

TEXT_VISITS = 4
"""What the meter counts for a text test of an element beyond looking at it."""

_ESCAPED = re.compile("[\ud800-\udfff]")


class Affixes:
    """Beginnings or ends to look for, prepared once where they are literals."""

    __slots__ = ("data", "plain", "texts", "unknown")

    def __init__(self, items: Iterable[Value]) -> None:
        found = [text(item) for value in items for item in flatten(value) or [None]]
        self.texts = tuple(item for item in found if item is not None)
        self.unknown = len(self.texts) < len(found)
        # UTF-8 keeps its step: a whole character stands in the bytes exactly where it stands in the text.
        self.plain = not any(map(_ESCAPED.search, self.texts))
        self.data = () if self.plain else tuple(map(to_bytes, self.texts))


def _any(value: Value, test: Callable[[str], bool], unknown: bool) -> bool | None:
    items = flatten(value)
    if len(items) > 1:
        meter.spend(TEXT_VISITS * len(items))
    for item in items or [None]:
        found = text(item)
        if found is None:
            unknown = True
        elif test(found):
            return True
    return None if unknown else False


def like(value: Value, search: Search) -> bool | None:
    """Does the pattern match somewhere in the text?"""
    if value.__class__ is list:
        return _any(value, search, False)
    found = text(value)
    return None if found is None else search(found)


def begins(value: Value, affixes: Affixes | list[Value]) -> bool | None:
    """Does the text begin with one of them?"""
    wanted = affixes if isinstance(affixes, Affixes) else Affixes(affixes)
    if wanted.plain:
        return _any(value, lambda found: found.startswith(wanted.texts), wanted.unknown)
    return _any(value, lambda found: to_bytes(found).startswith(wanted.data), wanted.unknown)


def ends(value: Value, affixes: Affixes | list[Value]) -> bool | None:
    """Does the text end with one of them?"""
    wanted = affixes if isinstance(affixes, Affixes) else Affixes(affixes)
    if wanted.plain:
        return _any(value, lambda found: found.endswith(wanted.texts), wanted.unknown)
    return _any(value, lambda found: to_bytes(found).endswith(wanted.data), wanted.unknown)
