"""What a change of accounts is told as, and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.server import operating
from penstock.server.operating import events_between
from penstock.server.people.accounts import Account, Accounts, Kept, Permission, Token, TopicPermission
from planting import Plant

ANN = Account("ann", Kept("one", "argon2id"), ("management",))


def made() -> Accounts:
    """A user, a vhost, and what one may do in the other."""
    accounts = Accounts(users={"ann": ANN}, vhosts={"v": {"description": "d"}})
    accounts.permissions["ann", "v"] = Permission("ann", "v", "a", "b", "c")
    accounts.topic_permissions["ann", "v", "x"] = TopicPermission("ann", "v", "x", "b", "c")
    accounts.vhost_limits["v"] = {"max-queues": 5}
    return accounts


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda some: None, []),
        (lambda some: some.forget_user("ann"), ["user.deleted ann"]),
        (lambda some: some.forget_vhost("v"),
         ["permission.deleted ann", "topic.permission.deleted ann", "vhost.deleted v", "vhost.limits.cleared limits"]),
        (lambda some: some.vhosts["/"].update(tracing=True), ["vhost.updated /"]),
        (lambda some: some.removed.add("guest"), ["user.deleted guest"]),
        (lambda some: some.users.update(ann=Account("ann", Kept("", ""), ("management",))),
         ["user.password.cleared ann"]),
        (lambda some: some.users.update(bob=Account("bob", Kept("x", "y"), ("a", "b"))),
         ["user.created bob", "user.tags.set bob"]),
        (lambda some: some.vhost_limits["v"].clear(), ["vhost.limits.cleared limits"]),
        (lambda some: some.global_parameters.update(g=None), ["parameter.set g"]),
        (lambda some: some.tokens.clear(), []),
    ],
)  # fmt: skip
def test_events(act: Callable[[Accounts], object], told: list[str]) -> None:
    accounts = made()
    before = accounts.state()
    act(accounts)
    events = events_between(before, accounts.state())
    assert [f"{name} {fields.get('name', fields.get('user'))}" for name, fields in events] == told


def test_what_is_described_no_longer_but_always_there_is_not_deleted() -> None:
    accounts = made()
    accounts.vhosts["/"] = {"tracing": True}
    before = accounts.state()
    accounts.vhosts["/"].clear()
    assert events_between(before, accounts.state()) == [("vhost.updated", {"name": "/"})]


def test_no_event_has_a_password() -> None:
    events = events_between(Accounts().state(), made().state())
    assert len(events) == 6
    assert "one" not in str(events)
    assert "argon2id" not in str(events)


async def test_a_change_calls_nothing_for_each_of_what_there_is() -> None:
    """It is written whole and compared with what was: 10,000 users with a permission each held up all for 0.4 s."""

    async def calls(count: int) -> int:
        accounts = Accounts()
        for name in map(str, range(count)):
            accounts.permissions[name, "/"] = Permission(name, "/", "a", "b", "c")
            accounts.topic_permissions[name, "/", "x"] = TopicPermission(name, "/", "x", "b", "c")
            accounts.tokens[name] = Token(name, name, "", "", "/", "a", "b", "c", ("management",), 1, 1.0)
        plant = Plant(-1, ("penstock", "dataclasses", "copy"))
        with plant.there():
            await accounts.change(lambda some: some.global_parameters.update(g=1))
        again = Accounts()
        again.restore(accounts.state())
        assert (again.permissions, again.topic_permissions, again.tokens) == (
            accounts.permissions, accounts.topic_permissions, accounts.tokens,
        )  # fmt: skip
        return plant.calls

    assert await calls(20) == await calls(2)


def test_of_many_that_are_alike_those_are_told_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the others are in no table: of 10,000 users those took 0.1 s of all a change."""
    looked, by = list[int](), operating._by

    def counted(told: dict[str, Any], kind: str, keys: tuple[str, ...]) -> Any:
        looked.append(len(told[kind]))
        return by(told, kind, keys)

    monkeypatch.setattr(operating, "_by", counted)
    accounts = Accounts(users={str(n): Account(str(n), Kept("one", "argon2id"), ()) for n in range(99)})
    before = accounts.state()
    del accounts.users["95"]
    accounts.users["97"] = Account("97", Kept("", ""), ())
    accounts.users["100"] = Account("100", Kept("one", "argon2id"), ())
    told = [f"{event} {fields['name']}" for event, fields in events_between(before, accounts.state())]
    assert told == ["user.deleted 95", "user.password.cleared 97", "user.created 100"]
    assert max(looked) < 6
