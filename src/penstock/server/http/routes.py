"""Paths: a table of rows, found by the parts of the path as it was sent, so that `%2F` stays inside its part.

Starlette would decode the path first, and then a vhost `/` is a slash like any other.  A row says what the path is for,
which right it takes, which fields its body has and which parameters its query: the dispatcher has the right judged,
`/api/openapi.json` is written from it.  Users without a tag of the management API are let into none of them, as in
RabbitMQ.

A handler is shown the parameters of its row alone.  On a path of our own another one is refused, where a misspelt one
would do something else.  RabbitMQ's pages and tools send what no server heeds (`pagination`, `disable_stats`,
`lengths_age`): on its paths that is passed over, as there.

Some rows come of operations (`Deriving`).  A variable of such a path is an argument of the operation, under another
name where RabbitMQ has one, or chooses among the items of a list.  What is not found is not named, as there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import InvalidArgument, NotFound, Unavailable, shown
from penstock.records.dataclass import dataclass
from penstock.records.rights import LISTS, LISTS_RULES, MANAGEMENT, RULES, SEES, Level, Right
from penstock.server.people.access import Who, hinted, judge
from penstock.wire.fields import Fields, short
from penstock.wire.http.bodies import BODY_MOST, LARGE_MOST, Brought, Lenient, Reading
from penstock.wire.http.lists import (
    COLUMNS,
    LIST_QUERY,
    created,
    done,
    gathered,
    json_response,
    listed,
    not_found,
    only_columns,
    refusal,
)

if TYPE_CHECKING:
    from penstock.operations.operation import Operation, Path
    from penstock.server.operating import Operating


@dataclass(slots=True)
class Ask:
    """One request: who asks, for what."""

    request: Request
    user: str  # as he logged in: of a token its name
    who: Who
    right: Right  # what the path asks
    names: Mapping[str, str]  # variables of the path, decoded
    query: Mapping[str, str]  # what follows the question mark, of the parameters that the row has
    reader: Reader

    def may(self, level: Level) -> bool:
        """Whether the user's tags are that far."""
        return level.holds(self.who.tags)

    async def listed(self, items: Iterable[dict[str, object]]) -> Response:
        """The answer to a list's query; where its right says so, of each vhost that the user may not see nothing."""
        if self.right.each:
            known = dict[object, bool]()

            def shown(vhost: object) -> bool:
                if vhost not in known:
                    known[vhost] = self.who.has(str(vhost), self.right.everywhere)
                return known[vhost]

            items = (one for one in items if shown(one["vhost"]))
        return await listed(items, self.query)

    async def fields(self, most: int = BODY_MOST, *, once: bool = False) -> Lenient:
        """The body, a JSON object.  Raises InvalidArgument; with `once` for a key that is there twice, too."""
        return Lenient(await self.reader(self.request, self.user, Reading(most, once)))

    async def message(self) -> Brought:
        """The message that the body holds.  Raises InvalidArgument."""
        found: Brought = await self.reader(self.request, self.user, Reading(LARGE_MOST, message=True))
        return found

    def flag(self, name: str) -> bool:
        """Whether the query has it as `true`."""
        return self.query.get(name, "").lower() == "true"


RABBITMQ_VERSION = "3.13.0"
"""What tools that look at `rabbitmq_version` are told: the version whose behaviour they will meet."""

DEFAULT_NAME = "amq.default"
"""What paths call the default exchange, which has no name."""

Reader: TypeAlias = "Callable[[Request, str, Reading], Awaitable[Any]]"
"""Reads what is wanted of the body of a user's request."""

Handler: TypeAlias = "Callable[[Ask], Awaitable[Response]]"


class Row(NamedTuple):
    """One method of one path."""

    method: str
    path: str  # "/api/queues/{vhost}/{name}"
    handler: Handler
    summary: str
    right: Right  # that the user needs, beside a tag that lets him in here at all
    body: str = ""  # fields of the body, with spaces between
    many: bool = False  # a list, with the query of lists
    query: str = ""  # parameters of the query beside that, with spaces between
    own: bool = False  # a path that RabbitMQ has not: other parameters are refused
    names: Mapping[str, str] = {}  # what its right calls a variable of the path, where that is another name
    operation: str = ""  # that it carries out, of those that other doors have too
    tells: bool = True  # what is not there is named; RabbitMQ's paths do not

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/"))

    @property
    def parameters(self) -> tuple[str, ...]:
        """Of the query."""
        return (*self.query.split(), *(LIST_QUERY if self.many else ()))

    def asked(self, query: Mapping[str, str]) -> Mapping[str, str]:
        """The parameters of a query that it has.  InvalidArgument for another one on a path of our own."""
        known = self.parameters
        for name in query if self.own else ():
            if name not in known:
                allowed = f"it is not one of {', '.join(known)}" if known else "none is known here"
                raise InvalidArgument(f"unknown parameter {name[:60]!r} with the value {shown(query[name])}: {allowed}")
        return {name: query[name] for name in known if name in query}


class _Place:
    """What paths have in common up to one of their parts; "" leads on where any part may be."""

    def __init__(self) -> None:
        self.inner = dict[str, _Place]()
        self.methods = dict[str, Row]()  # of the path that ends here
        self.variables: Sequence[tuple[int, str]] = ()  # which of its parts has a name, as the first row calls it


class Table:
    """All paths, and who may use which of a server's vhosts."""

    def __init__(self, vhosts: Container[str], rows: Iterable[Row] = ()) -> None:
        """vhosts: that there are.  ValueError for two rows of one path and method."""
        self.rows = list[Row]()
        self._vhosts = vhosts
        self._root = _Place()
        self._sorting = WeakValueDictionary[str, asyncio.Lock]()  # by user, who has one sorted list at a time
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """One more; a literal part of a path comes before a variable in the same place."""
        place, parts = self._root, row.parts
        for part in parts:
            place = place.inner.setdefault("" if part.startswith("{") else part, _Place())
        if row.method in place.methods:
            raise ValueError(f"{row.method} {row.path} has two rows")
        if not place.methods:
            place.variables = [(at, part[1:-1]) for at, part in enumerate(parts) if part.startswith("{")]
        place.methods[row.method] = row
        self.rows.append(row)

    def find(self, parts: Sequence[str]) -> tuple[Mapping[str, Row], dict[str, str]] | None:
        """The rows of a path by their method, and its variables; None for an unknown path."""
        todo = [(self._root, 0)]
        while todo:
            place, at = todo.pop()
            if at < len(parts):
                for part in ("", parts[at]):  # what is literal is looked at first
                    if (inner := place.inner.get(part)) is not None:
                        todo.append((inner, at + 1))
            elif place.methods:
                return place.methods, {name: parts[at] for at, name in place.variables}
        return None

    async def answer(self, request: Request, user: str, who: Who, reader: Reader, stack: ExitStack) -> Response:
        """Find the row, judge its right, and carry it out.  stack: what is the request's until its answer is out."""
        if not MANAGEMENT.holds(who.tags):
            return refusal(401, "not_authorized", "Not management user")
        found = self.find(raw_parts(request))
        if found is None:
            return not_found()
        methods, names = found
        row = methods.get("GET" if request.method == "HEAD" else request.method)
        if row is None:
            allowed = {"allow": ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])}
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=allowed)
            return refusal(405, "method_not_allowed", "Method Not Allowed", allowed)
        judged = {**names, **{row.names[one]: names[one] for one in row.names}} if row.names else names
        tells = False  # of vhosts no path does
        try:
            judge(who, row.right, judged, self._vhosts, row.summary)
            tells = row.tells
            query = row.asked(request.query_params)
            ask = Ask(request, user, who, row.right, names, query, reader)
            if row.many and query.get("sort"):
                return await while_asked(request, self._alone(row, ask, stack))
            return await row.handler(ask)
        except NotFound as error:
            if tells:
                raise hinted(error, who.rights) from None
            return not_found()

    async def _alone(self, row: Row, ask: Ask, stack: ExitStack) -> Response:
        """A list that is sorted is there as a whole, as objects, until it is sent: a user's next one begins then.

        128 of 10,000 queues, of one user, took 3 GB.
        """
        lock = self._sorting.setdefault(ask.who.user, asyncio.Lock())
        await lock.acquire()
        stack.callback(lock.release)
        return await row.handler(ask)


def exchange_name(part: str) -> str:
    """The exchange that a part of a path names."""
    return "" if part == DEFAULT_NAME else part


def raw_parts(request: Request) -> list[str]:
    """Parts of the path as it was sent, each decoded by itself; a slash at the end says nothing."""
    raw: bytes | None = request.scope.get("raw_path")
    path = raw.decode("ascii", "replace") if raw is not None else request.url.path
    return [unquote(part) for part in path.partition("?")[0].removeprefix("/").removesuffix("/").split("/")]


NONE: Mapping[str, str] = {}

ENDS = frozenset({"exchange", "source", "destination"})
"""Arguments that name an exchange."""


def named(ask: Ask, names: Names) -> dict[str, str]:
    """The variables of a path, as an operation calls them."""
    found = dict[str, str]()
    for variable, value in ask.names.items():
        name = names.get(variable, variable)
        found[name] = exchange_name(value) if name in ENDS else value
    return found


def _made(answer: Mapping[str, Any]) -> Response:
    """RabbitMQ's answer, which has no body: what is to be known beside it stands in the header of RFC 7234, 5.5."""
    response = created() if answer["new"] else done()
    for sentence in answer.get("warnings", ()):
        response.headers.append("warning", f"199 penstock {json.dumps(sentence)}")
    return response


Names: TypeAlias = Mapping[str, str]
"""What a variable of a path is called by an operation, or in the items of its list."""

Read: TypeAlias = "Callable[[Lenient], Mapping[str, object]]"
"""Arguments that a body has."""

Shape: TypeAlias = "Callable[[Any], dict[str, object]]"
"""An item in RabbitMQ's fields."""


class Deriving:
    """Rows of the table of paths."""

    def __init__(self, house: Operating, *, tells: bool = False) -> None:
        """tells: what is not found is named, on paths that RabbitMQ has not."""
        self._house = house
        self._tells = tells

    # -- looking

    def list(
        self, path: str, operation: Operation, summary: str, names: Names | None = None, *, right: Right | None = None,
        shape: Shape = dict, **fixed: object,
    ) -> Row:  # fmt: skip
        """A list, with the query of lists."""
        handler = self._list(operation, names or {}, shape, fixed)
        return self._row("GET", path, handler, operation, summary, names, fixed, right, many=True)

    def one(
        self, path: str, operation: Operation, summary: str, names: Names | None = None, *, right: Right | None = None,
        shape: Shape = dict, **fixed: object,
    ) -> Row:  # fmt: skip
        """An item of a list, by its names."""

        async def handler(ask: Ask) -> Response:
            found = next(iter(await self._items(operation, ask, names or {}, fixed)), None)
            return not_found() if found is None else json_response(only_columns(shape(found), ask.query))

        return self._row("GET", path, handler, operation, summary, names, fixed, right, query=COLUMNS)

    def _list(self, operation: Operation, names: Names, shape: Shape, fixed: Mapping[str, object]) -> Handler:
        async def handler(ask: Ask) -> Response:
            return await ask.listed(map(shape, await self._items(operation, ask, names, fixed)))

        return handler

    def part(self, path: str, operation: Operation, summary: str, whole: Operation, key: str, **fixed: object) -> Row:
        """A list that is about a thing, which has to be there: an item of another list."""
        inner = self._list(operation, {}, dict, fixed)

        async def handler(ask: Ask) -> Response:
            there = await self._house.operate(whole, ask.who, {})
            return await inner(ask) if any(one["name"] == ask.names[key] for one in there) else not_found()

        return self._row("GET", path, handler, operation, summary, None, fixed, None, many=True)

    async def _items(self, operation: Operation, ask: Ask, names: Names, fixed: Mapping[str, object]) -> Any:
        """Those that the variables choose which are no arguments."""
        arguments = operation.filled(fixed)
        if "vhost" in arguments:
            arguments["vhost"] = None
        chosen = dict[str, str]()
        for name, value in named(ask, names).items():
            (arguments if name in arguments else chosen)[name] = value
        found = await self._house.operate(operation, ask.who, arguments)
        return (one for one in found if all(one[name] == value for name, value in chosen.items())) if chosen else found

    # -- changing

    def put(
        self, path: str, operation: Operation, summary: str, read: Read | None = None, names: Names | None = None, *,
        thing: str = "", body: str = "", once: bool = False, right: Right | None = None, **fixed: object,
    ) -> Row:  # fmt: skip
        """201 for what is new, 204 for what was there.  thing: what the last variable of the path is the name of.

        Without `read` the fields of the body are arguments as the operation declares them.
        """
        if read is None and body:
            declared = [one for one in operation.fields if one.name in body.split()]
            read = partial(Lenient.read, declared=declared)
        variable = path.rpartition("/")[2].strip("{}")
        handler = self._changing(
            operation, names or {}, read, fixed, _made, once=once, called=(variable, thing) if thing else None
        )
        return self._row("PUT", path, handler, operation, summary, names, fixed, right, body=body)

    def do(
        self, method: str, path: str, operation: Operation, summary: str, read: Read | None = None,
        names: Names | None = None, *, body: str = "", once: bool = False,
        answer: Callable[[Mapping[str, Any]], Response] = lambda _: done(), flags: Mapping[str, str] = NONE,
        own: bool = False, **fixed: object,
    ) -> Row:  # fmt: skip
        """204, or what `answer` makes.  flags: arguments that stand in the query, by their names there."""
        handler = self._changing(operation, names or {}, read, fixed, answer, once=once, flags=flags)
        return self._row(
            method, path, handler, operation, summary, names, fixed, None, body=body, query=" ".join(flags), own=own
        )

    def _changing(
        self, operation: Operation, names: Names, read: Read | None, fixed: Mapping[str, object],
        answer: Callable[[Mapping[str, Any]], Response], *, once: bool, called: tuple[str, str] | None = None,
        flags: Mapping[str, str] = NONE,
    ) -> Handler:  # fmt: skip
        async def handler(ask: Ask) -> Response:
            given: Mapping[str, object] = read(await ask.fields(once=once)) if read is not None else {}
            if called is not None:
                short(ask.names[called[0]], f"the name of {called[1]}")
            chosen = {**fixed, **named(ask, names), **given}
            for flag, argument in flags.items():
                chosen[argument] = ask.flag(flag)
            return answer(await self._house.operate(operation, ask.who, chosen))

        return handler

    def plain(self, operation: Operation, path: Path) -> Row:
        """The answer as it is, on a path that the row names."""
        asked = path.fields.split()
        fields = [one for one in operation.fields if one.name in asked]

        async def handler(ask: Ask) -> Response:
            given = Lenient(ask.query) if path.method == "GET" else (await ask.fields()).only(*asked)
            values = Fields(operation.name, {**named(ask, path.names), **given.loosely(fields)})
            answer = await self._house.operate(operation, ask.who, values.read(operation.fields))
            return json_response(await gathered(answer) if operation.manner == "list" else answer)

        query, body = (path.fields, "") if path.method == "GET" else ("", path.fields)
        return self._row(
            path.method, path.path, handler, operation, path.summary, path.names, {}, path.right,
            body=body, query=query, own=True,
        )  # fmt: skip

    # -- both

    def _row(
        self, method: str, path: str, handler: Callable[[Ask], Awaitable[Response]], operation: Operation, summary: str,
        names: Names | None, fixed: Mapping[str, object], right: Right | None, *, body: str = "", many: bool = False,
        query: str = "", own: bool = False,
    ) -> Row:  # fmt: skip
        right = right or operation.right_of(fixed)
        if "{vhost}" not in path:
            right = {SEES: LISTS, RULES: LISTS_RULES}.get(right, right)
        return Row(
            method, path, handler, summary, right, body, many, query, own, names or {}, operation.name, self._tells
        )


T = TypeVar("T")

LOOK_S = 0.25
"""How often a wait looks whether the client still waits."""


async def while_asked(request: Request, work: Coroutine[object, object, T]) -> T:
    """The result of a work that may be long; it is cancelled when the client goes, which a handler is not told."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
            if await request.is_disconnected() and not task.done():
                raise Unavailable("the client is gone")
        return task.result()
    finally:
        task.cancel()
