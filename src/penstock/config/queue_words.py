"""One setting of a queue as somebody writes it: the way back from `queue_values`, which reads it.

What `written` gives, `read_value` reads again as the same value in the same style; a path of `file_backed_metadata`
alone may not be said over AMQP or in Python, where `true` stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import assert_never, cast

from penstock.config.queue_values import Kind, QueueKey, Style
from penstock.records.queue_settings import Retry
from penstock.units import DURATION_UNITS, format_duration


def written(key: QueueKey, value: object, style: Style) -> object:
    """A value that is kept inside, as `style` writes it; None, which is no limit or nothing at all, stays None.

    value: of the key's own kind, as `QueueSettings` has it.
    """
    if value is None:
        return None
    match key.kind:
        case Kind.DURATION:
            return _duration(cast("int", value), style, text_too=not key.rabbitmq)
        case Kind.SIZE:
            return f"{value}B" if style == "file" else value
        case Kind.RETRY:
            return {
                name: _duration(one, style, text_too=True) if name in ("initial", "max") else one
                for name, one in asdict(cast("Retry", value)).items()
            }
        case Kind.FILE:
            return value if style == "file" else bool(value)
        case Kind.WEIGHTS:
            return dict(cast("tuple[tuple[str, float], ...]", value))
        case Kind.LEASED:
            queue, of_key = cast("tuple[int, int]", value)
            return {"queue": queue, "key": of_key} if of_key else queue
        case Kind.RATE:
            count, period, of_key, its_period = cast("tuple[int, int, int, int]", value)
            whole = _rate(count, period)
            return {"queue": whole, "key": _rate(of_key, its_period)} if of_key else whole
        case Kind.TEXT | Kind.CHOICE | Kind.COUNT | Kind.FLAG:
            return value
        case _:
            assert_never(key.kind)


def _duration(micros: int, style: Style, *, text_too: bool) -> object:
    """Text with a unit; over AMQP milliseconds, upwards where no text is taken that would say it exactly."""
    if style != "amqp" or (text_too and micros % 1000):
        return format_duration(micros)
    return -(-micros // 1000)


def _rate(count: int, period: int) -> str | int:
    """`100/s`, `10/250ms`; 0: no limit."""
    if not count:
        return 0
    unit = next((name for name in ("d", "h", "m", "s") if DURATION_UNITS[name] == period), None)
    return f"{count}/{unit or format_duration(period)}"


def in_line(value: object) -> str:
    """What `written` gives, in one line for a person: a table as TOML has it, text without quotes."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case Mapping():
            table = cast("Mapping[str, object]", value)
            return f"{{ {', '.join(f'{name} = {in_line(one)}' for name, one in table.items())} }}"
        case list() | tuple() if type(value) in (list, tuple):  # an address is a tuple with words of its own
            return ", ".join([in_line(one) for one in cast("Sequence[object]", value)]) or "none"
        case _:
            return str(value)
