"""Durations, sizes and addresses as people write them: `250us 500ms 30s 5m 2h 1d 1w`, `64KiB 512MiB 10GB`,
`127.0.0.1:5672 [::1]:5672`.

Masters of Spark are among the addresses, for settings files and commands, which know what one is without Spark.

Inside, durations are integer microseconds and sizes integer bytes.  A bare number is refused with the unit to add.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from urllib.parse import SplitResult, urlsplit

from penstock.errors import InvalidArgument, shown

DURATION_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
SIZE_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*\Z")
_DIGITS_MOST = 40
_LONGEST_US = 2**62
_LARGEST = 2**63 - 1


def _quantity(text: str, units: dict[str, int], most: int, what: str, example: str) -> int:
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(f"{shown(text)} is not a {what}: write a number and a unit, as in {example}")
    number, unit = match.groups()
    if unit not in units:
        known, why = " ".join(units), f"has the unknown unit {shown(unit)}" if unit else "needs a unit"
        raise ValueError(f"{what} {shown(text)} {why}: use one of {known}")
    whole, _, fraction = number.partition(".")
    if (digits := len(whole) + len(fraction)) > _DIGITS_MOST:  # Python reads no number of very many
        raise ValueError(f"{what} {shown(text)} has {digits} digits, {_DIGITS_MOST} are allowed")
    value = int(whole) * units[unit]
    if fraction:
        value += int(fraction) * units[unit] // 10 ** len(fraction)
    if value > most:
        largest = [*units][-1]
        raise ValueError(f"{what} {shown(text)} is too large: at most {most // units[largest]}{largest}")
    return value


def parse_duration(text: str) -> int:
    """Microseconds.  Raises ValueError naming the text and the units it may have."""
    return _quantity(text, DURATION_UNITS, _LONGEST_US, "duration", "30s")


_AGE = re.compile(r"([0-9]{1,12})([YMDhms])\Z")
_AGES = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3600, "m": 60, "s": 1}


def parse_age(text: str) -> int:
    """Microseconds of an age as RabbitMQ writes it: `7D` are seven days.  Raises ValueError naming the text."""
    found = _AGE.match(text)
    if found is None or int(found[1]) * _AGES[found[2]] * 1_000_000 > _LONGEST_US:
        raise ValueError(f"age {text!r} is no number with one of {', '.join(_AGES)} behind it, such as 7D")
    return int(found[1]) * _AGES[found[2]] * 1_000_000


def parse_size(text: str) -> int:
    """Bytes.  Raises ValueError naming the text and the units it may have."""
    return _quantity(text, SIZE_UNITS, _LARGEST, "size", "64MiB")


def to_micros(value: str | float | timedelta) -> int:
    """Microseconds of what Python callers pass: text with a unit, seconds as a number, or a timedelta.

    Raises ValueError naming the value.
    """
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, timedelta):
        return (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    if not abs(value) <= _LONGEST_US / 1_000_000:  # NaN neither
        raise ValueError(f"{value!r} is no duration in seconds: it is too large, or no number")
    return round(value * 1_000_000)


def format_duration(micros: int) -> str:
    """The shortest exact text: 30000000 is `30s`."""
    for unit in ("w", "d", "h", "m", "s", "ms"):
        size = DURATION_UNITS[unit]
        if micros and micros % size == 0:
            return f"{micros // size}{unit}"
    return f"{micros}us" if micros else "0s"


def format_size(size: int) -> str:
    """A size for people, to three digits: `64 MiB`, `1.5 GiB`."""
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1023.5:
            break
        amount, unit = amount / 1024, larger
    if unit == "B":
        return f"{size} B"
    return f"{amount:.3g} {unit}" if amount < 999.5 else f"{amount:.0f} {unit}"  # three digits of 1020 have an exponent


DIGITS_MOST = 400
"""Of a decimal before or behind its point; one of more is written with an exponent."""


def as_text(value: object) -> str:
    """What a value says of itself; a decimal as SQL writes it: Python and Arrow give one an exponent from 1E-7 on."""
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) <= DIGITS_MOST:
        return f"{value:f}"
    return str(value)


_GIVEN = (str, int, float, timedelta)
Duration = str | float | timedelta
"""Text with a unit (`"30s"`), seconds, or a timedelta."""


def span(value: Duration, what: str) -> int:
    """Microseconds of a duration.

    InvalidArgument, which names `what` it is for, when it is none, too large, or below zero.
    """
    given: object = value
    if isinstance(given, bool) or not isinstance(given, _GIVEN):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(f"{what} is {given!r}, not a duration such as '30s' or a number of seconds")
    try:
        micros = to_micros(given)
    except ValueError as error:
        raise InvalidArgument(f"{what}: {error}") from None
    if micros < 0:
        raise InvalidArgument(f"{what} is {given}: a duration is not negative")
    return micros


LONGEST = 1_000 * 366 * 86_400 * 1_000_000
"""The longest time in microseconds that a message or its lease may wait: it ends before `LATEST`."""


def wait_of(value: Duration, what: str, least: int = 0) -> int:
    """Microseconds that something waits; InvalidArgument as of `span`, and for less than `least` or past `LONGEST`."""
    micros = span(value, what)
    if not least <= micros <= LONGEST:
        low = format_duration(least) if least else "0"
        raise InvalidArgument(f"{what} is {value}, which is not between {low} and 1,000 years")
    return micros


FOR_EVER_S = 100 * 366 * 86_400.0
"""The longest that a caller waits, in seconds: clocks and threads end at 292 years."""


def until_of(now: float, seconds: float | None) -> float | None:
    """The moment that is so many seconds later; None: never."""
    return None if seconds is None else now + min(seconds, FOR_EVER_S)


def seconds_of(value: Duration, what: str) -> float:
    """Seconds that a caller waits: what is longer than `FOR_EVER_S` is that.  InvalidArgument as of `span`."""
    return min(span(value, what) / 1e6, FOR_EVER_S)


def left_of(value: Duration, what: str) -> float:
    """Seconds of what is left to wait: of a number below zero, whose time is over, none.  Errors as of `seconds_of`."""
    return 0.0 if isinstance(value, int | float) and value < 0 else seconds_of(value, what)


def format_address(host: str, port: int | str) -> str:
    """`host:port`, with an IPv6 host in brackets: without them nobody can tell where the port begins."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+(%[a-z0-9._-]+)?", re.IGNORECASE)
"""A name, or an address of either kind; a scope may be that of a link."""


def ascii_host(host: str) -> str:
    """As resolvers take it, a name in the letters of any language too; empty for what is no host.

    They raise UnicodeError for a part of a name that is empty or has more than 63 letters.
    """
    try:
        name = host.encode("idna").decode()
    except UnicodeError:
        return ""
    return name if _HOST.fullmatch(name) is not None else ""


def split_url(url: str) -> SplitResult:
    """A URL of one host, split.  ValueError names it without its password, which Python's shows."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if not parts.hostname or ascii_host(parts.hostname):
            return parts
    raise ValueError(f"{shown_address(url)!r} is no address: it has no host; one of IPv6 is in brackets: [::1]:8815")


def parted_address(address: str) -> tuple[str, str]:
    """Host, without brackets, and port of what `format_address` made; both are empty where there is none."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


_LOGIN = re.compile(r"^([^:@]*(?:://[^:@]*)?):.*@", re.DOTALL)


def shown_address(url: str) -> str:
    """An address that is told to people, also one that is none, without its password."""
    return _LOGIN.sub(r"\1:***@", url)


LATEST = 253_402_300_799_999_999
"""The last microsecond of the year 9999: later ones are no dates to Python and Spark, which read the log."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def epoch_micros(time: datetime) -> int:
    """Microseconds since the epoch.  A time without a zone is UTC, wherever somebody writes or passes one."""
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(microseconds=1)


def moment(value: datetime | Duration | None, what: str, least: int = 0) -> tuple[int | None, int | None]:
    """(microseconds since the epoch, None) of a time, (None, microseconds from now) of a duration; or neither.

    InvalidArgument for a time that no message has, and as of `wait_of`.
    """
    if value is None:
        return None, None
    if isinstance(value, datetime):
        at = epoch_micros(value)
        if not 0 < at <= LATEST:
            raise InvalidArgument(f"{what} is {value.isoformat()}, which is not between the years 1970 and 9999")
        return at, None
    return None, wait_of(value, what, least)


_MASTER = r"local(\[(\d+|\*)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://\S+|k8s://\S+|yarn"
"""What Spark takes for a master."""


def wrong_master(value: str) -> str | None:
    """Why Spark would not take it; None where it is one by its form."""
    if re.fullmatch(_MASTER, value) is not None:
        return None
    shown = shown_address(value)[:60]
    return f"{shown!r} is no master of Spark: write local[*], local[4], spark://host:7077, yarn or k8s://"
