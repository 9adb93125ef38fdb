"""Logins of all doors: remembered, throttled, told, and passwords kept better."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from penstock.config.settings import GUEST, User
from penstock.log.simdisk import SimDisk
from penstock.records.password_hashes import ARGON2ID, SHA256, Slow
from penstock.server.people.accounts import Account, Accounts, Kept, hash_password, keep
from penstock.server.people.logins import GOOD, GUESSES, KEYS_MOST, WAITING_MOST, WRONG, Logins, Throttle
from penstock.server.people.users import Users

HERE, THERE = "127.0.0.1", "10.0.0.7"


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


def house(
    *accounts: Account, clock: Callable[[], float] | None = None, loop: asyncio.AbstractEventLoop | None = None
) -> tuple[Logins, list[str]]:
    """Guest of the settings and these users of run time; and the lines that were complained."""
    kept = Accounts()
    kept.load(SimDisk())
    kept.users.update({one.name: one for one in accounts})
    lines: list[str] = []
    users = Users([GUEST], accounts=kept, loopback_users=["guest"])
    return Logins(users, lambda *told: lines.append(" ".join(told)), clock or Clock(), loop), lines


SLOW = Account("ann", keep("secret"), ())


def test_a_plain_password_and_a_fast_hash_are_known_at_once() -> None:
    logins, lines = house(Account("bob", Kept(hash_password("builder"), SHA256), ()))
    assert logins.at_once("amqp", "guest", "guest", HERE) == GOOD
    assert logins.at_once("amqp", "bob", "builder", THERE) == GOOD
    refused = logins.at_once("amqp", "bob", "builders", THERE)
    assert refused is not None
    assert not refused.good
    assert lines == [f"amqp {THERE} login of user 'bob' refused: {WRONG}"]
    assert logins.refused == {"amqp": 1}


def test_guest_comes_from_this_machine_alone_wherever_it_was_defined() -> None:
    logins, lines = house(Account("guest", Kept(hash_password("guest"), SHA256), ("administrator",)))
    assert logins.at_once("http", "guest", "guest", HERE) == GOOD
    assert logins.at_once("http", "guest", "guest", THERE) != GOOD
    assert lines == [
        f"http {THERE} login of user 'guest' refused: the user may log in from the server's own machine only"
    ]
    assert not logins.by_certificate("guest", THERE).good


def test_a_settings_file_may_say_that_guest_comes_from_everywhere() -> None:
    everywhere = User(name="guest", password="guest", loopback_only=False)  # type: ignore[arg-type]
    assert Users([everywhere], loopback_users=["guest"]).may_come_from("guest", THERE)


def test_guesses_without_an_address_are_judged_by_it_when_there_were_too_many() -> None:
    logins, _ = house(SLOW)
    assert [logins.is_wrong("guest", "guest"), logins.is_wrong("ann", "secret")] == [False, False]
    assert [logins.is_wrong("ann", str(n)) for n in range(GUESSES + 1)] == [True] * GUESSES + [False]
    assert logins.is_wrong("guest", "wrong"), "another user has guesses of its own"
    assert logins.at_once("flight", "ann", "secret", THERE) == GOOD, "none of them was counted at an address"
    assert [logins.is_right("ann", "secret"), logins.is_right("ann", "0")] == [True, False], "it was right before"


def test_guesses_without_an_address_are_not_right_when_there_were_too_many() -> None:
    logins, _ = house(SLOW)
    assert not any(logins.is_right("ann", str(n)) for n in range(GUESSES))
    assert not logins.is_wrong("ann", "more")
    assert not logins.is_right("ann", "more")
    assert not logins.is_right("ann", "secret"), "nobody knew it before"
    assert logins.check("ann", "secret", THERE), "none of them was counted at an address"
    assert logins.is_right("ann", "secret")


async def test_argon2id_is_worked_out_beside_the_loop_and_remembered() -> None:
    logins, _ = house(SLOW)
    assert logins.at_once("amqp", "ann", "secret", THERE) is None
    assert await logins.ask("amqp", "ann", "secret", THERE) == GOOD
    assert logins.at_once("amqp", "ann", "secret", HERE) == GOOD, "known now, from everywhere"
    assert logins.at_once("amqp", "ann", "Secret", HERE) is None, "another password is looked at"
    verdict = await logins.ask("amqp", "ann", "Secret", HERE)
    assert (verdict.good, verdict.why) == (False, WRONG)
    logins.close()


async def test_a_thousand_logins_of_one_user_cost_one_hash() -> None:
    logins, _ = house(SLOW)
    calls = 0
    matches = Kept.matches

    def counted(self: Kept, password: str) -> bool:
        nonlocal calls
        calls += 1
        return matches(self, password)

    began = time.process_time()
    assert SLOW.password.matches("secret")
    alone, began = time.process_time() - began, time.process_time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kept, "matches", counted)
        verdicts = await asyncio.gather(*(logins.ask("amqp", "ann", "secret", THERE) for _ in range(1000)))
    assert verdicts == [GOOD] * 1000
    assert calls == 1
    assert time.process_time() - began < 10 * alone + 1.0, "a thousand tasks, and one hash"
    logins.close()


async def test_what_was_worked_out_since_it_was_looked_for_is_not_worked_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand logins cost one hash also where the first ends between another's look and its turn."""
    logins, _ = house(SLOW)
    assert await logins.ask("amqp", "ann", "secret", THERE) == GOOD
    monkeypatch.setattr(Logins, "at_once", lambda *asked: None)  # looked before that
    monkeypatch.setattr(Kept, "matches", lambda *asked: pytest.fail("worked out again"))
    assert await logins.ask("amqp", "ann", "secret", THERE) == GOOD
    logins.close()


async def test_somebody_else_may_make_the_digest_and_is_not_told_which_is_right() -> None:
    logins, _ = house(SLOW)
    asked = list[tuple[Slow, Callable[[bytes | None], None]]]()

    async def login(password: str, *answers: bytes | str | None) -> bool:
        """Of several who come with the same password the first is asked."""
        before = len(asked)
        judged = [
            asyncio.ensure_future(logins.ask("amqp", "ann", password, HERE, lambda *what: asked.append(what)))
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        assert len(asked) == before + 1
        how, heard = asked[-1]
        [answer] = answers
        heard(how.digest(answer) if isinstance(answer, str) else answer)
        verdicts = await asyncio.gather(*judged)
        assert len(set(verdicts)) == 1
        return verdicts[0].good

    assert not await login("other", "other")
    assert not await login("secret", b"x" * 32)
    assert not await login("secret", b"")
    assert await login("secret", "secret")
    assert logins._pool is None
    logins, _ = house(SLOW)
    assert await login("secret", None), "whoever was asked is gone: it is made here"
    logins.close()


async def test_what_is_remembered_ends_with_the_password() -> None:
    logins, _ = house(SLOW)
    await logins.ask("amqp", "ann", "secret", HERE)
    logins.users.accounts.users["ann"] = Account("ann", keep("changed"), ())
    assert logins.at_once("amqp", "ann", "secret", HERE) is None
    assert not (await logins.ask("amqp", "ann", "secret", HERE)).good
    assert (await logins.ask("amqp", "ann", "changed", HERE)).good
    logins.users.accounts.forget_user("ann")
    assert logins.at_once("amqp", "ann", "changed", HERE) != GOOD
    logins.close()


def test_who_guesses_has_to_wait_and_others_have_not() -> None:
    clock = Clock()
    logins, lines = house(Account("bob", Kept(hash_password("builder"), SHA256), ()), clock=clock)
    for _ in range(10):
        verdict = logins.at_once("http", "bob", "guess", THERE)
        assert verdict is not None
        assert verdict.why == WRONG
    verdict = logins.at_once("http", "bob", "builder", THERE)
    assert verdict is not None
    assert (verdict.good, verdict.wait_s) == (False, 1.0), "not even the right one"
    assert lines[-1].endswith("too many wrong logins came from this address")
    assert logins.at_once("http", "bob", "builder", HERE) == GOOD, "another address"
    assert logins.at_once("http", "guest", "guest", HERE) == GOOD
    clock.s += 1.0
    assert logins.at_once("http", "bob", "builder", THERE) == GOOD


def test_guessing_over_many_names_is_bounded_by_address() -> None:
    logins, _ = house()
    whys = [verdict.why for i in range(102) if (verdict := logins.at_once("http", f"user-{i}", "x", THERE))]
    assert [why == WRONG for why in whys] == [True] * 100 + [False] * 2


async def test_who_was_right_before_comes_in_while_somebody_guesses_from_the_same_address() -> None:
    logins, _ = house(SLOW)
    assert await logins.ask("amqp", "ann", "secret", THERE) == GOOD
    for i in range(200):
        logins.at_once("amqp", f"user-{i}", "x", THERE)
    assert await logins.ask("amqp", "ann", "secret", THERE) == GOOD
    logins.close()


def test_who_was_right_before_comes_in_whatever_way_the_password_is_kept() -> None:
    """A plain one of the settings was not remembered: strangers at his address locked him out."""
    logins, _ = house(Account("bob", Kept(hash_password("builder"), SHA256), ()))
    for user, password in (("guest", "guest"), ("bob", "builder")):
        assert logins.at_once("http", user, password, HERE) == GOOD
        for _ in range(2 * GUESSES):
            logins.at_once("flight", user, "wrong", HERE)
        assert logins.at_once("http", user, password, HERE) == GOOD
        refused = logins.at_once("http", user, "another", HERE)
        assert refused is not None
        assert refused.wait_s > 0


async def test_more_than_may_wait_for_a_hash_are_refused() -> None:
    logins, lines = house(*(Account(f"u{i}", SLOW.password, ()) for i in range(WAITING_MOST + 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kept, "matches", lambda self, password: True)
        patch.setattr("penstock.server.people.logins.ThreadPoolExecutor.submit", lambda *_: asyncio_future())
        asked = [asyncio.ensure_future(logins.ask("amqp", f"u{i}", "secret", HERE)) for i in range(WAITING_MOST)]
        await asyncio.sleep(0)
        verdict = await logins.ask("amqp", f"u{WAITING_MOST}", "secret", HERE)
        assert (verdict.good, verdict.wait_s) == (False, 1.0)
        assert lines[-1].endswith(f"{WAITING_MOST} logins are being checked, and no more may wait")
        for task in asked:
            task.cancel()
    logins.close()


def asyncio_future() -> object:
    """A future that nobody completes."""
    from concurrent.futures import Future

    return Future[bool]()


async def test_a_password_in_rabbitmqs_form_is_kept_by_argon2id_after_its_first_login() -> None:
    bob = Account("bob", Kept(hash_password("builder"), SHA256), ("management",))
    logins, _ = house(bob, loop=asyncio.get_running_loop())
    accounts = logins.users.accounts
    kept = asyncio.Event()
    accounts.changed.append(kept.set)
    assert await logins.ask("amqp", "bob", "builder", THERE) == GOOD
    await asyncio.wait_for(kept.wait(), 30)
    assert accounts.users["bob"].password.algorithm == ARGON2ID
    assert accounts.users["bob"].tags == ("management",)
    assert accounts.users["bob"].password.matches("builder")
    assert await logins.ask("amqp", "bob", "builder", THERE) == GOOD
    logins.close()


def test_of_many_keys_the_oldest_are_forgotten() -> None:
    throttle = Throttle(1, 1.0, lambda: 0.0)
    for key in range(KEYS_MOST + 1):
        throttle.count(key)
    assert throttle.wait_s(0) == 0.0
    assert throttle.wait_s(1) == 1.0
