"""Sites, as links name them to each other: name, origin of the log, group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from penstock.errors import InvalidArgument
from penstock.wire.fields import NAME_LIMIT, Fields, shown

SITES_MOST = 1000


def origin_of(fields: Fields, name: str) -> int:
    """The number of a log, which is text in JSON."""
    return _origin(fields.where, fields.name(name))


def _origin(where: str, text: object) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 21 and int(text) < 2**64):
        raise InvalidArgument(f"{where}: origin {shown(text)} is no number of a log")
    return int(text)


def sites_of(fields: Fields, name: str) -> tuple[tuple[str, int, str], ...]:
    """Sites that somebody has met."""
    found = fields.objects(name)
    if len(found) > SITES_MOST:
        raise InvalidArgument(f"{fields.where}: {len(found)} {name}; {SITES_MOST} are the most")
    return tuple(_site(fields.where, one) for one in found)


def _site(where: str, given: object) -> tuple[str, int, str]:
    text, values = shown(given), cast("list[object]", given) if isinstance(given, list) else []
    if len(values) != 3:
        raise InvalidArgument(f"{where}: {text} is no site: name, origin and group")
    name, origin, group = values
    if not isinstance(name, str) or not isinstance(group, str) or not 0 < len(name.encode()) <= NAME_LIMIT:
        raise InvalidArgument(f"{where}: {text} is no site: its name and its group are texts")
    return name, _origin(where, origin), group


def told(sites: Iterable[tuple[str, int, str]]) -> list[list[str]]:
    """Sites as JSON has them: origins as text, which keeps all 64 bits."""
    return [[name, str(origin), group] for name, origin, group in sites]
