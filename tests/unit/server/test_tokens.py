"""Tokens: what they are worth, for how long, and that they are never worth more than their user."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.config.settings import User
from penstock.config.vhost_sections import EntitlementSection
from penstock.errors import AccessRefused, NotFound, PenstockError, PreconditionFailed
from penstock.log.simdisk import SimDisk
from penstock.operations import people
from penstock.records.queue_settings import QueueSettings
from penstock.records.rights import DRIVER
from penstock.records.tokens import login_of
from penstock.server.people.access import Who
from penstock.server.people.accounts import Account, Accounts, Kept, Permission, Token, hash_password
from penstock.server.people.entitlements import Rights
from penstock.server.people.logins import GOOD, Logins
from penstock.server.people.tokens import ALL, OF_USER, Scoped, is_of
from penstock.server.people.users import Users
from unit.core.world import World

THERE = "10.0.0.7"
SECRET = Kept(hash_password("secret"), "rabbit_password_hashing_sha256")


class Lab:
    """A server's people: `root` and `etl` of the settings, `ann` of run time."""

    def __init__(self, password: str = "pw", disk: SimDisk | None = None, *entries: Mapping[str, Any]) -> None:
        self.now = 1_000_000.0
        self.disk = disk or SimDisk()
        settings = [
            User(name="root", password=password, tags=("administrator",)),  # type: ignore[arg-type]
            User(name="etl", password=password),  # type: ignore[arg-type]
        ]
        self.accounts = Accounts(("/", "other"), frozenset(user.name for user in settings))
        self.accounts.load(self.disk)
        given = [EntitlementSection(**one) for one in entries]
        self.users = Users(settings, given, accounts=self.accounts, loopback_users=["etl-here"], wall=lambda: self.now)
        self.logins = Logins(self.users)
        self.house: Any = SimpleNamespace(accounts=self.accounts, users=self.users, change=self.accounts.change)

    def add(self, user: str = "ann", read: str = ALL, vhost: str = "/") -> None:
        self.accounts.users[user] = Account(user, SECRET, ())
        self.accounts.permissions[user, vhost] = Permission(user, vhost, "", "", read)
        self.accounts.tell()

    def issue(self, user: str = "etl", lasts_s: int = 60, **more: Any) -> tuple[str, str]:
        """The login of a new one."""
        given = {"vhost": "/", "configure": "", "write": ALL, "read": ALL, "tags": None, "label": "", **more}
        told = self.run(people.issue_token(self.house, self.users.who(user), lasts_s, **given))
        login = login_of(told["token"])
        assert login is not None
        return login

    def run(self, work: Any) -> Any:
        return asyncio.run(work)

    def good(self, login: tuple[str, str], door: str = "flight") -> bool:
        verdict = self.logins.at_once(door, *login, THERE)
        assert verdict is not None
        return verdict == GOOD

    def who(self, login: tuple[str, str]) -> Who:
        return self.users.who(login[0])


def test_a_token_is_its_user_for_so_long() -> None:
    lab = Lab()
    login = lab.issue(lasts_s=60)
    assert lab.good(login)
    assert lab.good(login, "http")
    assert lab.who(login).user == "etl", "what it makes is the user's"
    lab.now += 59.9
    assert lab.good(login)
    lab.now += 0.1
    assert not lab.good(login)
    ended = lab.who(login)
    assert (ended.there, ended.enters("/"), ended.tags) == (False, False, ())
    assert ended.rights is not None
    assert not ended.rights.reads_topic("/", "", "orders")


def test_amqp_has_no_tokens_for_a_connection_would_outlive_them() -> None:
    lab = Lab()
    assert not lab.good(lab.issue(), "amqp")


@pytest.mark.parametrize("change", ["secret", "id", "short", "empty", "password", "user"])
def test_another_login_is_wrong(change: str) -> None:
    lab = Lab()
    name, secret = lab.issue()
    other, theirs = lab.issue()
    wrong = {
        "secret": (name, theirs), "id": (other, secret), "short": (name, secret[:-1]), "empty": (name, ""),
        "password": (name, "pw"), "user": ("etl", secret),
    }  # fmt: skip
    assert not lab.good(wrong[change])
    assert lab.good((name, secret))


def test_secrets_are_not_kept_and_none_is_compared_by_its_beginning() -> None:
    lab = Lab()
    _, secret = lab.issue()
    assert secret.encode() not in lab.accounts.state()
    assert not is_of(None, secret, b"")
    [kept] = lab.accounts.tokens.values()
    assert is_of(kept, secret, b"pw")
    assert not is_of(replace(kept, bound=""), secret, b"pw")


def test_a_token_is_there_after_a_restart_and_gone_when_the_settings_have_another_password() -> None:
    lab = Lab()
    login = lab.issue()
    assert Lab(disk=lab.disk).good(login)
    assert not Lab("other", disk=lab.disk).good(login)


def test_a_token_ends_with_the_password_and_the_user_of_run_time() -> None:
    lab = Lab()
    lab.add()
    login = lab.issue("ann")
    assert lab.good(login)
    root = lab.users.who("root")
    lab.run(people.set_user(lab.house, root, "ann", False, None, None, None, ["management"]))
    assert lab.good(login), "other tags are no other password"
    lab.run(people.set_user(lab.house, root, "ann", False, "another", None, None, None))
    assert not lab.good(login)
    login = lab.issue("ann")
    lab.accounts.forget_user("ann")
    lab.accounts.tell()
    assert not lab.good(login)


def test_a_token_makes_none_and_makes_none_last_longer() -> None:
    lab = Lab()
    login = lab.issue(tags=())
    who, mine = lab.who(login), login[0].removeprefix("token/")
    for work in (
        people.issue_token(lab.house, who, 60, "/", "", ALL, ALL, None, ""),
        people.renew_token(lab.house, who, mine, None),
        people.revoke_token(lab.house, who, "x" * 12),
    ):
        with pytest.raises(AccessRefused, match="password"):
            lab.run(work)
    lab.run(people.revoke_token(lab.house, who, mine))
    assert not lab.good(login), "it may end itself"


def test_its_user_renews_it_and_nobody_else_does() -> None:
    lab = Lab()
    login = lab.issue(lasts_s=60)
    mine = login[0].removeprefix("token/")
    lab.now += 50
    lab.run(people.renew_token(lab.house, lab.users.who("etl"), mine, None))
    lab.now += 50
    assert lab.good(login)
    lab.add()
    for user, error in (("ann", NotFound), ("root", PenstockError)):
        with pytest.raises(error):
            lab.run(people.renew_token(lab.house, lab.users.who(user), mine, None))
    with pytest.raises(NotFound):
        lab.run(people.revoke_token(lab.house, lab.users.who("ann"), mine))
    assert [one["id"] for one in people.tokens(lab.house, lab.users.who("root"))] == [mine]
    assert not [*people.tokens(lab.house, lab.users.who("ann"))]
    lab.run(people.revoke_token(lab.house, lab.users.who("root"), mine))
    assert not lab.good(login)
    lab.now += 100
    with pytest.raises(NotFound):
        lab.run(people.renew_token(lab.house, lab.users.who("etl"), mine, None))


def test_it_has_no_tag_that_it_was_not_made_with_nor_one_that_its_user_has_no_more() -> None:
    lab = Lab()
    assert DRIVER in lab.users.who("root").tags
    assert lab.who(lab.issue("root")).tags == ()
    assert lab.who(lab.issue("root", tags=["administrator"])).tags == ("administrator",)
    assert lab.who(lab.issue("root", tags=["monitoring"])).tags == ("monitoring",)
    for tag in ("administrator", DRIVER):
        with pytest.raises(AccessRefused, match="does not have the tag"):
            lab.issue("etl", tags=[tag])
    with pytest.raises(AccessRefused, match="does not have the tag"):
        lab.issue("root", tags=[DRIVER])


def test_what_its_user_may_and_its_patterns_are_both_asked() -> None:
    lab = Lab()
    lab.add(read="^(orders|secret|amq.default)")
    rights = cast("Any", lab.who(lab.issue("ann", read="orders|eu[.].*", write="")).rights)
    assert rights.reads_queue("/", "orders")
    assert not rights.reads_queue("/", "secret"), "not the token's"
    assert not rights.reads_queue("/", "eu.1"), "not the user's"
    assert not rights.reads_queue("/", "orders2"), "a pattern is of the whole name"
    assert not rights.reads_queue("other", "orders")
    assert not rights.writes_topic("/", "", "orders")
    assert rights.topic_rights("/", "") == ((None, False),), "of several topics at once it has none"
    assert not rights.sees_queue("/", "secret")
    with pytest.raises(AccessRefused):
        rights.configure("it", "/")
    with pytest.raises(AccessRefused):
        rights.configure("it", "/", [("configure", "queue", "orders")])
    whole = cast("Any", lab.who(lab.issue("root", configure=ALL)).rights)
    whole.configure("it", "/")
    with pytest.raises(AccessRefused):
        whole.configure("it", "other")
    lab.accounts.permissions.clear()
    lab.accounts.tell()
    lab.add(read="^other$")
    assert not rights.reads_queue("other", "orders")
    [login] = [f"token/{one}" for one in lab.accounts.tokens if lab.accounts.tokens[one].user == "ann"]
    assert not cast("Any", lab.users.who(login).rights).reads_queue("/", "orders"), "what he lost, his tokens lose"


def test_a_filter_of_an_entitlement_stays_with_the_token() -> None:
    entry = {"user": "etl", "topic": "orders", "read": "/region = 'EU'", "write": False}
    lab = Lab("pw", None, entry, {"tag": "administrator", "read": True, "write": True})
    rights = cast("Any", lab.who(lab.issue("etl")).rights)
    found = rights.read_topic("/", "", "orders")
    assert found is not None
    assert "region" in found.text
    with pytest.raises(AccessRefused):
        rights.read_topic("/", "", "others")


def test_a_token_is_of_one_vhost_that_its_user_may_open() -> None:
    lab = Lab()
    lab.add(vhost="other")
    with pytest.raises(AccessRefused):
        lab.issue("ann", vhost="/")
    who = lab.who(lab.issue("ann", vhost="other"))
    assert who.enters("other")
    assert not who.enters("/")
    login = lab.issue("etl", vhost="other")
    del lab.accounts.vhosts["other"]
    assert not lab.good(login)


def test_tokens_are_bounded_and_ended_ones_make_room() -> None:
    lab = Lab()
    for _ in range(OF_USER):
        lab.issue()
    with pytest.raises(PreconditionFailed, match=f"there are {OF_USER} tokens of user 'etl'"):
        lab.issue()
    lab.issue("root")
    lab.now += 61
    lab.issue()
    assert len(lab.accounts.tokens) == 1


def test_a_token_comes_from_where_its_user_may_come_from() -> None:
    lab = Lab()
    lab.add("etl-here")
    login = lab.issue("etl-here")
    assert not lab.good(login)
    assert lab.logins.at_once("flight", *login, "127.0.0.1") == GOOD


def test_a_user_whose_name_looks_like_a_tokens_is_a_user() -> None:
    lab = Lab()
    lab.add("token/abcdefghijkl")
    assert lab.good(("token/abcdefghijkl", "secret"), "amqp")


@pytest.mark.parametrize("text", ["", "penstock_", "penstock_abc.def", "x" * 5000, "penstock_ÄÄÄÄÄÄÄÄÄÄÄÄ." + "a" * 43])
def test_what_is_no_token_is_none(text: str) -> None:
    assert login_of(text) is None


def test_a_publish_through_a_queue_asks_for_the_topic_that_it_goes_to() -> None:
    """Else who may declare a queue of some name, and read a topic, wrote to that."""
    world = World()
    world.declare("mine.a", underlying_topic="theirs")
    world.declare("mine.b", underlying_topic="mine.topic")
    world.declare("mine.c", underlying_topic="theirs.*", default_publish_target="theirs.1")
    lab = Lab()
    name, _ = lab.issue(configure="^mine.*", write="^mine.*", read=ALL)
    rights = lab.users.who(name).rights
    assert rights is not None
    for key in ("mine.b", "mine.none"):
        assert rights.publish(world.core, "/", "", key) is None
    for key in ("mine.a", "mine.c"):
        with pytest.raises(AccessRefused, match="topic 'theirs"):
            rights.publish(world.core, "/", "", key)


def test_a_queue_whose_expired_messages_go_elsewhere_is_declared_with_a_token_for_writing_there() -> None:
    lab = Lab()
    name, _ = lab.issue(configure="mine.*", write="mine.*", read="mine.*")
    rights = lab.users.who(name).rights
    assert rights is not None
    for address in (None, "", "mine.expired"):
        rights.declare("/", "mine.a", QueueSettings(expiry_address=address), None)
    with pytest.raises(AccessRefused, match="topic 'theirs'"):
        rights.declare("/", "mine.a", QueueSettings(expiry_address="theirs"), None)


def test_a_queue_of_several_topics_is_declared_with_a_token_that_reads_all_of_them() -> None:
    """A pattern whose text is within what the token reads, `mine.a|theirs`, took others as well."""
    pattern = QueueSettings(underlying_topic="mine.a|theirs", default_publish_target="mine.a")
    lab = Lab()
    for read in ("mine.*", ALL):
        rights = lab.users.who(lab.issue(configure="mine.*", write="mine.*", read=read)[0]).rights
        assert rights is not None
        if read == ALL:
            rights.declare("/", "mine", pattern, None)
        else:
            rights.declare("/", "mine", QueueSettings(underlying_topic="mine.a"), None)
            with pytest.raises(AccessRefused, match="may not read all topics"):
                rights.declare("/", "mine", pattern, None)


class Of(Rights):
    """The rights of a user who may do with some names whatever is asked."""

    def __init__(self, names: str) -> None:
        super().__init__("ann", (), ())
        self._names = names

    def reads_topic(self, vhost: str, exchange: str, name: str) -> bool:
        return name in self._names

    writes_topic = sees_topic = reads_topic

    def reads_queue(self, vhost: str, name: str) -> bool:
        return name in self._names

    writes_queue = sees_queue = reads_queue


def test_a_token_and_its_user_are_both_asked_about_everything() -> None:
    """Names: what the token is made for by its first letter, what its user may by the second."""
    made = Token("id", "ann", "", "", "/", "c.", "w.", "r.", (), 60, 0.0)
    names = [kind + whose for kind in "cwrx" for whose in "uo"]
    token, whole = Scoped(made, Of("cu wu ru xu"), ()), Scoped(made, None, ())
    asked: dict[str, tuple[Callable[[Rights, str, str], object], str]] = {
        "reads_topic": (lambda who, vhost, name: who.reads_topic(vhost, "", name), "r"),
        "writes_topic": (lambda who, vhost, name: who.writes_topic(vhost, "", name), "w"),
        "reads_queue": (lambda who, vhost, name: who.reads_queue(vhost, name), "r"),
        "writes_queue": (lambda who, vhost, name: who.writes_queue(vhost, name), "w"),
        "sees_queue": (lambda who, vhost, name: who.sees_queue(vhost, name), "cwr"),
        "sees_topic": (lambda who, vhost, name: who.sees_topic(vhost, "", name), "r"),
    }
    for word, (ask, kinds) in asked.items():
        assert [name for name in names if ask(token, "/", name)] == [f"{kind}u" for kind in kinds], word
        assert [name for name in names if ask(whole, "/", name)] == [f"{k}{of}" for k in kinds for of in "uo"], word
        assert not any(ask(who, "other", name) for who in (token, whole) for name in names), word


def test_a_token_that_monitors_sees_what_its_user_sees_and_reads_no_more_for_it() -> None:
    made = Token("id", "ann", "", "", "/", "", "", "r.", ("monitoring",), 60, 0.0)
    token = Scoped(made, Of("cu ru"), ("monitoring",))
    for name, seen in (("cu", True), ("ru", True), ("ro", False), ("xx", False)):
        assert (token.sees_queue("/", name), token.sees_topic("/", "", name)) == (seen, seen), name
        assert token.reads_queue("/", name) is (name == "ru")
