"""Spark pipelines: how each is.

GET /api/pipelines, /api/pipelines/{name}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from starlette.responses import Response

from penstock.records.rights import WATCHES
from penstock.wire.http.answers import json_response, not_found
from penstock.wire.http.routes import Ask, Row

Pipelines: TypeAlias = Callable[[], Sequence[Mapping[str, object]]]
"""Every pipeline by name, each with the key `pipeline`."""


def rows(pipelines: Pipelines) -> Sequence[Row]:
    """The paths."""
    doors = _Doors(pipelines)
    return (
        Row("GET", "/api/pipelines", doors.list, "Spark pipelines: state, rows a second, lag, last error", WATCHES),
        Row("GET", "/api/pipelines/{name}", doors.show, "One Spark pipeline", WATCHES),
    )


class _Doors:
    """The handlers."""

    def __init__(self, pipelines: Pipelines) -> None:
        self._pipelines = pipelines

    async def list(self, ask: Ask) -> Response:
        return json_response(list(self._pipelines()))

    async def show(self, ask: Ask) -> Response:
        wanted = ask.names["name"]
        found = next((one for one in self._pipelines() if one["pipeline"] == wanted), None)
        return not_found() if found is None else json_response(found)
