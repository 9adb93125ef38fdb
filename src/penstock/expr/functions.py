"""The table of functions: name, arity, what each needs of its arguments, and the Python that does it.

Arguments arrive as scalars (of an array the first element, '' and objects as NULL) except where `arrays` says so.
Unless its docstring says otherwise, a function of NULL is NULL.  Positions count bytes from 1, as strings are bytes:
a string of ASCII takes a short cut, any other goes through its bytes.

Times are text in UTC, by formats of C's strftime with `%f` for microseconds and `%03f` for milliseconds; no clock is
known here, and UNIX_TIMESTAMP takes the instant that the caller hands in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import cast

from penstock.expr import numbers, text_patterns
from penstock.expr.context import OF_THE_CONTEXT
from penstock.expr.numbers import crc32, crc64
from penstock.expr.values import TEXT_LIMIT, Value, fit, flatten, from_bytes, is_null, number, order, text, to_bytes
from penstock.records.dataclass import dataclass

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

_YEAR = frozenset("GYycx")
"""Directives with a year.  Without one it is 1900, which Python wants to be told where there is a day of a month."""


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
        if _YEAR.isdisjoint(_DIRECTIVE.findall(pattern)):
            written, pattern = f"1900|{written}", f"%Y|{pattern}"
        when = datetime.strptime(written, pattern)  # noqa: DTZ007  # the next line adds it
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return (when - _EPOCH) / timedelta(seconds=1)
    except (ValueError, OverflowError, IndexError, re.error):  # re.error: a directive named twice
        return None


@dataclass(frozen=True, slots=True)
class Function:
    """One row of the table.

    `run` is None where the compiler writes the value itself (IF, and what asks for the message).  `patterns` are the
    positions of arguments that must be literal regular expressions.  `most` None: any number of arguments.
    """

    name: str
    least: int
    most: int | None
    run: Callable[..., Value] | None
    deterministic: bool = True
    arrays: bool = False
    patterns: tuple[int, ...] = ()


def _bytes_or_text(value: str) -> bytes | str:
    return value if value.isascii() else to_bytes(value)


def _made(value: bytes | str) -> str | None:
    """A result as a byte string; the empty one is NULL."""
    return (value if isinstance(value, str) else from_bytes(value)) or None


def _position(value: Value) -> int | None:
    """A count or position: an integer, cut toward zero from a double; None for NULL, NaN and infinities."""
    found = number(value)
    if found is None or found != found or found in (float("inf"), float("-inf")):
        return None
    return int(found)


def lower(value: Value) -> str | None:
    """ASCII letters in lower case; other bytes stay."""
    found = text(value)
    return None if found is None else found.lower() if found.isascii() else from_bytes(to_bytes(found).lower())


def upper(value: Value) -> str | None:
    """ASCII letters in upper case; other bytes stay."""
    found = text(value)
    return None if found is None else found.upper() if found.isascii() else from_bytes(to_bytes(found).upper())


def instr(value: Value, part: Value) -> int | None:
    """Where `part` first stands in `value`, from 1; 0 when it does not."""
    a, b = text(value), text(part)
    if a is None or b is None:
        return None
    return a.find(b) + 1 if a.isascii() and b.isascii() else to_bytes(a).find(to_bytes(b)) + 1


def instr_i(value: Value, part: Value) -> int | None:
    """The same for letters of either case."""
    return instr(lower(value), lower(part))


def streq_i(left: Value, right: Value) -> int | None:
    """1 when both are the same but for the case of ASCII letters, else 0."""
    a, b = lower(left), lower(right)
    return None if a is None or b is None else int(a == b)


def concat(*parts: Value) -> str | None:
    """All texts in a row; NULL adds nothing, because it is the empty string."""
    found = [text(part) or "" for part in parts]
    if sum(map(len, found)) > TEXT_LIMIT:
        return None
    joined = "".join(found)
    return _made(joined if joined.isascii() else to_bytes(joined))


def replace(value: Value, old: Value, new: Value) -> str | None:
    """Every `old` in `value` becomes `new`; NULL as `new` removes it, NULL as `old` changes nothing."""
    a, b, c = text(value), text(old), text(new) or ""
    if a is None or b is None:
        return a
    data, part, other = to_bytes(a), to_bytes(b), to_bytes(c)
    if len(data) + data.count(part) * (len(other) - len(part)) > TEXT_LIMIT:
        return None
    return _made(data.replace(part, other))


def regexp_replace(value: Value, pattern: str, new: Value) -> str | None:
    """Every match of a literal pattern becomes `new`, in which `\\1` stands for a group; NULL as `new` removes it.

    NULL for a text over 64 KiB or with more than 1,000 matches.
    """
    a = text(value)
    if a is None:
        return None
    found = text_patterns.replace(a, pattern, text(new) or "")
    return found or None


def regexp_match(value: Value, pattern: str) -> bool | None:
    """LIKE as a function."""
    a = text(value)
    return None if a is None else text_patterns.searcher(pattern)(a)


def substr(value: Value, start: Value, length: Value = 1 << 62) -> str | None:
    """Bytes from position `start` (1 is the first) on, at most `length`; what lies before the first is not there."""
    found, begin, size = text(value), _position(start), _position(length)
    if found is None or begin is None or size is None:
        return None
    return _made(_bytes_or_text(found)[max(begin - 1, 0) : max(begin - 1 + size, 0)])


def left(value: Value, size: Value) -> str | None:
    """The first `size` bytes."""
    return substr(value, 1, size)


def right(value: Value, size: Value) -> str | None:
    """The last `size` bytes."""
    found, count = text(value), _position(size)
    if found is None or count is None or count <= 0:
        return None
    return _made(_bytes_or_text(found)[-count:])


def reverse(value: Value) -> str | None:
    """The bytes from last to first."""
    found = text(value)
    return None if found is None else _made(_bytes_or_text(found)[::-1])


def trim(value: Value) -> str | None:
    """Without blanks, tabs and line ends at both ends."""
    found = text(value)
    return None if found is None else found.strip(" \t\r\n\f\v") or None


def ltrim(value: Value) -> str | None:
    """The same at the beginning."""
    found = text(value)
    return None if found is None else found.lstrip(" \t\r\n\f\v") or None


def rtrim(value: Value) -> str | None:
    """The same at the end."""
    found = text(value)
    return None if found is None else found.rstrip(" \t\r\n\f\v") or None


def char_value(code: Value) -> str | None:
    """The byte with that number, 0 to 255; NULL for others."""
    found = _position(code)
    return from_bytes(bytes([found])) if found is not None and 0 <= found <= 255 else None


def coalesce(*values: Value) -> Value:
    """The first that is not NULL."""
    return next((value for value in values if value is not None), None)


def _extreme(values: tuple[Value, ...], wanted: int) -> Value:
    best: Value = None
    for value in values:
        if value is None:
            continue
        if isinstance(value, float) and value != value:
            return value
        if best is None or order(value, best) == wanted:
            best = value
    return best


def greatest(*values: Value) -> Value:
    """The greatest of those that are not NULL, as `>` sees it; NaN when one of them is."""
    return _extreme(values, 1)


def least(*values: Value) -> Value:
    """The least of those that are not NULL, as `<` sees it; NaN when one of them is."""
    return _extreme(values, -1)


def array_to_string(values: Value, separator: Value = ",") -> str | None:
    """The elements that are not NULL, with a text between them; NULL as the separator joins them directly."""
    between = text(None if is_null(separator) else flatten(separator)[0]) or ""
    found = [part for part in (text(item) for item in flatten(values)) if part is not None]
    if sum(map(len, found)) + len(between) * len(found) > TEXT_LIMIT:
        return None
    joined = between.join(found)
    return _made(joined if joined.isascii() else to_bytes(joined))


def _of_elements(choose: Callable[..., Value]) -> Callable[[Value], Value]:
    def reduce(values: Value) -> Value:
        return choose(*(item for item in flatten(values) if not is_null(item)))

    return reduce


def array_sum(values: Value) -> Value:
    """The sum of the elements that are not NULL; NULL when there are none."""
    found = [value for value in (number(item) for item in flatten(values)) if value is not None]
    total = sum(found) if found else None
    return fit(total) if isinstance(total, int) else total


def array_avg(values: Value) -> float | None:
    """The mean of the elements that are not NULL, a double; NULL when there are none."""
    found = [value for value in (number(item) for item in flatten(values)) if value is not None]
    return float(sum(found)) / len(found) if found else None


def array_count(values: Value) -> int:
    """How many elements are not NULL; 0 for NULL and the empty array."""
    return sum(not is_null(item) for item in flatten(values))


def _rows() -> list[Function]:
    one = [
        ("LOWER", lower),
        ("UPPER", upper),
        ("REVERSE", reverse),
        ("TRIM", trim),
        ("LTRIM", ltrim),
        ("RTRIM", rtrim),
        ("CHAR_VALUE", char_value),
        ("CRC32", crc32),
        ("CRC64", crc64),
        *numbers.OF_ONE,
    ]
    two = [
        ("INSTR", instr),
        ("INSTR_I", instr_i),
        ("STREQUAL_I", streq_i),
        ("LEFT", left),
        ("RIGHT", right),
        ("STRFTIME", strftime),
        ("STRPTIME", strptime),
        ("POWER", numbers.power),
        ("ATAN2", numbers.atan2),
    ]
    return [
        *(Function(name, 1, 1, cast("Callable[..., Value]", run)) for name, run in one),
        *(Function(name, 2, 2, cast("Callable[..., Value]", run)) for name, run in two),
        Function("CONCAT", 1, None, concat),
        Function("REPLACE", 3, 3, replace),
        Function("REGEXP_REPLACE", 3, 3, regexp_replace, patterns=(1,)),
        Function("REGEXP_MATCH", 2, 2, regexp_match, patterns=(1,)),
        Function("SUBSTR", 2, 3, substr),
        Function("COALESCE", 1, None, coalesce),
        Function("GREATEST", 1, None, greatest),
        Function("LEAST", 1, None, least),
        Function("ROUND", 1, 2, numbers.round_half_away),
        Function("WIDTH_BUCKET", 4, 4, numbers.width_bucket),
        Function("GEO_DISTANCE", 4, 4, numbers.geo_distance),
        Function("ARRAY_TO_STRING", 1, 2, array_to_string, arrays=True),
        Function("ARRAY_MIN", 1, 1, _of_elements(least), arrays=True),
        Function("ARRAY_MAX", 1, 1, _of_elements(greatest), arrays=True),
        Function("ARRAY_SUM", 1, 1, array_sum, arrays=True),
        Function("ARRAY_AVG", 1, 1, array_avg, arrays=True),
        Function("ARRAY_COUNT", 1, 1, array_count, arrays=True),
        Function("IF", 3, 3, None),
        Function("TRUE_VALUE", 0, 0, None),
        Function("FALSE_VALUE", 0, 0, None),
        Function("NAN_VALUE", 0, 0, None),
        Function("MESSAGE_SIZE", 0, 0, None),
        Function("CORRELATION_ID", 0, 0, None),
        Function("LAST_UPDATED", 0, 0, None),
        Function("BOOKMARK", 0, 0, None),
        Function("TOPIC_NAME", 0, 0, None),
        Function("UNIX_TIMESTAMP", 0, 0, None, deterministic=False),
        *(Function(name, 0, 0, None, group != "lease") for name, (_, group) in OF_THE_CONTEXT.items()),
    ]


FUNCTIONS = {row.name: row for row in _rows()}
"""Every function by its name in upper case."""

AGGREGATES = frozenset(
    ("AVG", "ANY", "COUNT", "COUNT_DISTINCT", "GROUP_CONCAT", "MIN", "MAX", "SUM", "STDDEV_POP", "UNIQUE")
)
"""Functions over many messages; refused in expressions about one."""
