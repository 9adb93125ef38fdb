"""What is administered at run time and is no message's affair: users, vhosts, permissions, limits, global parameters.

It lies in `accounts.json` of the data folder, for secrets are never records of the log: passwords by Argon2id, or in
RabbitMQ's form where its definitions were taken over.  The file is replaced as a whole and synced
before a change is answered.  What the settings file names is not here and cannot be changed here; `guest`, who is there
when the settings name nobody, can.

    <sha256 of the rest, hexadecimal> newline JSON

RabbitMQ's form is one round of a fast hash: who steals it tries billions of passwords a second.  It is taken so that
definitions move from there to here, and is replaced when its user logs in, for then the password is known.
19 MiB and two rounds are what OWASP's cheat sheet asks of Argon2id at least: about 30 ms of a core, so it is never
worked out on the loop (`server.people.logins`).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import orjson

from penstock.errors import InvalidArgument, SettingsError, Unavailable
from penstock.ports import Disk, read_whole, replace_whole
from penstock.records.dataclass import dataclass
from penstock.records.password_hashes import ARGON2ID, FAST, SALT, SHA256

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.core.broker import Core
    from penstock.log.disk import OsDisk


MEMORY_KIB, ROUNDS, LANES = 19 * 1024, 2, 1


@dataclass(frozen=True, slots=True)
class Kept:
    """A password as it is kept; an empty `text` is right for no password."""

    text: str
    algorithm: str

    @property
    def slow(self) -> bool:
        """Whether `matches` takes tens of milliseconds."""
        return self.algorithm == ARGON2ID and bool(self.text)

    def matches(self, password: str) -> bool:
        """Whether this is the password, in a time that tells nothing of it."""
        if not self.text:
            return False
        given = password.encode()
        if self.algorithm == ARGON2ID:
            from cryptography.exceptions import InvalidKey  # loaded with the first such login
            from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

            try:
                Argon2id.verify_phc_encoded(given, self.text)
            except InvalidKey:
                return False
            return True
        kept = base64.b64decode(self.text)
        digest = hashlib.new(FAST[self.algorithm], kept[:SALT] + given, usedforsecurity=False).digest()
        return hmac.compare_digest(kept[SALT:], digest)


def keep(password: str) -> Kept:
    """A password by Argon2id, with new salt; tens of milliseconds.  An empty one is right for nobody."""
    if not password:
        return Kept("", ARGON2ID)
    from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

    made = Argon2id(
        salt=secrets.token_bytes(16), length=32, iterations=ROUNDS, lanes=LANES, memory_cost=MEMORY_KIB
    ).derive_phc_encoded(password.encode())
    return Kept(made, ARGON2ID)


def hash_password(password: str, algorithm: str = SHA256) -> str:
    """A password in RabbitMQ's form, with new salt."""
    salt = secrets.token_bytes(SALT)
    digest = hashlib.new(FAST[algorithm], salt + password.encode(), usedforsecurity=False).digest()
    return base64.b64encode(salt + digest).decode()


T = TypeVar("T")

logger = logging.getLogger("penstock.server")

DEFAULT = "/"
"""The vhost that is always there, and is in the file where something is said of it."""

FILE = "accounts.json"

MANY = 10_000
"""Objects of each kind that there may be."""

VHOST_LIMITS = ("max-connections", "max-queues")
USER_LIMITS = ("max-connections", "max-channels")


@dataclass(frozen=True, slots=True)
class Account:
    """A user made at run time."""

    name: str
    password: Kept
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Permission:
    """What a user may do in a vhost: three regular expressions over names; an empty one allows nothing."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class TopicPermission:
    """What a user may do with routing keys of an exchange, beside a permission: two regular expressions over keys."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class Token:
    """A login of a user's that ends: what is kept of it, and what it is for (`server.people.tokens`)."""

    id: str
    user: str
    secret: str  # a digest of it
    bound: str  # to the password that the settings have
    vhost: str
    configure: str
    write: str
    read: str
    tags: tuple[str, ...]
    lasts_s: int
    ends: float  # seconds since the epoch
    label: str = ""  # what its user calls it


@dataclass(slots=True)
class Accounts:
    """All of it.  `vhosts` also has those of the settings, which never go, and stay where the settings leave them out:
    else what is in them would be nobody's, and whoever made one of the name would find it empty.
    """

    fixed_vhosts: tuple[str, ...] = ("/",)
    fixed_users: frozenset[str] = frozenset()  # of the settings file
    fixed_types: Mapping[str, str] = field(default_factory=dict[str, str])  # vhost -> type of queues that name none
    users: dict[str, Account] = field(default_factory=dict[str, Account])
    removed: set[str] = field(default_factory=set[str])  # users that are there by default
    vhosts: dict[str, dict[str, object]] = field(default_factory=dict[str, dict[str, object]])  # name -> description...
    permissions: dict[tuple[str, str], Permission] = field(default_factory=dict[tuple[str, str], Permission])
    topic_permissions: dict[tuple[str, str, str], TopicPermission] = field(
        default_factory=dict[tuple[str, str, str], TopicPermission]
    )
    tokens: dict[str, Token] = field(default_factory=dict[str, Token])  # by their ids
    vhost_limits: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    user_limits: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    global_parameters: dict[str, object] = field(default_factory=dict[str, object])
    fixed_vhost_limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, "Mapping[str, int]"])
    fixed_user_limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, "Mapping[str, int]"])
    changed: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])  # told after each change
    ended_users: Counter[str] = field(default_factory=Counter[str])  # how often one of a name has gone, in this process
    in_thread: bool = False  # the file is written by a thread
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held from a change until it is on disk
    copied: Callable[[], Awaitable[None]] | None = None  # returns when other disks have the file, too
    _disk: Disk | None = None
    _written: frozenset[str] = frozenset()  # vhosts that the file names

    def __post_init__(self) -> None:
        for name in self.fixed_vhosts:
            self.vhosts.setdefault(name, {})

    # -- the file

    def load(self, disk: Disk) -> None:
        """What the folder has, which is written from now on.  SettingsError when that cannot be read."""
        self._disk = disk
        self.read(disk)

    def read(self, disk: Disk) -> None:
        """What the folder has, in the place of what was here before.  SettingsError when that cannot be read."""
        if FILE not in disk.list():
            return
        digest, _, text = read_whole(disk, FILE).partition(b"\n")
        if digest.decode("ascii", "replace") != hashlib.sha256(text).hexdigest():
            raise SettingsError(
                f"{FILE} of the data folder is damaged: restore it from a copy, or remove it, and users, vhosts, "
                "permissions and limits that were made at run time are gone"
            )
        before = self.state()
        try:
            self.restore(text)
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # its sum may be of whoever wrote it
            self.restore(before)
            raise SettingsError(f"{FILE} of the data folder is none of users and vhosts: {error!r:.200}") from None
        self.tell()

    def _read(self, values: Mapping[str, Iterable[Mapping[str, object]]]) -> None:
        for one in values["users"]:
            tags = tuple(cast("list[str]", one["tags"]))
            account = Account(str(one["name"]), Kept(str(one["password_hash"]), str(one["hashing_algorithm"])), tags)
            self.users[account.name] = account
        self.removed = {str(one["name"]) for one in values["removed"]}
        for one in values["vhosts"]:
            self.vhosts[str(one["name"])] = {key: value for key, value in one.items() if key != "name"}
        self._written = frozenset(str(one["name"]) for one in values["vhosts"])
        # threads judge meanwhile: who has permissions has what narrows them, too
        for one in values.get("topic_permissions", ()):  # a file of before there were any has none
            narrower = TopicPermission(**cast("dict[str, str]", dict(one)))
            self.topic_permissions[narrower.user, narrower.vhost, narrower.exchange] = narrower
        for one in values["permissions"]:
            permission = Permission(**cast("dict[str, str]", dict(one)))
            self.permissions[permission.user, permission.vhost] = permission
        for one in values.get("tokens", ()):
            token = Token(**cast("dict[str, Any]", {**one, "tags": tuple(cast("list[str]", one["tags"]))}))
            self.tokens[token.id] = token
        for kind, limits in (("vhost_limits", self.vhost_limits), ("user_limits", self.user_limits)):
            limits.update({str(one["name"]): cast("dict[str, int]", one["value"]) for one in values[kind]})
        self.global_parameters = {str(one["name"]): one["value"] for one in values["global_parameters"]}

    def _plain(self) -> dict[str, object]:
        """All of it for `orjson`, which writes the fields of a dataclass as it does a mapping."""
        return {
            "users": [
                {"name": one.name, "password_hash": one.password.text, "hashing_algorithm": one.password.algorithm,
                 "tags": one.tags}
                for one in self.users.values()
            ],
            "removed": [{"name": name} for name in sorted(self.removed)],
            "vhosts": [{"name": name, **more} for name, more in self.vhosts.items() if more or name != DEFAULT],
            "permissions": list(self.permissions.values()),
            "topic_permissions": list(self.topic_permissions.values()),
            "tokens": list(self.tokens.values()),
            "vhost_limits": [{"name": name, "value": value} for name, value in self.vhost_limits.items()],
            "user_limits": [{"name": name, "value": value} for name, value in self.user_limits.items()],
            "global_parameters": [{"name": name, "value": value} for name, value in self.global_parameters.items()],
        }  # fmt: skip

    async def change(
        self, work: Callable[[Accounts], T], told: Callable[[bytes, bytes], object] | None = None
    ) -> T:  # fmt: skip
        """The result of a change that is on disk now, and on others that must have it.

        Raises what it raises, and Unavailable; nothing is changed.  told: the states before and after, at the end.
        """
        async with self.changing:
            before = self.state()
            try:
                result = work(self)
                if (after := self.state()) != before:
                    await self.save()
            except OSError as error:
                self.restore(before)
                raise Unavailable(f"the file of users and vhosts cannot be written: {error}") from error
            except BaseException:
                self.restore(before)
                raise
            finally:
                self.tell()
        if self.copied is not None:
            await self.copied()
        if told is not None and after != before:
            told(before, after)
        return result

    async def save(self) -> None:
        """Replace the file and sync it.  Raises OSError, InvalidArgument for too many objects."""
        for name, kept in (("users", self.users), ("vhosts", self.vhosts), ("permissions", self.permissions),
                           ("topic_permissions", self.topic_permissions)):  # fmt: skip
            if len(kept) > MANY:
                raise InvalidArgument(f"there are {len(kept)} {name}, {MANY} are allowed")
        if self._disk is not None:
            data = self._file()
            if self.in_thread:
                await asyncio.to_thread(replace_whole, self._disk, FILE, data)
            else:
                replace_whole(self._disk, FILE, data)

    def keep_named(self) -> None:
        """Have the file name the vhosts of the settings, so that they stay: at a start, by whoever holds the folder."""
        if self._disk is not None and not self._written.union([DEFAULT]).issuperset(self.fixed_vhosts):
            try:
                replace_whole(self._disk, FILE, self._file())
            except OSError as error:
                logger.warning("the file of users and vhosts cannot be written, the next change tries it: %s", error)

    def _file(self) -> bytes:
        text = orjson.dumps(self._plain())
        return hashlib.sha256(text).hexdigest().encode() + b"\n" + text

    def tell(self) -> None:
        """Tell whoever remembers something of it."""
        for told in self.changed:
            told()

    def state(self) -> bytes:
        """Everything, to `restore` when a change cannot be kept."""
        return orjson.dumps(self._plain())

    def restore(self, state: bytes) -> None:
        """Put everything back as `state` gave it."""
        for kept in (
            self.users, self.vhosts, self.permissions, self.topic_permissions, self.tokens, self.vhost_limits,
            self.user_limits, self.global_parameters,
        ):  # fmt: skip
            kept.clear()
        self.vhosts.update({name: {} for name in self.fixed_vhosts})
        self._read(cast("dict[str, list[dict[str, object]]]", orjson.loads(state)))

    def take_back(self, before: bytes, after: bytes) -> None:
        """Undo what one change made of one state the other; what others have changed since stays."""
        old, new, now = (cast("_Sections", orjson.loads(state)) for state in (before, after, self.state()))
        for section, rows in now.items():
            was, made = _by_key(old[section]), _by_key(new[section])
            kept = _by_key(rows)
            for key in [key for key in {**was, **made} if was.get(key) != made.get(key) == kept.get(key)]:
                kept.pop(key, None)
                if key in was:
                    kept[key] = was[key]
            now[section] = list(kept.values())
        self.restore(orjson.dumps(now))

    def bound(self, core: Core) -> None:
        """Keep what the core knows of vhosts as it is here: how many queues, and of which type those that name none."""

        def tell() -> None:
            core.queue_limits.clear()
            for vhost, limits in self.limits_of_vhosts().items():
                if "max-queues" in limits:
                    core.queue_limits[vhost] = limits["max-queues"]
            core.traced = frozenset(vhost for vhost, more in self.vhosts.items() if more.get("tracing"))
            core.default_types = {vhost: self.default_type(vhost) for vhost in self.vhosts}

        self.changed.append(tell)
        tell()

    def default_type(self, vhost: str) -> str:
        """Of the queues of a vhost whose declares name no type."""
        found = self.vhosts.get(vhost, {}).get("default_queue_type") or self.fixed_types.get(vhost)
        return str(found or "classic")

    def limits_of_vhosts(self) -> dict[str, dict[str, int]]:
        """Those in force: of the settings and of run time the smaller one."""
        return _smaller(self.fixed_vhost_limits, self.vhost_limits)

    def limits_of_users(self) -> dict[str, dict[str, int]]:
        """Those in force of users, by the same rule as for vhosts."""
        return _smaller(self.fixed_user_limits, self.user_limits)

    # -- permissions

    def forget_user(self, name: str) -> None:
        """A user goes, with permissions and limits."""
        self.ended_users[name] += 1
        self.users.pop(name, None)
        self.user_limits.pop(name, None)
        self.forget_tokens(user=name)
        self.permissions = {key: one for key, one in self.permissions.items() if one.user != name}
        self.topic_permissions = {key: one for key, one in self.topic_permissions.items() if one.user != name}

    def forget_tokens(self, user: str) -> None:
        """Those of a user, who is gone or has another password."""
        self.tokens = {key: one for key, one in self.tokens.items() if one.user != user}

    def forget_vhost(self, name: str) -> None:
        """A vhost goes, with permissions and limits."""
        self.vhosts.pop(name, None)
        self.vhost_limits.pop(name, None)
        self.tokens = {key: one for key, one in self.tokens.items() if one.vhost != name}
        self.permissions = {key: one for key, one in self.permissions.items() if one.vhost != name}
        self.topic_permissions = {key: one for key, one in self.topic_permissions.items() if one.vhost != name}


class Followed:
    """The file of a folder in which another process puts it: read again whenever it was replaced."""

    def __init__(self, accounts: Accounts, disk: OsDisk, say: Callable[[str], object]) -> None:
        """say: told of a file that cannot be read; what was read before holds on then."""
        self._accounts, self._disk, self._say = accounts, disk, say
        self._seen: tuple[int, int] | None = None

    def look(self) -> None:
        """One call of the system where nothing is new."""
        try:
            about = (self._disk.folder / FILE).stat()
        except FileNotFoundError:
            return
        if (seen := (about.st_ino, about.st_mtime_ns)) != self._seen:
            self._seen = seen
            try:
                self._accounts.read(self._disk)
            except SettingsError as error:
                self._say(str(error))


def accounts_of(settings: Settings) -> Accounts:
    """What the settings file says; `load` adds what was made at run time."""
    return Accounts(
        settings.vhosts,
        frozenset(user.name for user in settings.user),
        {one.name: one.default_queue_type for one in settings.vhost if one.default_queue_type is not None},
        fixed_vhost_limits={
            one.name: _limits({"max-connections": one.max_connections, "max-queues": one.max_queues})
            for one in settings.vhost
        },
        fixed_user_limits={
            one.name: _limits({"max-connections": one.max_connections, "max-channels": one.max_channels})
            for one in settings.user
        },
    )


def _limits(values: Mapping[str, int | None]) -> dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}


def _smaller(one: Mapping[str, Mapping[str, int]], other: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Limits by thing and name, the smaller where both have one; below 0 is none."""
    out: dict[str, dict[str, int]] = {}
    for limits in (one, other):
        for thing, values in limits.items():
            mine = out.setdefault(thing, {})
            mine.update({name: min(value, mine.get(name, value)) for name, value in values.items() if value >= 0})
    return {thing: values for thing, values in out.items() if values}


_Sections: TypeAlias = "dict[str, list[dict[str, object]]]"

_KEY = ("id", "name", "user", "vhost", "exchange")


def _by_key(rows: list[dict[str, object]]) -> dict[tuple[object, ...], dict[str, object]]:
    """Rows of one section of a state by what tells them apart."""
    return {tuple(row[part] for part in _KEY if part in row): row for row in rows}
