"""Options that several commands share: select lists, and what a subscription says of durability and time."""

from __future__ import annotations

from penstock.errors import InvalidArgument
from penstock.wire.fields import Fields

PARTS_MOST = 1000
TEXT_MOST = 64 * 1024
"""Parts and characters of a select list."""


def select_list(f: Fields) -> tuple[str, ...]:
    """`select`: which fields of a JSON body are sent."""
    parts = f.texts("select", PARTS_MOST)
    if (size := sum(map(len, parts))) > TEXT_MOST:
        raise InvalidArgument(f"{f.where}: select has {size} characters, the most is {TEXT_MOST}")
    return tuple(parts)


def of_topic(f: Fields) -> bool:
    """Options of a subscription to topics: whether the time is sent with each message.

    All that is told is durable, so `fully_durable` asks for nothing more, and `live` for what is never done.
    """
    if f.flag("live"):
        raise InvalidArgument(
            f"{f.where}: live is not done: of a topic only what is durable is told; "
            'a queue with deliver = "early" sends ahead of the sync'
        )
    f.flag("fully_durable")
    return f.flag("timestamp")


def with_time(columns: tuple[str, ...] | None, timed: bool) -> tuple[str, ...] | None:
    """The columns that were asked for, and the time if it was."""
    return (*columns, "time") if timed and columns is not None and "time" not in columns else columns


def of_queue(f: Fields) -> None:
    """The same of a consumer, for which most of them cannot be."""
    if f.texts("select", PARTS_MOST):
        raise InvalidArgument(f"{f.where}: select is for sow and for subscriptions to topics; work comes whole")
    for name, way in (("live", "early"), ("fully_durable", "durable")):
        if f.flag(name):
            raise InvalidArgument(f'{f.where}: {name} is no option of a queue: its setting deliver = "{way}" is that')
    f.flag("timestamp")  # the column `time` is always there
