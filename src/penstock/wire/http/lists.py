"""Answers: JSON, RabbitMQ's shape of an error, and lists as its management API sorts, pages and cuts them.

Lists take `sort`, `sort_reverse`, `columns`, `name`, `use_regex`, `page` and `page_size`; with `page` the answer is
wrapped and counted.  They are made, sorted and encoded in time steps, so that a long one holds nobody up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

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

SENT = 64
"""Items of a list that are made before they are sent: as many as a step makes, so that of many lists that are made by
turns each has few.  A queue is 4 KiB as an object, and 2 KiB as text."""


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


_turns = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()


def turn() -> asyncio.Lock:
    """Whose step it is on this loop; it is his until the next round, for which he waits within.

    However many lists are made, they keep others waiting no longer than one does; 120 of 3,000 queues, which had a step
    each in every round, kept each confirm for four seconds.
    """
    loop = asyncio.get_running_loop()
    if (found := _turns.get(loop)) is None:
        found = _turns[loop] = asyncio.Lock()
    return found


async def gathered(items: Iterable[T]) -> list[T]:
    """All of them; others have their turn after every few milliseconds."""
    out, rest = list[T](), iter(items)
    clock = asyncio.get_running_loop().time
    over = False
    while not over:
        async with turn():
            until = clock() + STEP_S
            for item in rest:
                out.append(item)
                if clock() > until:
                    break
            else:
                over = True
            await asyncio.sleep(0)
    return out


async def encoded(items: list[object]) -> bytes:
    parts = list[bytes]()
    for start in range(0, len(items), SLICE):
        async with turn():
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
    """The answer to a list's query.  Raises BadQuery.

    Each item is made when it is asked for, and of a list that is not sorted when it is sent: however slowly somebody
    reads, there are no more than `SENT` of them, and none while their text waits.
    """
    some = await _in_order(items, query)
    if "page" in query:
        return json_response(await _page(some, query))
    wanted = _wanted(query)
    rest = (only_columns(one, query) for one in some if wanted(one))
    first = await gathered(islice(rest, SENT))
    if len(first) < SENT:
        return json_response(first)
    return StreamingResponse(_sliced(first, rest), 200, HEADERS, media_type="application/json")


async def _sliced(some: list[Mapping[str, object]], rest: Iterator[Mapping[str, object]]) -> AsyncIterator[bytes]:
    """A list as JSON, made and sent a slice at a time: one write of many megabytes would hold the loop."""
    before = b"["
    while some:
        async with turn():
            part = before + bytes(json_response(some).body)[1:-1]
            some = []  # whoever stands still has text alone
            await asyncio.sleep(0)
        yield part
        before = b","
        some = await gathered(islice(rest, SENT))
    yield b"]"


async def chosen_of(items: Iterable[dict[str, object]], query: Mapping[str, str]) -> object:
    """What a list's query chooses, in its order.  Raises BadQuery."""
    some = await _in_order(items, query)
    if "page" in query:
        return await _page(some, query)
    wanted = _wanted(query)
    return await gathered(only_columns(one, query) for one in some if wanted(one))


async def _in_order(items: Iterable[dict[str, object]], query: Mapping[str, str]) -> Iterator[Mapping[str, object]]:
    """Sorted as a query asks for."""
    asked = order(query)
    return iter(items if asked is None else await sorted_in_steps(await gathered(items), *asked))


async def _page(items: Iterator[Mapping[str, object]], query: Mapping[str, str]) -> Mapping[str, object]:
    """One page of a list, wrapped and counted.  Raises BadQuery."""
    wanted, number = _wanted(query), _count(query["page"], "page", 1_000_000_000)
    size = _count(query.get("page_size") or str(_PAGE_SIZE), "page_size", _PAGE_SIZE_MAX)
    shown, total, found = list[Mapping[str, object]](), 0, 0

    def looks() -> Iterator[None]:
        nonlocal total, found
        for one in items:
            total += 1
            if wanted(one):
                if (number - 1) * size <= found < number * size:
                    shown.append(only_columns(one, query))
                found += 1
            yield

    await gathered(looks())
    pages = max(1, -(-found // size))
    if number > pages:
        raise BadQuery(f"page {number} is beyond the last one, {pages}")
    return {
        "filtered_count": found,
        "item_count": len(shown),
        "items": shown,
        "page": number,
        "page_count": pages,
        "page_size": size,
        "total_count": total,
    }


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


def _wanted(query: Mapping[str, str]) -> Callable[[Mapping[str, object]], bool]:
    """Whether a query asks for an item, by its name.  Raises BadQuery."""
    wanted = query.get("name", "")
    if len(wanted) > NAME_LIMIT:
        raise BadQuery(f"name has {len(wanted)} characters, {NAME_LIMIT} are allowed")
    if wanted and query.get("use_regex", "").lower() == "true":
        found = name_search(wanted)
        return lambda item: found(str(item.get("name", "")))
    lower = wanted.lower()
    return lambda item: not lower or lower in str(item.get("name", "")).lower()


def only_columns(item: Mapping[str, object], query: Mapping[str, str]) -> Mapping[str, object]:
    """An item with the columns that the query asks for."""
    columns = [column for column in query.get(COLUMNS, "").split(",") if column]
    return _only(item, columns) if columns else item


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
