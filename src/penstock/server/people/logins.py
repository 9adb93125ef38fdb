"""Logins of all doors: who is let in, what is remembered of it, and what a wrong one costs.

    at_once     known without work: a plain password of the settings, a fast hash, or a login that was right before
    ask, wait   otherwise: Argon2id in a thread of two, for the loop and for the threads of a door
    refused     counted, told in the log, and answered late by the door; who guesses has to wait

A login that was right is remembered under a key of this process, until the user's password is another: so a thousand
connections of one user cost one hash, and what is remembered is worth nothing outside.  A password in RabbitMQ's form
is kept by Argon2id after its first login here.

How often somebody may guess is a bucket that leaks for each of many keys (`Throttle`).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.records.password_hashes import ARGON2ID, Slow, parted
from penstock.server.people.access import Who
from penstock.server.people.accounts import Account, Accounts, Kept, keep
from penstock.server.people.users import Users

KEYS_MOST = 10_000


class Throttle:
    """For events of one kind.  Guarded by whoever has it."""

    def __init__(self, burst: float, rate: float, now: Callable[[], float]) -> None:
        """rate: events a second.  now: seconds that never go back."""
        self._burst = burst
        self._rate = rate
        self._now = now
        self._levels = OrderedDict[Hashable, tuple[float, float]]()  # key -> level, and when that was so

    def wait_s(self, key: Hashable) -> float:
        """For how long the key has to wait; 0.0: it has not."""
        level = self._level(key) if key in self._levels else 0.0
        return max(0.0, (level + 1.0 - self._burst) / self._rate)

    def count(self, key: Hashable) -> None:
        """A login was wrong once more."""
        self._levels[key] = self._level(key) + 1.0, self._now()
        self._levels.move_to_end(key)
        if len(self._levels) > KEYS_MOST:
            self._levels.popitem(last=False)

    def _level(self, key: Hashable) -> float:
        level, at = self._levels.get(key, (0.0, 0.0))
        return max(0.0, level - (self._now() - at) * self._rate)


logger = logging.getLogger("penstock.server.logins")

WORKERS = 2
"""Threads that work out hashes; each takes 19 MiB meanwhile."""
WAITING_MOST = 256
"""Logins that wait for them; further ones are refused."""
REMEMBERED_MOST = 10_000

REFUSED_DELAY_S = 0.5
"""A refused login is answered late, to slow guessing, and as late whatever was wrong."""
GUESSES = 10
"""Wrong passwords for one user from one address, before each further one has to wait."""
GUESSES_A_SECOND = 1.0
ALL_USERS, ALL_USERS_A_SECOND = 10, 5.0
"""Times `GUESSES`, from one address for all users together: a relay in front of many clients has one address."""


ANYWHERE = "anywhere"
"""The address of calls that do not know theirs: as one together they have the guesses of one."""


class Verdict(NamedTuple):
    """Whether somebody is let in."""

    good: bool
    why: str = ""
    """Why not, for the log and for the client; it does not tell whether there is such a user."""
    wait_s: float = 0.0
    """Another try before that is refused without a look at the password."""


GOOD = Verdict(True)
WRONG = "the user is unknown here, or its password is another"

TOKEN_DOORS = frozenset({"flight", "http"})

Derive = Callable[[Slow, Callable[["bytes | None"], None]], None]
"""Has somebody else make a digest of the password that he was given, and hears it; None: he is gone."""

Complain = Callable[[str, str, str], None]
"""(door, host, why): a bounded line in the log."""

Refused = Callable[[str, str, str, str], None]
"""(door, user, host, why): somebody was not let in."""


class Logins:
    """Of one server.  `at_once` and `wait` may be called by any thread."""

    def __init__(
        self,
        users: Users,
        complain: Complain = lambda door, host, why: None,
        now: Callable[[], float] = time.monotonic,
        loop: asyncio.AbstractEventLoop | None = None,
        guesses: int = GUESSES,
        delay_s: float = REFUSED_DELAY_S,
    ) -> None:
        """loop: whose thread writes accounts and the log; None: no password is kept better, and the caller's writes."""
        self.users = users
        self.refused = Counter[str]()  # by door
        self.on_refused: Refused | None = None  # for the loop's thread
        self._complain = complain
        self.delay_s = delay_s
        self._loop = loop
        self._key = secrets.token_bytes(32)
        self._right = OrderedDict[str, tuple[bytes, Kept | None]]()  # by user: its password, by the key
        self._under_way = dict[tuple[str, bytes, Kept], Future[bool]]()
        self._by_user = Throttle(guesses, GUESSES_A_SECOND, now)
        self._by_address = Throttle(guesses * ALL_USERS, ALL_USERS_A_SECOND, now)
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._upgrading = set[asyncio.Task[None]]()

    # -- asking

    def at_once(self, door: str, user: str, password: str, host: str) -> Verdict | None:
        """Whether somebody is let in; None where that takes work."""
        if self.users.is_token(user):
            return self._by_token(door, user, password, host)
        if host != ANYWHERE and not self.users.may_come_from(user, host):
            return self._refuse(door, user, host, "the user may log in from the server's own machine only")
        kept = self.users.kept(user)
        secret = self._secret(user, password)
        with self._lock:
            if self._is_right(user, kept, secret) and (kept is not None or self.users.has_plain(user, password)):
                return GOOD
            wait_s = max(self._by_user.wait_s((host, user)), self._by_address.wait_s(host))
        if wait_s:
            return self._refuse(door, user, host, "too many wrong logins came from this address", wait_s)
        if kept is not None and kept.slow:
            return None
        if self.users.has_plain(user, password) if kept is None else kept.matches(password):
            if kept is not None and kept.text:
                self._upgrade_soon(user, password, kept)
            with self._lock:
                self._remember(user, secret, kept)
            return GOOD
        return self._refuse(door, user, host, WRONG)

    def _is_right(self, user: str, kept: Kept | None, secret: bytes) -> bool:
        """Whether this password was found right before, and the kept one is the same; under the lock."""
        known = self._right.get(user)
        right = known is not None and known[1] == kept and hmac.compare_digest(known[0], secret)
        if right:
            self._right.move_to_end(user)
        return right

    def _remember(self, user: str, secret: bytes, kept: Kept | None) -> None:
        """Remember a right password: its user need not wait when guesses of others were wrong."""
        self._right[user] = secret, kept
        self._right.move_to_end(user)
        if len(self._right) > REMEMBERED_MOST:
            self._right.popitem(last=False)

    def _by_token(self, door: str, user: str, password: str, host: str) -> Verdict:
        """`at_once` for tokens.  Each request at these doors is a login, so nothing outlives its token."""
        if door not in TOKEN_DOORS:
            return self._refuse(door, user, host, "tokens are for Flight and HTTP")
        if host != ANYWHERE and not self.users.may_come_from(user, host):
            return self._refuse(door, user, host, "the user may log in from the server's own machine only")
        if self.users.has_token(user, password):
            return GOOD
        with self._lock:
            wait_s = max(self._by_user.wait_s((host, user)), self._by_address.wait_s(host))
        if wait_s:
            return self._refuse(door, user, host, "too many wrong logins came from this address", wait_s)
        return self._refuse(door, user, host, "the token has ended, was revoked, or is none")

    async def ask(
        self, door: str, user: str, password: str, host: str, derive: Derive | None = None, *, late: bool = False
    ) -> Verdict:
        """Whether somebody is let in.  For the loop.  derive: who makes digests; None: threads of this process.

        late: a refusal is delayed.
        """
        began = time.monotonic()
        verdict = self._begun(door, user, password, host, derive)
        if not isinstance(verdict, Verdict):
            verdict = self._judged(door, user, host, await asyncio.shield(asyncio.wrap_future(verdict)))
        if late and not verdict.good:
            await asyncio.sleep(began + self.delay_s - time.monotonic())
        return verdict

    def _begun(
        self, door: str, user: str, password: str, host: str, derive: Derive | None = None
    ) -> Verdict | Future[bool]:
        """What is known at once, or what is worked out."""
        verdict = self.at_once(door, user, password, host)
        return verdict or self._work_out(user, password, derive) or self._crowded(door, user, host)

    def wait(self, door: str, user: str, password: str, host: str) -> Verdict:
        """`ask`, for a thread that may wait."""
        begun = self._begun(door, user, password, host)
        return begun if isinstance(begun, Verdict) else self._judged(door, user, host, begun.result())

    def check(self, user: str, password: str, host: str) -> bool:
        """Whether somebody is let in over Flight, whose threads may wait."""
        return self.wait("flight", user, password, host).good

    def is_wrong(self, user: str, password: str) -> bool:
        """Whether somebody is let in over Flight from nowhere at all.

        False says nothing: it is so, too, when too many such calls were wrong.
        """
        verdict = self.wait("flight", user, password, ANYWHERE)
        return not verdict.good and not verdict.wait_s

    def is_right(self, user: str, password: str) -> bool:
        """Whether somebody is found right from nowhere at all: who was so before is, however many others were wrong.

        False says nothing, either.
        """
        return self.wait("flight", user, password, ANYWHERE).good

    def who(self, user: str) -> Who:
        """Somebody who has logged in, as rights are judged."""
        return self.users.who(user)

    def by_certificate(self, user: str, host: str) -> Verdict:
        """Whether somebody whose certificate says that it is this user is let in; AMQP's door alone asks."""
        if user and self.users.admits(user, host):
            return GOOD
        return self._refuse("amqp", user, host, "no user that the certificate names may log in from there")

    def close(self) -> None:
        """No login is worked out any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # -- working out

    def _secret(self, user: str, password: str) -> bytes:
        said = f"{len(user)} {user} {password}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, said, hashlib.sha256)

    def _work_out(self, user: str, password: str, derive: Derive | None) -> Future[bool] | None:
        """Whether the hash is this password's, worked out once for all who ask at a time; None: too many wait."""
        kept = self.users.kept(user)
        if kept is None:  # gone since
            return _known(False)
        key = (user, self._secret(user, password), kept)
        with self._lock:
            found = self._under_way.get(key)
            if found is not None:
                return found
            if self._is_right(user, kept, key[1]):  # worked out since
                return _known(True)
            if len(self._under_way) >= WAITING_MOST:
                return None
            future = self._under_way[key] = self._matched(kept, password) if derive is None else Future[bool]()
        future.add_done_callback(lambda done: self._worked_out(key, done))
        if derive is not None:
            self._have_derived(future, kept, password, derive)
        return future

    def _matched(self, kept: Kept, password: str) -> Future[bool]:
        """Worked out by a thread of this process."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(WORKERS, "penstock-login")
        return self._pool.submit(kept.matches, password)

    def _have_derived(self, future: Future[bool], kept: Kept, password: str, derive: Derive) -> None:
        """Worked out by somebody else, who is told neither the digest that is right nor whether his is."""
        how, right = parted(kept.text)

        def heard(digest: bytes | None) -> None:
            if digest is not None:
                future.set_result(hmac.compare_digest(digest, right))
            else:  # he is gone, and others may wait for the same
                self._matched(kept, password).add_done_callback(lambda done: _pass_on(done, future))

        derive(how, heard)

    def _worked_out(self, key: tuple[str, bytes, Kept], done: Future[bool]) -> None:
        user, secret, kept = key
        with self._lock:
            self._under_way.pop(key, None)
            if not done.cancelled() and done.exception() is None and done.result():
                self._remember(user, secret, kept)

    def _judged(self, door: str, user: str, host: str, right: bool) -> Verdict:
        if right and (kept := self.users.kept(user)) is not None and kept.slow:
            return GOOD
        return self._refuse(door, user, host, WRONG)

    # -- refusing

    def _crowded(self, door: str, user: str, host: str) -> Verdict:
        return self._refuse(door, user, host, f"{WAITING_MOST} logins are being checked, and no more may wait", 1.0)

    def _refuse(self, door: str, user: str, host: str, why: str, wait_s: float = 0.0) -> Verdict:
        with self._lock:
            self.refused[door] += 1
            if not wait_s:
                self._by_user.count((host, user))
                self._by_address.count(host)
        if self._loop is None:
            self._tell(door, user, host, why)
        else:
            self._loop.call_soon_threadsafe(self._tell, door, user, host, why)
        return Verdict(False, why, wait_s)

    def _tell(self, door: str, user: str, host: str, why: str) -> None:
        self._complain(door, host, f"login of user {user[:60]!r} refused: {why}")
        if self.on_refused is not None:
            self.on_refused(door, user, host, why)

    # -- keeping passwords better

    def _upgrade_soon(self, user: str, password: str, kept: Kept) -> None:
        """Keep the password of a user of run time by Argon2id from now on, for it is known now."""
        account = self.users.accounts.users.get(user)
        if self._loop is not None and account is not None and account.password == kept and kept.algorithm != ARGON2ID:
            self._loop.call_soon_threadsafe(self._begin_upgrade, user, password, kept)

    def _begin_upgrade(self, user: str, password: str, kept: Kept) -> None:
        if len(self._upgrading) < WORKERS:  # others have their turn at their next login
            task = asyncio.ensure_future(self._upgrade(user, password, kept))
            self._upgrading.add(task)
            task.add_done_callback(self._upgrading.discard)

    async def _upgrade(self, user: str, password: str, kept: Kept) -> None:
        better = await asyncio.to_thread(keep, password)

        def work(accounts: Accounts) -> None:
            account = accounts.users.get(user)
            if account is not None and account.password == kept:
                accounts.users[user] = Account(user, better, account.tags)

        try:
            await self.users.accounts.change(work)
        except PenstockError as error:
            logger.warning("the password of user %r stays hashed by %s: %s", user, kept.algorithm, error)
            return
        with self._lock:
            self._right[user] = self._secret(user, password), better


def _known(right: bool) -> Future[bool]:
    future = Future[bool]()
    future.set_result(right)
    return future


def _pass_on(done: Future[bool], future: Future[bool]) -> None:
    """What came of one is the other's."""
    if done.cancelled():
        future.cancel()
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())
