"""Errors of Spark in one sentence, and without what it writes about them by itself."""

from __future__ import annotations

import logging
import re

_STATE = re.compile(r"\s*SQLSTATE: \w+\.?")
_CLASS = re.compile(r"^(?:[\w.$]+(?:Exception|Error)): (?=\S)")
_CONDITION = re.compile(r"^\[[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*\] ")
LENGTH_MAX = 500
_NO_ROW = ("penstock.errors.", "java.io.", "OSError: [Errno ", "No space left on device")
_NOTHING_SAID = ("at ", "File ", "Traceback", "An error occurred", "An exception was raised by the Python Proxy")
_TRACEBACK = "Traceback (most recent call last):"
_ENDS = re.compile(r"(?:\s*SQLSTATE: |\s+at \S+\(|== |=== |\s*$)")
"""Lines behind a Python exception's own text."""
_WRAPPERS = ("pyspark.", "py4j.")
"""Modules whose exceptions pass on what Java says."""


def short(text: str) -> str:
    """The sentence that matters of a Spark error.

    Our own last one; else the exception that a function in Python ended with, by its type and text; else the first line
    that is none of a stack.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("penstock.errors.")]
    if ours:
        return ours[-1].partition(": ")[2]
    if (cause := cause_in_python(text)) is not None and not cause.startswith(_WRAPPERS):
        return cause[:LENGTH_MAX]
    # What is indented is a stack or a plan.  The class goes first: behind it may stand what says nothing.
    flush = [_CLASS.sub("", line.removeprefix(": ")) for line in text.splitlines() if line[:1].strip()]
    told = [line for line in flush or lines if not line.startswith(_NOTHING_SAID)]
    first = told[0] if told else text
    plain = _STATE.sub("", _CONDITION.sub("", first)).replace(".;", ";")
    return plain[:LENGTH_MAX].rstrip(" ;")


def cause_in_python(text: str) -> str | None:
    """Type and text of the exception that the last traceback ends with, in one line; None without a traceback."""
    _, found, rest = text.rpartition(_TRACEBACK)
    if not found:
        return None
    told = list[str]()
    for line in rest.splitlines()[1:]:
        if told and _ENDS.match(line):
            break
        if told or line[:1].strip():  # frames are indented, and what follows them is not
            told.append(line.strip())
    return " ".join(told) or None


def may_be_a_row(text: str) -> bool:
    """Whether a row may be to blame for an error of Spark: not for what Penstock itself or a file system says."""
    return not any(name in text for name in _NO_ROW)


def quieten() -> None:
    """Spark's Python half logs each error as JSON with its stack beside raising it: once is enough."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger("py4j").setLevel(logging.ERROR)
