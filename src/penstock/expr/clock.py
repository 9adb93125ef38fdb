"""Times as text and back, in UTC.  Knows no clock: UNIX_TIMESTAMP takes the instant that the caller hands in.

Formats are those of C's strftime, and `%f` microseconds, `%03f` milliseconds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from penstock.expr.values import Value, from_bytes, number, text, to_bytes

RESULT_LIMIT = 128
"""Bytes of a formatted time; a longer one is cut."""

FORMAT_LIMIT = 128
"""Characters of a format, and of a text to read with one."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIRECTIVE = re.compile(r"%(03f|.)", re.DOTALL)
_KNOWN = frozenset("aAbBcdDeFGgHhIjmMnprRSTtuUVwWxXyYzZ%f")
_READ_AS = {
    "03f": "%f", "D": "%m/%d/%y", "F": "%Y-%m-%d", "R": "%H:%M", "T": "%H:%M:%S", "r": "%I:%M:%S %p",
    "e": "%d", "h": "%b", "n": " ", "t": " ",
}  # fmt: skip
"""What C reads and Python does not, in directives that both have."""


def strftime(form: Value, seconds: Value) -> str | None:
    """`seconds` since the epoch as text.  NULL for an unknown directive or a time outside the years 1 to 9999."""
    pattern, stamp = text(form), number(seconds)
    if pattern is None or stamp is None or len(pattern) > FORMAT_LIMIT or "\0" in pattern:
        return None
    try:
        when = _EPOCH + timedelta(microseconds=round(stamp * 1_000_000))
    except (OverflowError, ValueError):  # NaN, infinity, or beyond the calendar
        return None
    out: list[bytes] = []
    done = 0
    for found in _DIRECTIVE.finditer(pattern):
        out.append(to_bytes(pattern[done : found.start()]))
        done = found.end()
        if found[1] == "03f":
            out.append(b"%03d" % (when.microsecond // 1000))
        elif found[1] in _KNOWN:
            out.append(when.strftime("%" + found[1]).encode())
        else:
            return None
    out.append(to_bytes(pattern[done:]))
    return from_bytes(b"".join(out)[:RESULT_LIMIT]) or None


def strptime(value: Value, form: Value) -> float | None:
    """Seconds since the epoch of a text, UTC unless `%z` says otherwise.  NULL when the text is not of that form."""
    written, pattern = text(value), text(form)
    if written is None or pattern is None or max(len(written), len(pattern)) > FORMAT_LIMIT:
        return None
    try:
        pattern = _DIRECTIVE.sub(lambda found: _READ_AS.get(found[1], found[0]), pattern)
        when = datetime.strptime(written, pattern)  # noqa: DTZ007  # the next line adds it
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return (when - _EPOCH) / timedelta(seconds=1)
    except (ValueError, OverflowError, IndexError, re.error):  # re.error: a directive named twice
        return None
