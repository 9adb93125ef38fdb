"""Paths of the management API, of operations: what a path names, what its body has, and the shape of its answer.

A variable of a path is an argument of the operation, under another name where RabbitMQ has one, or chooses among the
items of a list.  What is not found is not named, as there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.records.rights import LISTS, LISTS_RULES, RULES, SEES
from penstock.server.http.routes import Ask, Handler, Row, exchange_name
from penstock.wire.fields import Fields, Lenient, short
from penstock.wire.http.lists import created, done, json_response, not_found, only_columns

if TYPE_CHECKING:
    from starlette.responses import Response

    from penstock.operations.operation import Operation, Path
    from penstock.records.rights import Right
    from penstock.server.operating import Operating


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
    return created() if answer["new"] else done()


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

        return self._row("GET", path, handler, operation, summary, names, fixed, right)

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
        arguments = {**{one.name: one.default for one in operation.fields}, **fixed}
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
        **fixed: object,
    ) -> Row:  # fmt: skip
        """204, or what `answer` makes.  flags: arguments that stand in the query, by their names there."""
        handler = self._changing(operation, names or {}, read, fixed, answer, once=once, flags=flags)
        return self._row(method, path, handler, operation, summary, names, fixed, None, body=body)

    def _changing(
        self, operation: Operation, names: Names, read: Read | None, fixed: Mapping[str, object],
        answer: Callable[[Mapping[str, Any]], Response], *, once: bool, called: tuple[str, str] | None = None,
        flags: Mapping[str, str] = NONE,
    ) -> Handler:  # fmt: skip
        always = {**{one.name: one.default for one in operation.fields}, **fixed}

        async def handler(ask: Ask) -> Response:
            given: Mapping[str, object] = read(await ask.fields(once=once)) if read is not None else {}
            if called is not None:
                short(ask.names[called[0]], f"the name of {called[1]}")
            chosen = {**always, **named(ask, names), **given}
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
            return json_response(await self._house.operate(operation, ask.who, values.read(operation.fields)))

        body = "" if path.method == "GET" else path.fields
        return self._row(
            path.method, path.path, handler, operation, path.summary, path.names, {}, path.right, body=body
        )

    # -- both

    def _row(
        self, method: str, path: str, handler: Callable[[Ask], Awaitable[Response]], operation: Operation, summary: str,
        names: Names | None, fixed: Mapping[str, object], right: Right | None, *, body: str = "", many: bool = False,
    ) -> Row:  # fmt: skip
        right = right or operation.right_of(fixed)
        if "{vhost}" not in path:
            right = {SEES: LISTS, RULES: LISTS_RULES}.get(right, right)
        return Row(method, path, handler, summary, right, body, many, names or {}, operation.name, self._tells)
