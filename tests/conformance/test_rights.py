"""Who may do what, over every door: all operations times all kinds of user, judged by the table in `rights_table`.

A usual run asks each operation as the few users who tell any two rules apart, and as one of the others in turn.
Allowed alike everywhere, refused alike, and a refusal is the same for what is there and what is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from urllib.parse import quote
from zlib import crc32

import pytest

from choices import EFFORT
from penstock.client.admin import OF_A_VHOST
from penstock.wire.amqp import methods as m
from penstock.wire.flight import tickets
from rights_house import GONE, HELD, PARTS, USERS, Answer, House, Link, User
from rights_table import (
    ACTIONS,
    EXCHANGES,
    GETS,
    HTTP,
    METHODS,
    MONITORS,
    OPERATIONS,
    PASSIVE,
    PUTS,
    RULES,
    THREE_OF,
    Method,
    Way,
    allowed,
    changes,
    variables,
    without,
)

pytestmark = pytest.mark.conformance

GONE_VHOST = "gone-vhost"

REFUSED = {"refused", "404", "NotFound"}
"""Kinds of answers to who may not; a stream that he may not read is as one that is not there."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("rights")) as house:
        yield house


def test_every_operation_has_a_row(house: House) -> None:
    rows = house.application.table.rows
    assert {f"{row.method} {row.path}" for row in rows} == set(HTTP)
    assert set(house.server.flight.actions.table) == set(ACTIONS)
    assert tickets._GET.keys() == set(GETS)
    assert tickets._PUT.keys() == set(PUTS)
    assert tickets._EXCHANGE.keys() == set(EXCHANGES)
    assert {one for one in m.METHODS.values() if one.FROM_CLIENT} == set(METHODS)


SENTENCES = {
    "every login": "anybody",
    "who has the vhost, or `monitoring`": "sees",
    "who may read the topic, or `monitoring`": "reads or monitors",
    "who has the vhost": "opens",
    "`configure`, `write`, `read` of each name, as in RabbitMQ": "uses",
    "all three of all names of the vhost, or `administrator`": "all of it",
    "`policymaker` who has the vhost, or `administrator`": "policies",
    "`monitoring`": "monitors",
    "`monitoring`, or whom pipelines act as": "monitors",
    "`administrator`, or whom pipelines act as": "administrators",
    "`administrator`": "administrators",
}
OTHERWISE = {"topics": "reads or monitors", "connection_close": "anybody"}
"""Actions of which the table asks something else than the page says: what a list shows, whose connections they are."""


def test_the_page_says_which_action_takes_what() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()
    told = dict[str, str]()
    for line in page.splitlines():
        who, _, rest = line.removeprefix("| ").partition(" | ")
        if who in SENTENCES:
            told |= dict.fromkeys(re.findall(r"`(\w+)`", rest.partition(" | ")[0]), SENTENCES[who])
    assert told == {name: OTHERWISE.get(name, OPERATIONS[way.operation]) for name, way in ACTIONS.items()}


FEW = {
    "untagged-all", "management-all", "policymaker-nothing", "policymaker-other", "monitoring-other",
    "administrator-other",
}  # fmt: skip
"""Users of whom, for any two rules, one may by the one and may not by the other: no row has another rule unnoticed."""


def asked(row: object) -> list[User]:
    """As whom a usual run asks a row: those few, and one of the others; a hunt all."""
    others = [user.name for user in USERS if user.name not in FEW]
    names = FEW | {others[crc32(str(row).encode()) % len(others)]}
    return [user for user in USERS if EFFORT > 1 or user.name in names]


@pytest.mark.parametrize("tagged", [False, True])
def test_few_users_tell_any_two_rules_apart(tagged: bool) -> None:
    """tagged: of those alone who may use HTTP at all."""

    def told(one: str, other: str, users: list[User]) -> bool:
        return any(RULES[one](user) != RULES[other](user) for user in users if user.tag or not tagged)

    few = [user for user in USERS if user.name in FEW]
    assert len(few) == len(FEW)
    for one, other in combinations(RULES, 2):
        assert told(one, other, few) == told(one, other, USERS), (one, other)


class Findings:
    """What was otherwise than the table says, to be told together."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.wrong = list[str]()

    def judge(
        self, what: str, user: User, may: bool, way: Way | Method, ask: Callable[[str, str], Answer], *, vhost: bool
    ) -> None:
        """ask: about a name in a vhost.  vhost: whether it names one."""
        answer = ask(HELD, "/")
        if may:
            if answer.kind not in {"ok", *way.other.split()}:
                self.wrong.append(f"{what} as {user.name}: allowed, and it is {answer.kind}: {answer.text[:150]}")
            if changes(way.operation):
                self.house.mend()
            return
        if answer.kind not in REFUSED:
            self.wrong.append(f"{what} as {user.name}: not allowed, and it is {answer.kind}: {answer.text[:150]}")
            self.house.mend()
            return
        missing = ask(GONE, "/")
        if missing.plain != answer.plain:
            self._told(what, user, "what is there", answer, missing)
        if vhost and not user.opens and user.tag not in MONITORS:
            elsewhere = ask(HELD, GONE_VHOST)
            if elsewhere.plain != answer.plain:
                self._told(what, user, "which vhosts there are", answer, elsewhere)

    def _told(self, what: str, user: User, which: str, one: Answer, other: Answer) -> None:
        self.wrong.append(f"{what} as {user.name}: tells {which}: {one.text[:100]!r}, {other.text[:100]!r}")

    def shows(self, what: str, user: User, answer: Answer, may: bool) -> None:
        """A list has what is in the vhost when the user may see that, and nothing of it otherwise."""
        if (HELD in answer.text) != may:
            shown = "shows" if HELD in answer.text else "does not show"
            self.wrong.append(f"{what} as {user.name}: {shown} what is in the vhost: {answer.text[:150]}")

    def end(self) -> None:
        assert not self.wrong, f"{len(self.wrong)} findings:\n" + "\n".join(self.wrong)


def filled(row: str, house: House, name: str, vhost: str) -> str:
    """A path with all its variables."""
    values = variables(row)
    path = row.partition(" ")[2]
    if name == GONE:
        values = {key: GONE if key not in {"vhost", "component"} else value for key, value in values.items()}
        if values["vhost"].startswith(HELD):
            values["vhost"] = GONE
    if vhost != "/":
        values["vhost"] = vhost
    port = house.server.addresses["http"].rsplit(":", 1)[1]
    for key, value in values.items():
        text = value.replace("CONNECTION", house.connection).replace("PORT", port)
        path = path.replace("{" + key + "}", quote(text, safe=""))
    return path


@pytest.mark.parametrize("row", HTTP, ids=str)
def test_http(house: House, row: str) -> None:
    found, way = Findings(house), HTTP[row]
    method, path = row.split(" ")
    events = path == "/api/events"

    def ask(user: User, name: str, vhost: str) -> Answer:
        body = without(way.body) if name == GONE and isinstance(way.body, Mapping) else way.body  # type: ignore[arg-type]
        return house.http(user.name, "HEAD" if events else method, filled(row, house, name, vhost), body)

    for user in asked(row):
        may = bool(user.tag) and allowed(way.operation, user)
        found.judge(row, user, may, way, partial(ask, user), vhost="{vhost}" in path)
        if may and method == "GET" and HELD not in filled(row, house, HELD, "/") and path in LISTS:
            found.shows(row, user, ask(user, HELD, "/"), LISTS[path](user))
    refused = house.http("administrator-all", method, filled(row, house, HELD, "/"), way.body, "wrong")
    assert refused.kind == "refused"
    assert refused == house.http("nobody", method, filled(row, house, GONE, GONE_VHOST), way.body)
    found.end()


def _sees(user: User) -> bool:
    return allowed("list of a vhost", user)


def _monitors(user: User) -> bool:
    return allowed("streams", user)


LISTS: Mapping[str, Callable[[User], bool]] = {
    "/api/queues": _sees,
    "/api/exchanges": _sees,
    "/api/bindings": _sees,
    "/api/policies": _sees,
    "/api/operator-policies": _sees,
    "/api/parameters": lambda user: allowed("look at parameters", user),
    "/api/topics": lambda user: allowed("look at a topic", user),
    "/api/vhosts": _monitors,  # nobody may open held-vhost
    "/api/vhost-limits": _monitors,
    "/api/connections": _monitors,
    "/api/channels": _monitors,
}
"""Which users find in a list what begins with `held`."""


@pytest.mark.parametrize("name", ACTIONS)
def test_actions(house: House, name: str) -> None:
    found, way = Findings(house), ACTIONS[name]
    fields: dict[str, object] = dict(way.body)  # type: ignore[call-overload]

    def ask(user: User, what: str, vhost: str) -> Answer:
        body = without(fields) if what == GONE else dict(fields)
        if vhost != "/":
            body["vhost"] = vhost
        return house.act(user.name, name, body)

    for user in asked(name):
        may = allowed(way.operation, user)
        found.judge(name, user, may, way, partial(ask, user), vhost=name in ASKED_IN_A_VHOST)
        if may and name in SHOWN:
            found.shows(name, user, ask(user, HELD, "/"), SHOWN[name](user))
    found.end()


ASKED_IN_A_VHOST = OF_A_VHOST | {"cuts", "locate", "plan_changes"}
"""Actions with a field `vhost` whose absence is not said to all."""

SHOWN: Mapping[str, Callable[[User], bool]] = {
    "list": _sees,
    "exchanges": _sees,
    "bindings": _sees,
    "policies": _sees,
    "topics": LISTS["/api/topics"],
    "vhosts": _monitors,
    "connections": _monitors,
    "streams": _monitors,
}


@pytest.mark.parametrize("name", [*GETS, *PUTS, *EXCHANGES])
def test_streams_of_flight(house: House, name: str) -> None:
    found = Findings(house)
    way = {**GETS, **PUTS, **EXCHANGES}[name]
    call = house.get if name in GETS else house.put if name in PUTS else house.exchange

    def ask(user: User, what: str, vhost: str) -> Answer:
        fields = without(way.body) if what == GONE else dict(way.body)  # type: ignore[arg-type, call-overload]
        if vhost != "/":
            fields["vhost"] = vhost
        return call(user.name, {name: fields})

    named = name not in {"log", "plan", "link"}
    for user in asked(name):
        found.judge(name, user, allowed(way.operation, user), way, partial(ask, user), vhost=named)
    assert call("administrator-all", {name: way.body}, "wrong").kind == "refused"
    found.end()


def test_who_opens_the_vhost(house: House) -> None:
    for user in USERS:
        link = house.amqp(user.name)
        assert bool(link.refused) != user.opens, user
        if not user.opens and user.tag not in MONITORS:  # who sees all may know which there are
            other = Link(house._port("amqp"), user.name, GONE_VHOST)
            assert other.refused.replace(GONE_VHOST, "/") == link.refused
            other.close()


@pytest.mark.parametrize("row", ["POST /api/query", "POST /api/tokens"])
def test_a_vhost_that_a_body_names_is_the_one_that_is_asked_for(house: House, row: str) -> None:
    method, path = row.split(" ")
    for user in (one for one in USERS if one.tag):
        asked = [
            house.http(user.name, method, path, {**HTTP[row].body, "vhost": vhost})  # type: ignore[dict-item]
            for vhost in ("shop", "/", GONE_VHOST)
        ]
        assert (asked[0].kind == "ok") == (user.has == "other"), (user, asked[0])
        assert (asked[1].kind == "ok") == user.opens, (user, asked[1])
        assert asked[2].kind == "refused", (user, asked[2])


ASKING = [*(one for one in METHODS if METHODS[one].make is not None), *PASSIVE]


@pytest.mark.parametrize("method", ASKING, ids=lambda one: getattr(one, "__name__", one))
def test_methods(house: House, method: type[m.Method] | str) -> None:
    found = Findings(house)
    row = PASSIVE[method] if isinstance(method, str) else METHODS[method]
    assert row.make is not None
    make = row.make

    def ask(user: User, name: str, vhost: str) -> Answer:
        return house.amqp(user.name).ask(*row.before, make(name), body=method is m.BasicPublish)

    for user in asked(method):
        if user.opens:
            found.judge(str(method), user, allowed(row.operation, user), row, partial(ask, user), vhost=False)
    found.end()


def _asking(house: House, door: str, row: str, user: User) -> tuple[Way | Method, Callable[[], Answer]]:
    """What a row of some door is, and what asks it as a user."""
    if door == "http":
        way = HTTP[row]
        return way, lambda: house.http(user.name, row.split(" ")[0], filled(row, house, HELD, "/"), way.body)
    if door == "action":
        way = ACTIONS[row]
        return way, lambda: house.act(user.name, row, dict(way.body))  # type: ignore[call-overload]
    if door == "amqp":
        method = BY_NAME[row]
        assert method.make is not None
        last = method.make(HELD)
        return method, lambda: house.amqp(user.name).ask(*method.before, last, body=row == "BasicPublish")
    way = {**GETS, **PUTS, **EXCHANGES}[row]
    call = house.get if row in GETS else house.put if row in PUTS else house.exchange
    return way, lambda: call(user.name, {row: dict(way.body)})  # type: ignore[call-overload]


BY_NAME: Mapping[str, Method] = {getattr(one, "__name__", str(one)): METHODS[one] for one in METHODS}  # type: ignore[index]
SOME = [
    (door, row)
    for door, rows in (
        ("http", HTTP), ("action", ACTIONS), ("stream", {**GETS, **PUTS, **EXCHANGES}), ("amqp", BY_NAME),
    )
    for row, way in rows.items()
    if way.operation in THREE_OF
]  # fmt: skip


def test_each_operation_that_takes_some_of_a_permission_says_which() -> None:
    takes = {name for name, rule in OPERATIONS.items() if rule in {"uses", "all of it", "reads or monitors"}}
    assert takes == set(THREE_OF)


@pytest.mark.parametrize(("door", "row"), SOME, ids=str)
def test_which_of_the_three_it_takes(house: House, door: str, row: str) -> None:
    """Who may do one or two of them with every name: as much as it takes is allowed, and no less."""
    wrong = list[str]()
    for user in PARTS:
        way, ask = _asking(house, door, row, user)
        takes = THREE_OF[way.operation]
        may, answer = takes <= set(user.has.split("+")), ask()
        if may and answer.kind not in {"ok", *way.other.split()}:
            wrong.append(f"as {user.name}: allowed, and it is {answer.kind}: {answer.text[:150]}")
        if not may and answer.kind not in REFUSED:
            wrong.append(f"as {user.name}: not allowed, and it is {answer.kind}: {answer.text[:150]}")
        if answer.kind not in REFUSED and changes(way.operation):
            house.mend()
    assert not wrong, "\n".join(wrong)
