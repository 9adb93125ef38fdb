"""The table of administrative acts: each is at every door, or says why not; and asks for the right that it says."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import typer

import penstock
from http_lab import Http
from penstock import aio
from penstock.cli import main as tree
from penstock.client import Client
from penstock.client.admin import OF_A_VHOST
from penstock.errors import AccessRefused, NotFound, Unavailable
from penstock.operations import OPERATIONS
from penstock.operations.operation import Answer, House, Operation, Path
from penstock.records.rights import LOGIN, USES
from penstock.server.flight import operation_actions
from penstock.server.http import door as http_door
from penstock.server.operating import Operating
from penstock.server.people.access import Who, judge
from penstock.server.people.accounts import Account, Accounts, Kept, Permission
from penstock.server.people.users import Users
from penstock.testing import Broker
from penstock.wire import fields as fields_of
from penstock.wire.fields import VHOST
from rights_house import USERS
from rights_table import ACTIONS, allowed

if TYPE_CHECKING:
    from penstock.server.services import Server


def commands() -> set[str]:
    """Every command, after its family."""
    found = set[str]()

    def walk(group: object, before: str) -> None:
        for name, one in getattr(group, "commands", {}).items():
            found.add(f"{before}{name}")
            walk(one, f"{before}{name} ")

    walk(typer.main.get_command(tree.whole()), "")
    return found


def test_each_operation_has_a_path_an_action_a_method_and_a_command_or_says_why_not() -> None:
    there = commands()
    with Broker() as broker:
        assert broker.http_url
        doors = broker._doors  # pyright: ignore[reportPrivateUsage]
        assert doors is not None
        paths = {row.operation for row in doors._http.application.table.rows}  # type: ignore[union-attr]
        actions = {name: one.text for name, one in doors.flight.actions.table.items()}
    for name, one in OPERATIONS.items():
        assert (name in actions) == one.action, name
        assert one.text == actions.get(name, one.text)
        absent = [what for what, is_there in (("path", name in paths), ("action", one.action), ("method", one.sdk),
                                              ("command", one.cli)) if not is_there]  # fmt: skip
        assert bool(absent) == bool(one.missing), (name, absent)
        assert not one.cli or one.cli in there, one.cli
        for client in (Client, aio.Client):
            assert not one.sdk or inspect.isroutine(getattr(client, one.sdk)), one.sdk


def test_no_operation_takes_the_name_of_another_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_actions, "OPERATIONS", {})
    with Broker() as broker:
        assert broker.flight_url
        assert broker._doors is not None  # pyright: ignore[reportPrivateUsage]
        others = broker._doors.flight.actions.table.keys()  # pyright: ignore[reportPrivateUsage]
    assert others.isdisjoint(OPERATIONS)


def test_a_new_row_is_an_action_a_path_and_a_line_of_openapi(monkeypatch: pytest.MonkeyPatch) -> None:
    def greet(house: House, who: Who, whom: str, times: int) -> Answer:
        return {"said": [f"{who.user} greets {whom}"] * times}

    path = Path("POST", "/api/greetings/{name}", {"name": "whom"}, "Greet somebody", "times")
    fields = (fields_of.name("whom"), fields_of.count("times", 1, 3, 1))
    row = Operation("greet", greet, "look", "whom, times: greet", LOGIN, fields, path=path)
    for door in (operation_actions, http_door):
        monkeypatch.setattr(door, "OPERATIONS", {**OPERATIONS, "greet": row})
    with Broker() as broker, penstock.connect(broker.flight_url) as client:
        http, said = Http(broker), "guest greets ann"
        assert client.action("greet", whom="ann", times=2) == {"said": [said, said]}
        assert http.do("POST", "greetings/ann", {"times": "3"}, 200) == {"said": [said] * 3}
        assert "times is 4, not a whole number from 1 to 3" in http.refused("POST", "greetings/ann", {"times": 4})
        assert "unknown field 'tims'" in http.refused("POST", "greetings/ann", {"tims": 1})
        told = http.get("openapi.json")["paths"]["/api/greetings/{name}"]["post"]
        assert told["summary"] == "Greet somebody"
        assert list(told["requestBody"]["content"]["application/json"]["schema"]["properties"]) == ["times"]


def test_the_client_says_its_vhost_to_each_action_that_works_in_one() -> None:
    named = {name for name, one in OPERATIONS.items() if one.action and VHOST in one.fields}
    of_people = {"permission_set", "permission_delete"}  # whose methods say which
    assert named - of_people <= OF_A_VHOST
    assert {name for name in OF_A_VHOST & OPERATIONS.keys() if VHOST not in OPERATIONS[name].fields} == set()


def test_arguments_of_a_function_are_those_that_are_declared() -> None:
    for one in OPERATIONS.values():
        first, second, *named = inspect.signature(one.run).parameters.values()
        given = {field.name for field in one.fields}
        assert [first.name, second.name] == ["house", "who"], one.name
        assert given <= {parameter.name for parameter in named}, one.name
        assert {parameter.name for parameter in named if parameter.default is parameter.empty} <= given, one.name


def test_each_action_takes_the_fields_that_its_row_names() -> None:
    with Broker() as broker:
        assert broker.flight_url
        assert broker._doors is not None  # pyright: ignore[reportPrivateUsage]
        table = broker._doors.flight.actions.table  # pyright: ignore[reportPrivateUsage]
    for name, one in table.items():
        caller, *parameters = inspect.signature(one.run).parameters.values()
        named = {it.name for it in parameters if it.kind is not it.VAR_KEYWORD}
        given = {field.name for field in one.fields}
        assert caller.name == "caller", name
        assert named <= given if len(named) < len(parameters) else named == given, name


@pytest.fixture(scope="module")
def users() -> Users:
    """Those of the matrix of rights."""
    accounts = Accounts()
    accounts.vhosts["shop"] = {}
    for user in USERS:
        accounts.users[user.name] = Account(user.name, Kept("", ""), (user.tag,) if user.tag else ())
        if user.has != "none":
            text, vhost = ("" if user.has == "nothing" else ".*"), ("shop" if user.has == "other" else "/")
            accounts.permissions[user.name, vhost] = Permission(user.name, vhost, text, text, text)
    return Users((), accounts=accounts)


class Reached(Exception):
    """A function decides."""


async def nothing(who: Who) -> dict[str, object]:
    """What a server shows that is asked for nothing else."""
    return {}


class Core:
    """Nothing is there, and nothing may be decided."""

    topology = SimpleNamespace(exchange=lambda vhost, name: None)

    def find_queue(self, vhost: str, name: str) -> None:
        return None

    def __getattr__(self, name: str) -> object:
        raise Reached(name)


JUDGED = [one for one in OPERATIONS.values() if one.name in ACTIONS]


@pytest.mark.parametrize("operation", JUDGED, ids=lambda one: one.name)
def test_an_operation_is_refused_without_its_right_and_granted_with_it(users: Users, operation: Operation) -> None:
    way = ACTIONS[operation.name]
    body = dict(way.body) if isinstance(way.body, Mapping) else {}
    arguments = {one.name: body.get(one.name, one.default) for one in operation.fields}
    house = cast(
        "House",
        SimpleNamespace(
            core=Core(),
            accounts=users.accounts,
            change=users.accounts.change,
            users=users,
            now=lambda: None,
            connections=lambda user: [],
            overview=nothing,
            addresses=dict,
        ),
    )
    for user in USERS:
        who, right = users.who(user.name), operation.right_of(body)
        try:
            judge(who, right, body, users.accounts.vhosts, operation.name)
            if right in (USES, LOGIN):  # and what the function asks for, which depends on what is there
                found = operation.run(house, who, **arguments)
                if inspect.iscoroutine(found):
                    asyncio.run(found)
        except AccessRefused:
            granted = False
        except NotFound:
            granted = way.other == "NotFound"
        except Reached:
            granted = True
        else:
            granted = True
        assert granted == allowed(way.operation, user), user


def _deciding() -> list[tuple[str, dict[str, object]]]:
    """The acts that write records without arguments which are hard to guess; a queue `q` is there."""
    return [("purge", {"queue": "q"}), ("pause", {"queue": "q"}), ("declare", {"queue": "another"})]


@pytest.mark.parametrize(("name", "arguments"), _deciding(), ids=[name for name, _ in _deciding()])
def test_no_door_decides_anything_while_the_server_stops(name: str, arguments: dict[str, object]) -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        url = broker.flight_url
        doors = broker._doors  # pyright: ignore[reportPrivateUsage]
        assert doors is not None
        with penstock.connect(url) as client:
            doors.serving = False
            with pytest.raises(Unavailable, match="the server stops"):
                client.action(name, **arguments)
            doors.serving = True
            client.action(name, **arguments)


def test_what_is_there_already_is_answered_when_it_is_durable() -> None:
    """Somebody else's record says so, and it may not be on the disk yet."""

    async def asked() -> None:
        waiting = list[Callable[[], None]]()
        engine = SimpleNamespace(
            core=SimpleNamespace(last_lsn=7, effects=[]), log=SimpleNamespace(durable=6), broken=None, on_broken=[],
            arm=lambda: None, usable=lambda: None, when_answerable=lambda since, lsn, done: waiting.append(done),
            notices=SimpleNamespace(by=nullcontext),
        )  # fmt: skip
        operating = Operating(cast("Server", SimpleNamespace(engine=engine, serving=True)))
        answer = asyncio.ensure_future(operating.decide(lambda: "there"))
        await asyncio.sleep(0)
        assert not answer.done()
        waiting[0]()
        assert await answer == "there"

    asyncio.run(asked())
