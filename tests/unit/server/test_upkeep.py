"""While the child works on the whole log, the server holds still what the listing names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from flight_house import FlightHouse
from penstock.errors import AccessRefused, InvalidArgument, LogDamaged, Unavailable
from penstock.history.view import Moved
from penstock.server.bulk.process import Bulk, Progress
from penstock.server.bulk.relay import on_log
from penstock.server.flight.calls import Caller
from penstock.server.flight.log_actions import upkeep_actions
from penstock.server.people.access import Who


class Looking(Bulk):
    """A child that does what the test says."""

    work: Callable[[str, dict[str, Any]], dict[str, Any]]

    def call(
        self,
        job: str,
        values: dict[str, object],
        *,
        progress: Progress | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> dict[str, Any]:
        return self.work(job, values)


def test_nothing_goes_while_a_backup_is_made(tmp_path: Path) -> None:
    bulk = Looking(tmp_path)
    with FlightHouse(tmp_path, bulk=bulk) as house, penstock.connect(house.url) as client:
        client.declare_topic("t")
        client.publish("t", b"x")
        stages = house.door.stages
        seen = dict[str, object]()

        def work(job: str, values: dict[str, Any]) -> dict[str, Any]:
            seen[job] = (house.run(house.engine.floor), house.run(house.engine.held), stages.frozen)
            assert values["log"]["durable"] == house.log.durable
            raise Unavailable("the child died") if job == "backup" else Moved("log/1")

        bulk.work = work
        free = house.run(house.engine.held)
        with pytest.raises(Unavailable, match="the child died"):
            client.action("backup", with_vhost=False, target=str(tmp_path / "b"))
        with pytest.raises(LogDamaged, match="log/1 is not the file that the server has"):
            client.action("log_verify", with_vhost=False)
        first = house.log.first_lsn
        assert seen == {"backup": (first, first, True), "verify": (first, first, False)}
        assert house.run(house.engine.held) == free
        assert not stages.frozen


def test_a_backup_is_asked_for_on_the_machine_of_the_server() -> None:
    actions = upkeep_actions(None)  # type: ignore[arg-type]  # nothing is asked of it
    far = Caller(Who("guest"), "ipv4:10.1.2.3:999", lambda: False)
    with pytest.raises(AccessRefused, match=r"10\.1\.2\.3"):
        actions["backup"].answer(far, "backup", {"target": "/b"})
    near = Caller(Who("guest"), "ipv4:127.0.0.1:999", lambda: False)
    for wrong in ({}, {"target": ""}, {"target": "/b\0"}, {"target": "/b", "copy": "yes"}):
        with pytest.raises(InvalidArgument):
            actions["backup"].answer(near, "backup", wrong)


def test_a_file_that_was_replaced_before_it_was_opened_is_listed_again(tmp_path: Path) -> None:
    listed = list[object]()

    def ask(told: dict[str, object]) -> int:
        listed.append(told["durable"])
        if len(listed) == 1:
            raise Moved("log/1")
        return 7

    with FlightHouse(tmp_path) as house:
        assert on_log(house.log, ask) == 7
        assert listed == [house.log.durable] * 2
