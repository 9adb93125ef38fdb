"""Answers: JSON, RabbitMQ's shape of an error, and lists as its management API sorts, pages and cuts them.

Lists take `sort`, `sort_reverse`, `columns`, `name`, `use_regex`, `page` and `page_size`; with `page` the answer is
wrapped and counted.  They are made, sorted and encoded in time steps, so that a long one holds nobody up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from heapq import merge
from typing import Any, TypeVar, cast

from starlette.responses import Response, StreamingResponse

from penstock.errors import (
    AccessRefused,
    DiskFull,
    Draining,
    ExpressionError,
    LogBroken,
    NotFound,
    NotLeading,
    PenstockError,
    QueueBlocked,
    Refused,
    SettingsError,
    Unavailable,
    shown,
)
from penstock.records.field_tables import as_json
from penstock.records.regular_expressions import PatternError, compile_pattern, to_bytes

T = TypeVar("T")

STEP_S = 0.004
"""What a list of everything may do at once, in seconds, before others have their turn."""

HEADERS = {"cache-control": "no-cache", "x-content-type-options": "nosniff"}

SLICE = 256
"""Items that are sorted, or encoded, before others have their turn."""


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON; bytes become text with what is no UTF-8 replaced."""
    return json_bytes(as_json(value), status, headers)


def json_bytes(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status, {**HEADERS, **(headers or {})}, media_type="application/json")


def created(location: str | None = None) -> Response:
    """201: the object was not there before."""
    return Response(status_code=201, headers=None if location is None else {"location": location})


def done() -> Response:
    """204: changed, deleted, or as it was."""
    return Response(status_code=204)


def refusal(status: int, error: str, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    """RabbitMQ's shape of an error."""
    return json_response({"error": error, "reason": reason}, status, headers)


def not_found(reason: str = "Not Found") -> Response:
    """An object, or a path, that does not exist."""
    return refusal(404, "Object Not Found", reason)


def of_error(error: PenstockError) -> Response:
    """What the server refused, as a status that RabbitMQ's tools expect for it.

    Who is logged in and may not do something gets 401 as there, but no challenge: another password would not help.
    """
    match error:
        case NotFound():
            return not_found(str(error))
        case AccessRefused():
            return refusal(401, "not_authorized", str(error))
        case NotLeading():
            return refusal(421, "misdirected_request", str(error))
        case DiskFull() | Draining() | LogBroken() | Unavailable() | QueueBlocked():
            return refusal(503, "service_unavailable", str(error), {"retry-after": "1"})
        case ExpressionError():
            return refusal(400, "bad_request", error.pointed())
        case Refused() | SettingsError():
            return refusal(400, "bad_request", str(error))
        case _:
            return refusal(500, "internal_error", str(error))


async def gathered(items: Iterable[T]) -> list[T]:
    """All of them; others have their turn after every few milliseconds."""
    out = list[T]()
    clock = asyncio.get_running_loop().time
    until = clock() + STEP_S
    for item in items:
        out.append(item)
        if clock() > until:
            await asyncio.sleep(0)
            until = clock() + STEP_S
    return out


async def _json_list(items: list[object]) -> Response:
    """A long list as JSON, encoded and sent a slice at a time: one write of many megabytes would hold the loop."""
    if len(items) <= SLICE:
        return json_response(items)
    return StreamingResponse(_sliced(items), 200, HEADERS, media_type="application/json")


async def _sliced(items: list[object]) -> AsyncIterator[bytes]:
    """The list is emptied on the way: to let go of ten thousand queues at once takes the loop 20 ms."""
    before = b"["
    while items:
        part = bytes(json_response(items[:SLICE]).body)
        del items[:SLICE]
        yield before + part[1:-1]
        before = b","
        await asyncio.sleep(0)
    yield b"]"


async def encoded(items: list[object]) -> bytes:
    parts = list[bytes]()
    for start in range(0, len(items), SLICE):
        parts.append(bytes(json_response(items[start : start + SLICE]).body)[1:-1])
        await asyncio.sleep(0)
    return b"[" + b",".join(parts) + b"]"


COLUMNS = "columns"

LIST_QUERY: Mapping[str, str] = {
    "sort": "field to sort by",
    "sort_reverse": "true: backwards",
    COLUMNS: "fields to show, with commas between",
    "name": "part of a name, or a pattern with use_regex",
    "use_regex": "true: name is a regular expression (RE2)",
    "page": "number of the page, from 1; the answer is then wrapped",
    "page_size": "items of a page, at most 500; 100 without",
}
"""The query of a list, and what each parameter is for."""

_PAGE_SIZE = 100
_PAGE_SIZE_MAX = 500
NAME_LIMIT = 256


class BadQuery(ValueError):
    """A query parameter that cannot be used; the text says why."""


def name_search(pattern: str) -> Callable[[str], bool]:
    """Whether a name holds a match of an RE2 pattern, linear in the name.  Raises BadQuery."""
    try:
        compiled = compile_pattern(pattern)
    except PatternError as error:
        raise BadQuery(f"name {shown(pattern)} is no regular expression that RE2 reads: {error.why}") from None
    return lambda name: compiled.search(to_bytes(name)) is not None


async def listed(items: Iterable[dict[str, object]], query: Mapping[str, str]) -> Response:
    """The answer to a list's query; each item is made when it is asked for.  Raises BadQuery."""
    chosen = await chosen_of(await gathered(items), query)
    if isinstance(chosen, list):
        return await _json_list(cast("list[object]", chosen))
    return json_response(chosen)


async def chosen_of(items: list[dict[str, object]], query: Mapping[str, str]) -> object:
    """What a list's query chooses, in its order.  Raises BadQuery."""
    return await asyncio.to_thread(choose, await _in_order(items, query), query)


async def _in_order(items: list[dict[str, object]], query: Mapping[str, str]) -> Sequence[Mapping[str, object]]:
    """Sorted as a query asks for."""
    asked = order(query)
    return items if asked is None else await sorted_in_steps(items, *asked)


async def sorted_in_steps(items: Sequence[T], key: Callable[[T], Any], reverse: bool = False) -> list[T]:
    """A slice at a time: a sort of everything holds the interpreter throughout."""
    starts = range(0, len(items), SLICE)
    slices = await gathered(sorted(items[start : start + SLICE], key=key, reverse=reverse) for start in starts)
    return await gathered(merge(*slices, key=key, reverse=reverse))


def order(query: Mapping[str, str]) -> tuple[Callable[[Mapping[str, object]], tuple[int, float, str]], bool] | None:
    """What a query sorts by, as a key, and whether backwards; None: by nothing."""
    sort = query.get("sort")
    if not sort:
        return None
    return (lambda item: _order(_at(item, sort))), query.get("sort_reverse", "").lower() == "true"


def choose(items: Sequence[Mapping[str, object]], query: Mapping[str, str]) -> object:
    """The list that a query asks for, of items that are in `order`.  Raises BadQuery."""
    total = len(items)
    chosen = _named(items, query)
    page = query.get("page")
    if page is None:
        return _columns(chosen, query)
    number = _count(page, "page", 1_000_000_000)
    size = _count(query.get("page_size") or str(_PAGE_SIZE), "page_size", _PAGE_SIZE_MAX)
    pages = max(1, -(-len(chosen) // size))
    if number > pages:
        raise BadQuery(f"page {number} is beyond the last one, {pages}")
    shown = chosen[(number - 1) * size : number * size]
    return {
        "filtered_count": len(chosen),
        "item_count": len(shown),
        "items": _columns(shown, query),
        "page": number,
        "page_count": pages,
        "page_size": size,
        "total_count": total,
    }


def _named(items: Sequence[Mapping[str, object]], query: Mapping[str, str]) -> Sequence[Mapping[str, object]]:
    wanted = query.get("name", "")
    if not wanted:
        return items
    if len(wanted) > NAME_LIMIT:
        raise BadQuery(f"name has {len(wanted)} characters, {NAME_LIMIT} are allowed")
    if query.get("use_regex", "").lower() == "true":
        found = name_search(wanted)
        return [item for item in items if found(str(item.get("name", "")))]
    return [item for item in items if wanted.lower() in str(item.get("name", "")).lower()]


def _columns(items: Iterable[Mapping[str, object]], query: Mapping[str, str]) -> list[Mapping[str, object]]:
    columns = [column for column in query.get("columns", "").split(",") if column]
    if not columns:
        return list(items)
    return [_only(item, columns) for item in items]


def only_columns(item: Mapping[str, object], query: Mapping[str, str]) -> Mapping[str, object]:
    """One item with the columns that the query asks for."""
    return _columns([item], query)[0]


def _only(item: Mapping[str, object], columns: Sequence[str]) -> dict[str, object]:
    out: dict[str, object] = {}
    for column in columns:
        value = _at(item, column)
        if value is None:
            continue
        *path, last = column.split(".")
        place = out
        for step in path:
            inner = place.setdefault(step, {})
            if not isinstance(inner, dict):
                break
            place = cast("dict[str, object]", inner)
        else:
            place[last] = value
    return out


def _at(item: Mapping[str, object], path: str) -> object:
    """`message_stats.publish_details.rate` of an item; None where it has none."""
    *steps, last = path.split(".")
    for step in steps:
        inner = item.get(step)
        if not isinstance(inner, dict):
            return None
        item = cast("dict[str, object]", inner)
    return item.get(last)


def _order(value: object) -> tuple[int, float, str]:
    """A key that sorts whatever comes: absent, then numbers, then text."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, (bool, int, float)):
        return 1, float(value), ""
    return 2, 0.0, str(value)


def _count(text: str, what: str, highest: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12 and 1 <= int(text) <= highest):
        raise BadQuery(f"{what} is {shown(text)}, not a whole number from 1 to {highest}")
    return int(text)
