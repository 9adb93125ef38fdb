"""JSON bodies with every number as it is written: whole numbers of any length stay what they are.

What is JSON is judged by one reader, the one that filters have, so that a body has the same fields for everybody: the
last of equal names counts; NaN, half a pair of surrogates, and a number beyond a double are no JSON.
"""

from __future__ import annotations

import json
import re
from typing import cast

import orjson

DEPTH = 250
"""Levels of a body that is taken apart and written again: beyond them it is refused and not followed."""

_LONG = re.compile(rb"[0-9]{16}")
"""A number with so many digits may not survive as a double: then Python's own reader is asked, which keeps it."""


def read_exact(body: bytes) -> object:
    """The value of a body.  ValueError for one that is no JSON, or nested too deeply."""
    value: object = orjson.loads(body)
    if body.count(b"[") + body.count(b"{") > DEPTH and deeper(value, DEPTH):
        raise ValueError(f"it is nested more than {DEPTH} levels deep")
    return json.loads(body) if _LONG.search(body) else value


def deeper(value: object, levels: int) -> bool:
    """Whether objects and arrays are nested deeper than that."""
    level: list[object] = [value]
    for _ in range(levels + 1):
        inner = list[object]()
        for one in level:
            if isinstance(one, dict):
                inner += cast("dict[str, object]", one).values()
            elif isinstance(one, list):
                inner += cast("list[object]", one)
        level = [one for one in inner if isinstance(one, dict | list)]
        if not level:
            return False
    return True
