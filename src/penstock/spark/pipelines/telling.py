"""Errors of Spark in one sentence, and without what it writes about them by itself."""

from __future__ import annotations

import logging
import re

_STATE = re.compile(r"\s*SQLSTATE: \w+\.?")
_CLASS = re.compile(r"^(?:[\w.$]+(?:Exception|Error)): (?=\S)")
_CONDITION = re.compile(r"^\[[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*\] ")
LENGTH_MAX = 500


def short(text: str) -> str:
    """The sentence that matters of a Spark error: our own last one, else the first that is none of a stack."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("penstock.errors.")]
    if ours:
        return ours[-1].partition(": ")[2]
    told = [line for line in lines if not line.startswith(("at ", "File ", "Traceback", "An error occurred"))]
    first = _CLASS.sub("", told[0].removeprefix(": ")) if told else text
    plain = _STATE.sub("", _CONDITION.sub("", first)).replace(".;", ";")
    return plain[:LENGTH_MAX].rstrip(" ;")


def quieten() -> None:
    """Spark's Python half logs each error as JSON with its stack beside raising it: once is enough."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger("py4j").setLevel(logging.ERROR)
