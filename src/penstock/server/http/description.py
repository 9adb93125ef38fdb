"""What the tables of paths say of themselves, in the words of OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.records.rights import ADMINISTRATOR, MANAGEMENT
from penstock.wire.http.lists import LIST_QUERY

if TYPE_CHECKING:
    from penstock.server.http.probes import Probe
    from penstock.server.http.routes import Row, Table

_ANSWERS: Mapping[str, str] = {
    "400": "what was sent cannot be used; the reason names it",
    "401": "not logged in, or not allowed",
    "404": "no such object",
    "503": "the server starts, or cannot store anything",
}


def described(table: Table, probes: Mapping[str, Probe], version: str, open_: Container[str]) -> dict[str, object]:
    """All paths.  open_: those that ask for no login."""
    paths = {path: {"get": _probing(path, probe, is_open=path in open_)} for path, probe in probes.items()}
    for row in table.rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": version, "description": "RabbitMQ's management paths and our own."},
        "components": {"securitySchemes": {"basic": {"type": "http", "scheme": "basic"}}},
        "security": [{"basic": []}],
        "paths": paths,
    }


_TEXT = {"type": "string"}


def _queried(names: Iterable[str]) -> list[dict[str, object]]:
    """Parameters of a query, as OpenAPI has them."""
    said: Mapping[str, Mapping[str, object]] = {name: {"description": text} for name, text in LIST_QUERY.items()}
    return [{"name": name, "in": "query", **said.get(name, {}), "schema": _TEXT} for name in names]


def _probing(path: str, probe: Probe, *, is_open: bool) -> dict[str, object]:
    """is_open: nobody has to log in."""
    answers: dict[str, object] = {"200": {"description": probe.summary, "content": {probe.content: {}}}}
    if not is_open:
        answers["401"] = {"description": _ANSWERS["401"]}
    if probe.content == "application/json":
        answers["503"] = {"description": "it is not so"}
    return {
        "summary": probe.summary,
        "operationId": f"get{path.replace('/', '_').replace('-', '_')}",
        "tags": ["probes"],
        "parameters": _queried(probe.query.split()),
        "responses": answers,
        **({"security": []} if is_open else {}),
    }


def _operation(row: Row) -> dict[str, object]:
    variables = [part[1:-1] for part in row.parts if part.startswith("{")]
    parameters: list[dict[str, object]] = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT} for name in variables
    ]
    parameters += _queried(row.parameters)
    good = {"GET": "200", "POST": "200", "PUT": "201", "DELETE": "204"}[row.method]
    answers = {good: {"description": row.summary}, **{code: {"description": what} for code, what in _ANSWERS.items()}}
    if row.method == "PUT":
        answers["204"] = {"description": "it was there, and is as asked"}
    operation: dict[str, object] = {
        "summary": row.summary,
        "operationId": f"{row.method.lower()}_{'_'.join(part.strip('{}').replace('-', '_') for part in row.parts[1:])}",
        "tags": [row.parts[1]],
        "parameters": parameters,
        "responses": answers,
    }
    level = row.right.level if row.right.level.tags else MANAGEMENT
    operation["description"] = f"For users with the tag '{level.name}'" + (
        "." if level is ADMINISTRATOR else ", or one that includes it."
    )
    if row.body:
        properties: dict[str, object] = {name: {} for name in row.body.split()}
        schema = {"type": "object", "properties": properties}
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation
