"""A login that is refused is no server that is away, whichever call hears of it first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flight_house import house_with_a_queue
from penstock import connect
from penstock.errors import AccessRefused, NotFound
from penstock.records.tokens import login_of
from penstock.spark.remote import Remote, Where

CALLS: dict[str, Callable[[Remote], object]] = {
    "schema": lambda server: server.schema("queue", name="q", vhost="/"),
    "act": lambda server: server.act("stats", queue="q", vhost="/"),
    "rows": lambda server: list(server.rows("queue", name="q", vhost="/")),
    "gathered": lambda server: server.gathered("queue", name="q", vhost="/"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("before", ["ended", "ends"])
def test_a_login_that_has_ended_is_told_at_once(tmp_path: Path, call: str, before: str) -> None:
    with house_with_a_queue(tmp_path) as house, connect(house.url) as client:
        made: Any = client.issue_token("5m", read=".*", write="", configure="")
        user, password = login_of(made["token"]) or ("", "")
        server = Remote(Where(f"penstock://127.0.0.1:{house.port}", user, password, patience=2.0))
        if before == "ends":
            CALLS[call](server)
        client.revoke_token(made["id"])
        with pytest.raises(AccessRefused, match="may not log in"):
            CALLS[call](server)
        server.close()


def test_a_schema_of_what_is_not_there(tmp_path: Path) -> None:
    with house_with_a_queue(tmp_path) as house:
        server = Remote(Where(house.url, patience=2.0))
        with pytest.raises(NotFound, match="no queue 'none'"):
            server.schema("queue", name="none", vhost="/")
        server.close()
