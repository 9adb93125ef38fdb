"""Users of the settings: passwords from files, tags, and from where."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from penstock.cli.driver_jobs import login
from penstock.config.load import load_mapping
from penstock.config.settings import GUEST, User
from penstock.config.vhost_sections import EntitlementSection
from penstock.core.topology.topology import EVENTS, TRACE
from penstock.errors import AccessRefused, SettingsError
from penstock.log.simdisk import SimDisk
from penstock.records.password_hashes import SHA256
from penstock.records.queue_settings import QueueSettings
from penstock.records.rights import ADMINISTERS, LOGIN
from penstock.server.flight.calls import Caller
from penstock.server.links.calling import Connection
from penstock.server.people.accounts import FILE, Account, Accounts, Kept, Permission, Token, TopicPermission
from penstock.server.people.entitlements import Rights, compiled, exchange_needs
from penstock.server.people.tokens import Scoped
from penstock.server.people.users import Permitted, Users, password_of
from penstock.wire.credentials import LARGEST
from unit.core.world import World


def test_a_password_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n# changed in May\n")
    users = Users([User(name="ann", password_file=str(secret))])
    assert users.has_plain("ann", "open sesame")
    assert not users.has_plain("ann", "")


@pytest.mark.parametrize("written", ["open sesame", "open sesame\r\nmore", "\ufeffopen sesame\n", "open sesame\n\xff"])
def test_neither_the_end_of_a_line_nor_an_editors_mark_is_of_a_password(tmp_path: Path, written: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(written.encode("utf-8" if "\xff" not in written else "latin-1"))
    assert password_of(User(name="ann", password_file=str(secret))) == "open sesame"


def with_user(file: Path) -> None:
    Users([User(name="ann", password_file=str(file))])


def with_link(file: Path) -> None:
    named = {"name": "b", "to": ["penstock://h"], "topic": [{"pattern": "t"}], "password_file": str(file)}
    [section] = load_mapping({"link": [named]}).link
    Connection(section, section.targets[0], b"")


def with_pipelines(file: Path) -> None:
    login(load_mapping({"user": [{"name": "ann", "password_file": str(file)}]}))


@pytest.mark.parametrize("reader", [with_user, with_link, with_pipelines])
def test_a_file_without_a_password_is_a_mistake_and_no_empty_password(
    tmp_path: Path, reader: Callable[[Path], None]
) -> None:
    """Whoever reads it: pipelines ended with a traceback, links logged in without a password, a pipe held all up."""
    secret = tmp_path / "secret"

    def why() -> str:
        with pytest.raises(SettingsError, match=f"password_file: {secret} ") as told:
            reader(secret)
        return str(told.value).partition(f"{secret} ")[2]

    assert why() == "cannot be read: No such file or directory"
    os.mkfifo(secret)
    assert why() == "is no regular file"
    secret.unlink()
    for content, told in (
        (b"", "has no password in its first line"),
        (b"\nsecond line", "has no password in its first line"),
        (b"ab\xff\n", "is not UTF-8 text (byte 2 of its first line)"),
        (b"x" * (LARGEST + 1), f"has more than {LARGEST} bytes, and so is no file of passwords"),
    ):
        secret.write_bytes(content)
        assert why() == told


def test_tags_and_hosts() -> None:
    users = Users([GUEST, User(name="ann", password=SecretStr("x"), tags=("monitoring",))])
    assert users.may_come_from("guest", "::1")
    assert not users.may_come_from("guest", "10.0.0.1")
    assert (users.tags("guest"), users.tags("ann"), users.tags("nobody")) == (("administrator",), ("monitoring",), ())


def test_who_somebody_is_follows_each_change_of_accounts() -> None:
    accounts = Accounts()
    users = Users([GUEST], accounts=accounts)

    def change(tags: tuple[str, ...] | None) -> None:
        if tags is None:
            accounts.forget_user("ann")
        else:
            accounts.users["ann"] = Account("ann", Kept("", ""), tags)
        for tell in accounts.changed:
            tell()

    assert not users.who("ann").there
    change(("monitoring",))
    assert (users.who("ann").there, users.who("ann").tags) == (True, ("monitoring",))
    assert users.who("ann") is users.who("ann")
    change(())
    assert (users.who("ann").there, users.who("ann").tags) == (True, ())
    change(None)
    assert not users.who("ann").there


def test_who_has_the_name_of_one_who_was_deleted_is_somebody_else() -> None:
    """Between two looks both may happen: what the one before had begun went on as the other's."""
    accounts = Accounts()
    users = Users([GUEST], accounts=accounts)
    accounts.users["ann"] = Account("ann", Kept("", SHA256), ())
    caller = Caller(users.who("ann"), "", lambda: False, partial(users.who, "ann"))
    assert not caller.gone()
    accounts.forget_user("ann")
    accounts.users["ann"] = Account("ann", Kept("", SHA256), ())
    accounts.tell()
    with pytest.raises(AccessRefused, match="user 'ann' may not log in any more"):
        caller.gone()
    assert not Caller(users.who("ann"), "", lambda: False, partial(users.who, "ann")).gone()


def test_who_has_not_the_tag_any_more_goes_on_with_what_takes_none() -> None:
    """A call may last for days, as a link's does."""
    accounts = Accounts()
    users = Users([GUEST], accounts=accounts)
    accounts.users["ann"] = Account("ann", Kept("", SHA256), ("administrator",))
    link, other = (Caller(users.who("ann"), "", lambda: False, partial(users.who, "ann")) for _ in range(2))
    link.judge(ADMINISTERS, {}, (), "link")
    other.judge(LOGIN, {}, (), "plan")
    assert not link.gone()
    accounts.users["ann"] = Account("ann", Kept("", SHA256), ("monitoring",))
    accounts.tell()
    with pytest.raises(AccessRefused, match="link: for users with the tag 'administrator', which 'ann' does not have"):
        link.gone()
    assert not other.gone()


def test_whoever_has_permissions_while_they_are_put_back_has_what_narrows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads judge meanwhile."""
    accounts = Accounts()
    accounts.permissions["ann", "/"] = Permission("ann", "/", ".*", ".*", ".*")
    accounts.topic_permissions["ann", "/", ""] = TopicPermission("ann", "/", "", "^a", "^a")
    seen = list[int]()

    def made(**fields: str) -> Permission:
        seen.append(len(accounts.topic_permissions))
        return Permission(**fields)

    monkeypatch.setattr("penstock.server.people.accounts.Permission", made)
    accounts.restore(accounts.state())
    assert seen == [1]


def test_a_change_is_answered_when_other_disks_have_it_too() -> None:
    async def run() -> None:
        accounts, there = Accounts(), asyncio.Event()
        accounts.copied = lambda: asyncio.wait_for(_waited(there), 20)
        change = asyncio.ensure_future(accounts.change(lambda kept: kept.vhosts.setdefault("new", {})))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "new" in accounts.vhosts
        assert not change.done()
        there.set()
        await change

    asyncio.run(run())


async def _waited(event: asyncio.Event) -> None:
    await event.wait()


NARROW = Permitted(
    "ann",
    [Permission("ann", "/", "^mine", r"^(mine|amq\.default|open)", r"^(mine|open)")],
    [TopicPermission("ann", "/", "open", r"^a\.", ".*")],
)


@pytest.mark.parametrize("shown", [None, "mine", "theirs"])
def test_a_queue_that_takes_from_an_exchange_is_declared_by_who_may_read_that(shown: str | None) -> None:
    """Also where it shows its own name, which is as a binding is."""
    closed = QueueSettings(exchange="closed", underlying_topic=shown)
    with pytest.raises(AccessRefused, match="access to exchange 'closed' .* to read"):
        NARROW.declare("/", "mine", closed, None)
    NARROW.declare("/", "mine", QueueSettings(exchange="open", underlying_topic=shown), None)
    NARROW.declare("/", "mine", QueueSettings(), None)


def test_a_queue_shows_a_pattern_of_topics_where_a_topic_permission_lets_all_through() -> None:
    """A pattern that looks like what may be read took other topics, too."""
    one = Permitted("ann", NARROW.permissions, [TopicPermission("ann", "/", "open", ".*", r"^a\.")])
    pattern = QueueSettings(exchange="open", underlying_topic="a.x|b.*", default_publish_target="a.x")
    with pytest.raises(AccessRefused, match="access to topic 'a.x|b.*' of exchange 'open' .* to read"):
        one.declare("/", "mine", pattern, None)
    one.declare("/", "mine", QueueSettings(exchange="open", underlying_topic="a.x"), None)
    NARROW.declare("/", "mine", pattern, None)


def test_a_publish_through_a_queue_asks_for_what_it_really_goes_to() -> None:
    world = World()
    for exchange in ("open", "closed"):
        world.core.declare_exchange(world.now, "/", exchange, "topic")
    world.declare("mine.a", exchange="open", underlying_topic="a.x")
    world.declare("mine.b", exchange="open", underlying_topic="b.x")
    world.declare("mine.c", exchange="closed", underlying_topic="mine.c")
    world.declare("mine.d", exchange="closed", underlying_topic="a.x")
    NARROW.publish(world.core, "/", "", "mine.a")
    with pytest.raises(AccessRefused, match="access to topic 'b.x' of exchange 'open' .* to write"):
        NARROW.publish(world.core, "/", "", "mine.b")
    for name in ("mine.c", "mine.d"):
        with pytest.raises(AccessRefused, match="access to exchange 'closed' .* to write"):
            NARROW.publish(world.core, "/", "", name)


@pytest.mark.parametrize("tags", [(), ("management",), ("monitoring",), ("administrator",)], ids=str)
def test_events_of_all_vhosts_and_of_people_are_for_administrators(tags: tuple[str, ...]) -> None:
    """Whatever the permission for the exchange says: its messages name what else only an administrator is shown."""
    may = "administrator" in tags
    permitted = Permitted("ann", [Permission("ann", vhost, ".*", ".*", ".*") for vhost in ("/", "own")], tags=tags)
    entitled = Rights("ann", [compiled(EntitlementSection(user="ann", read=True))], tags)
    token = Scoped(Token("id", "ann", "", "", "/", ".*", ".*", ".*", tags, 60, 0.0), None, tags)
    for rights in (permitted, entitled, token):
        assert rights.reads_topic("/", EVENTS, "queue.created") is may
        assert any(allowed for _, allowed in rights.topic_rights("/", EVENTS)) is may
        assert rights.reads_topic("/", "amq.topic", "queue.created") is True
    assert permitted.reads_topic("own", EVENTS, "queue.created") is True, "nothing is told there"
    binds = [("write", "queue", "q"), ("read", "exchange", EVENTS)]
    shows = QueueSettings(exchange=EVENTS, underlying_topic="queue.created")
    for rights in (permitted, token):
        refused_unless(may, EVENTS, partial(rights.configure, "binding", "/", binds))
        refused_unless(may, EVENTS, partial(rights.declare, "/", "q", shows, None))


@pytest.mark.parametrize("exchange", [EVENTS, TRACE])
@pytest.mark.parametrize("tags", [(), ("monitoring",), ("administrator",)], ids=str)
def test_what_the_server_says_itself_is_said_by_nobody_else(tags: tuple[str, ...], exchange: str) -> None:
    """Through a binding, as an alternate or a dead letter exchange, whoever might write to it made up what happened."""
    may = "administrator" in tags
    permitted = Permitted("ann", [Permission("ann", "/", ".*", ".*", ".*")], tags=tags)
    token = Scoped(Token("id", "ann", "", "", "/", ".*", ".*", ".*", tags, 60, 0.0), None, tags)
    buries = QueueSettings(dead_letter_exchange=exchange)
    for rights in (permitted, token):
        binds = partial(rights.configure, "binding", "/", [("write", "exchange", exchange), ("read", "exchange", "x")])
        refused_unless(may, exchange, binds)
        refused_unless(may, exchange, partial(rights.configure, "declaring", "/", exchange_needs("x", exchange)))
        refused_unless(may, exchange, partial(rights.declare, "/", "q", buries, None))


def refused_unless(may: bool, exchange: str, ask: Callable[[], None]) -> None:
    if may:
        ask()
        return
    with pytest.raises(AccessRefused, match=f"exchange '{exchange}' in vhost '/' refused"):
        ask()


def test_a_vhost_that_leaves_the_settings_stays_until_it_is_deleted() -> None:
    """Nobody could open it, and whoever made one of its name found it empty: what had been confirmed there was lost."""
    disk = SimDisk()
    with_it = Accounts(("/", "shop"))
    with_it.load(disk)
    assert disk.list() == [], "nothing is written before the folder is this server's"
    with_it.keep_named()
    written = disk.open(FILE).size()
    with_it.keep_named()
    assert disk.open(FILE).size() == written
    without = Accounts()
    without.load(disk)
    without.keep_named()
    assert list(without.vhosts) == ["/", "shop"]
    asyncio.run(without.change(lambda accounts: accounts.forget_vhost("shop")))
    after = Accounts()
    after.load(disk)
    assert list(after.vhosts) == ["/"]


def test_a_start_goes_on_where_the_names_of_vhosts_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(capacity=0)
    accounts = Accounts(("/", "shop"))
    accounts.load(disk)
    accounts.keep_named()
    assert "the next change tries it" in caplog.text


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_topic_takes_the_permission_for_its_exchange_and_the_one_for_its_key(kind: str) -> None:
    may, keys = {"read": "^$", "write": "^$", kind: "^(amq.default|x)$"}, {"read": "^$", "write": "^$", kind: "^a"}
    ann = Permitted(
        "ann",
        [Permission("ann", "/", "", may["write"], may["read"])],
        [TopicPermission("ann", "/", "x", keys["write"], keys["read"])],
    )
    for exchange, key, there in (("x", "a1", True), ("x", "b1", False), ("", "b1", True), ("y", "a1", False)):
        for asked, ask in (("read", ann.reads_topic), ("write", ann.writes_topic)):
            assert ask("/", exchange, key) is (there and asked == kind), (asked, exchange, key)


def test_who_may_not_read_a_topic_is_told_that_its_exchange_is_asked_for() -> None:
    """A pattern that matches the topic's own name was there, and nothing said that it is not asked."""
    ann = Permitted("ann", [Permission("ann", "/", "", "", "^in")], [TopicPermission("ann", "/", "in-x", ".*", "^a")])
    why = "no right to {}: a topic is read by its exchange, and the permission's read does not match '{}'"
    for verb, ask in (("read", ann.read_topic), ("see", ann.see_topic)):
        for exchange, shown in (("", "amq.default"), ("y", "y")):
            with pytest.raises(AccessRefused, match=re.escape(why.format(verb, shown)) + "$"):
                ask("/", exchange, "in-1")
        with pytest.raises(AccessRefused, match=f"no right to {verb}$"):  # the exchange is, its key is not
            ask("/", "in-x", "b")
