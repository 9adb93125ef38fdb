"""`/api/openapi.json`: what the table of paths says of itself, in the words of OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from penstock.records.rights import ADMINISTRATOR, LOGIN, MANAGEMENT
from penstock.wire.http.answers import json_response
from penstock.wire.http.facts import ServerFacts
from penstock.wire.http.routes import Ask, Row, Table

LIST_QUERY: Mapping[str, str] = {
    "sort": "field to sort by",
    "sort_reverse": "true: backwards",
    "columns": "fields to show, with commas between",
    "name": "part of a name, or a pattern with use_regex",
    "use_regex": "true: name is a regular expression (RE2)",
    "page": "number of the page, from 1; the answer is then wrapped",
    "page_size": "items of a page, at most 500; 100 without",
}

ANSWERS: Mapping[str, str] = {
    "400": "what was sent cannot be used; the reason names it",
    "401": "not logged in, or not allowed",
    "404": "no such object",
    "503": "the server starts, or cannot store anything",
}


def add(table: Table, facts: ServerFacts) -> None:
    """Put the path into the table that it describes."""

    async def describe(_: Ask) -> Response:
        return json_response(described(table, str(facts.metrics().version)))

    table.add(Row("GET", "/api/openapi.json", describe, "This description", LOGIN))


def described(table: Table, version: str) -> dict[str, object]:
    paths = dict[str, dict[str, object]]()
    for row in table.rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": version, "description": "RabbitMQ's management paths and our own."},
        "components": {"securitySchemes": {"basic": {"type": "http", "scheme": "basic"}}},
        "security": [{"basic": []}],
        "paths": paths,
    }


def _operation(row: Row) -> dict[str, object]:
    variables = [part[1:-1] for part in row.parts if part.startswith("{")]
    text: dict[str, object] = {"type": "string"}
    parameters: list[Mapping[str, object]] = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in variables
    ]
    if row.many:
        parameters += [
            {"name": name, "in": "query", "description": sentence, "schema": text}
            for name, sentence in LIST_QUERY.items()
        ]
    good = {"GET": "200", "POST": "200", "PUT": "201", "DELETE": "204"}[row.method]
    answers = {good: {"description": row.summary}, **{code: {"description": what} for code, what in ANSWERS.items()}}
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
