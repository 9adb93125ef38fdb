"""Arguments of a consumer, as basic.consume has them, and the headers of deliveries that some of them ask for.

What reads an argument raises InvalidArgument with name and value; null is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from penstock.errors import ExpressionError, InvalidArgument, PreconditionFailed
from penstock.expr import Context, compile_filter
from penstock.expr.filter import bound
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.records.field_tables import Long, Timestamp, Written, encode_table

BOOKMARK = "x-bookmark"
STAMP = "x-timestamp"
OFFSET = "x-stream-offset"
STREAM_FILTER, UNFILTERED = "x-stream-filter", "x-stream-match-unfiltered"

CONSUMER_ARGUMENTS = frozenset(
    {"x-filter", "x-max-backlog", "x-priority", "x-consumer-timeout", "x-replace", "x-info", BOOKMARK}
    | {OFFSET, STREAM_FILTER, UNFILTERED, "x-cancel-on-ha-failover"}
)
"""What a consumer of a queue may say, of any type of queue; another argument has no effect."""

FILTER_VALUE = "x-stream-filter-value"
"""The header in which a message of a stream says what readers ask for."""


def text_of(arguments: Mapping[str, object], name: str) -> str | None:
    """A text; None when it is not there."""
    if name not in arguments:
        return None
    value = arguments[name]
    if not isinstance(value, str):
        raise InvalidArgument(f"consumer argument {name} is {value!r}, not text")
    return value


def filter_of(arguments: Mapping[str, object], here: Context, *, empty: bool = False) -> str | None:
    """The text of `x-filter` for whoever is here; None when it is not there.  ExpressionError names the argument.

    empty: an empty one stands for none.
    """
    text = text_of(arguments, "x-filter")
    if text is None or (empty and not text):
        return text
    try:
        text = bound(text, here)
        compile_filter(text)
    except ExpressionError as error:
        raise ExpressionError(f"consumer argument x-filter: {error}", text=error.text, place=error.place) from None
    return text


def count_of(arguments: Mapping[str, object], name: str, least: int | None) -> int | None:
    """A whole number, 0 or more where `least` is 0; None when it is not there."""
    if name not in arguments:
        return None
    value = arguments[name]
    if not isinstance(value, int) or isinstance(value, bool | Timestamp) or (least is not None and value < least):
        raise InvalidArgument(
            f"consumer argument {name} is {value!r}, not an integer{'' if least is None else ' >= 0'}"
        )
    return value


def flag(arguments: Mapping[str, object], name: str) -> bool:
    """Whether a consumer argument that is true or false is true."""
    value = arguments.get(name, False)
    if not isinstance(value, bool):
        raise InvalidArgument(f"consumer argument {name} is {value!r}, not true or false")
    return value


@dataclass(frozen=True, slots=True)
class Values:
    """What a reader of a stream asks for: messages that say one of these values.

    RabbitMQ lets through whole pieces of a stream that may have such a value, and its clients look again; here nothing
    else comes.
    """

    values: frozenset[str]
    unfiltered: bool  # and those that say none

    def wants(self, header: bytes) -> bool:
        """Whether a message with this header is asked for."""
        value = (header_codec.peek(header)[4] or {}).get(FILTER_VALUE)
        return self.unfiltered if value is None else str(value) in self.values


def values_of(arguments: Mapping[str, object]) -> Values | None:
    """What a reader of a stream asks for; None: everything."""
    wanted, unfiltered = arguments.get(STREAM_FILTER), flag(arguments, UNFILTERED)
    if wanted is None:
        return None
    values = cast("list[object]", wanted) if isinstance(wanted, list) else [wanted]
    texts = frozenset(one for one in values if isinstance(one, str))
    if not values or not all(isinstance(one, str) for one in values):
        raise PreconditionFailed(f"consumer argument {STREAM_FILTER} is {wanted!r}, not text or a list of texts")
    return Values(texts, unfiltered)


def informed(
    header: bytes, *, bookmark: str | None = None, time: int | None = None, attempt: int = 1, until: int = 0,
    offset: int | None = None, fence: int | None = None,
) -> bytes:  # fmt: skip
    """The header of a message with what its consumer wants to know of the delivery.

    time: when it was stored; until: when its lease ends, 0 for none; both microseconds since the epoch.  offset: its
    LSN, for readers of a stream.  fence: as of `fence_of`.
    """
    written: Written = {}
    properties = header_codec.decode(header, written)
    headers = dict(properties.headers or {})
    if bookmark is not None:
        headers[BOOKMARK] = bookmark
    if time is not None:
        headers[STAMP] = time // 1000
    if offset is not None:
        headers[OFFSET] = Long(offset)
    if fence is not None:
        headers["x-fence"] = fence
    if attempt > 1:
        headers["x-delivery-count"] = Long(attempt - 1)
    if until:
        headers["x-lease-until"] = until // 1000
    properties.headers = headers
    return header_codec.encode(properties, written)


TOLD_BYTES_MOST = 4096
"""Arguments of more are not kept to be told."""


def told_of(arguments: Mapping[str, object]) -> Mapping[str, object] | None:
    """What is kept of them for who looks at the consumer."""
    return arguments if arguments and len(encode_table(arguments)) <= TOLD_BYTES_MOST else None
