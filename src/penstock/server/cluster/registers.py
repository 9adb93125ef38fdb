"""Registers: one small value under one name, changed by compare-and-set on its version.  Calls block; any thread.

    file:///folder             a file, for members of one machine or of one NFSv4 folder
    etcd://host:port,…/prefix  the key-value operations of etcd's v3 API over its HTTP gateway
    manual                     a file in each member's own data folder, which members tell each other: see `talking`

Nothing else is asked of an engine: no locks, no leases, no clock.  An answer that was lost is an outcome that nobody
knows, and it is said so: whoever asked looks again.

What people change is read, changed and swapped in, again while others change it meanwhile.  Of an order to lead a
person is told what the member's copy of the register says first, and then.
"""

from __future__ import annotations

import base64
import fcntl
import http.client
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import orjson

from penstock.errors import PreconditionFailed, SettingsError, Unavailable, told_as
from penstock.log.disk import OsDisk
from penstock.replication.election import Outcome
from penstock.replication.insync import Times
from penstock.replication.register import BYTES_MOST, ClusterState, Verdict, compared, decode
from penstock.server.cluster import folder
from penstock.units import ascii_host, parted_address, shown_address

if TYPE_CHECKING:
    from penstock.ports import Disk

KINDS = "file:///folder, etcd://host:port,host:port/prefix or manual"
MANUAL = "manual"
LEASE = Times().lease

T = TypeVar("T")


class Kept(NamedTuple):
    """What a register holds."""

    version: int  # 0: nothing
    value: bytes


class Register(Protocol):
    """One value with a version."""

    @abstractmethod
    def read(self) -> Kept:
        """The value now.  Unavailable when nobody says."""

    @abstractmethod
    def swap(self, version: int, value: bytes) -> Outcome:
        """Put a value in the place of the one with this version; 0: where there is none."""


def register_at(url: str, data: str | Path, lease: int = LEASE) -> Register:
    """The register that a setting names.  SettingsError.

    data: a member's folder, which may have a copy.  lease: the cluster's: how long a call may take follows from it
    """
    if url == MANUAL:
        return FileRegister(Path(data), "cluster-register")
    scheme, _, where = url.partition("://")  # what splits one URL knows of one host
    place, slash, path = where.partition("/")
    if scheme == "file" and slash and not place:
        return FileRegister(Path(f"/{path}"))
    if scheme == "etcd" and place and not {"?", "#"} & {*where}:
        hosts = place.split(",")
        for one in hosts:
            host, port = parted_address(one)
            if not ascii_host(host) or not port.isdecimal() or not 0 < int(port) < 1 << 16:
                told = f"{shown_address(url)!r} has {shown_address(one)!r}"
                raise SettingsError(f"cluster.registry: {told}, which is not host:port, as etcd-1:2379")
        return EtcdRegister(hosts, path.strip("/") or "penstock", Times(lease=lease).call / 1e6)
    raise SettingsError(f"cluster.registry: {shown_address(url)!r} is no register: give {KINDS}")


_FILE_MOST = BYTES_MOST + 32
"""A version, and one byte more than a value may have at least: that is refused where it is read."""


class FileRegister:
    """A file, replaced as a whole under a lock: its version in the first line, then the value."""

    def __init__(self, folder: Path, name: str = "") -> None:
        """name: of its files, in a folder that has others."""
        self._folder = folder
        self._value, self._lock, self._part = (
            (folder / f"{name}{end}" for end in ("", ".lock", ".part")) if name
            else (folder / "register", folder / "lock", folder / "part")
        )  # fmt: skip

    def read(self) -> Kept:
        """The value now."""
        try:
            with self._value.open("rb") as file:
                first, _, value = file.read(_FILE_MOST).partition(b"\n")
            return Kept(int(first), value)
        except FileNotFoundError:
            if not self._folder.is_dir():
                raise Unavailable(f"the register's folder {self._folder} is not there") from None
            return Kept(0, b"")
        except (OSError, ValueError) as error:
            raise Unavailable(f"the register in {self._folder} cannot be read: {error}") from error

    def swap(self, version: int, value: bytes) -> Outcome:
        """Put a value in the place of the one with this version."""
        with told_as(Unavailable, f"the register in {self._folder} cannot be locked: ", instead=OSError):
            lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.read().version != version:
                return "changed"
            return self._put(version + 1, value)
        finally:
            os.close(lock)

    def _put(self, version: int, value: bytes) -> Outcome:
        part = self._part
        with told_as(Unavailable, f"the register in {self._folder} cannot be written: ", instead=OSError):
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                data = b"%d\n%b" % (version, value)
                while data:  # a disk that is almost full takes some of it, and says that it is full when asked again
                    data = data[os.write(fd, data) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            part.rename(self._value)
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            return "unknown"
        return version


class EtcdRegister:
    """One key in etcd."""

    def __init__(self, hosts: Sequence[str], key: str, timeout_s: float = Times().call / 1e6) -> None:
        self._hosts = list(hosts)  # the one that answered last comes first
        self._key = base64.b64encode(key.encode()).decode()
        self._timeout_s = timeout_s

    def read(self) -> Kept:
        """The value now, as a majority of etcd's members has it."""
        why = ""
        for host in list(self._hosts):
            try:
                kept = self._call(host, "/v3/kv/range", {"key": self._key}, _kept)
            except (OSError, http.client.HTTPException) as error:
                why = f"{host}: {error}"
                continue
            self._answered(host)
            return kept
        raise Unavailable(f"etcd does not answer: {why}")

    def swap(self, version: int, value: bytes) -> Outcome:
        """Put a value in the place of the one with this version.  It is asked once: a lost answer is `unknown`."""
        put = {"request_put": {"key": self._key, "value": base64.b64encode(value).decode()}}
        compare = {"key": self._key, "target": "MOD", "result": "EQUAL", "mod_revision": str(version)}
        try:
            return self._call(self._hosts[0], "/v3/kv/txn", {"compare": [compare], "success": [put]}, _outcome)
        except ConnectionRefusedError:
            self._hosts.append(self._hosts.pop(0))
            raise Unavailable(f"etcd does not answer at {self._hosts[-1]}") from None
        except (OSError, http.client.HTTPException):
            self._hosts.append(self._hosts.pop(0))
            return "unknown"

    def _answered(self, host: str) -> None:
        self._hosts.remove(host)
        self._hosts.insert(0, host)

    def _call(self, host: str, path: str, asked: object, read: Callable[[Any], T]) -> T:
        """What an answer says.  OSError, HTTPException: nobody answers, or not as etcd does, whatever that is then."""
        with closing(http.client.HTTPConnection(host, timeout=self._timeout_s)) as connection:
            connection.request("POST", path, orjson.dumps(asked), {"content-type": "application/json"})
            answer = connection.getresponse()
            content = answer.read(8 * BYTES_MOST)
            if answer.status != 200:
                raise http.client.HTTPException(f"status {answer.status}: {content[:200]!r}")
        try:
            return read(orjson.loads(content))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise http.client.HTTPException(f"this is no answer of etcd: {content[:200]!r}") from error


def _kept(said: Any) -> Kept:
    kept: list[Any] = said.get("kvs") or []
    if not kept:
        int(said["header"]["revision"])  # who else says an empty object has no value for us either
        return Kept(0, b"")
    return Kept(int(kept[0]["mod_revision"]), base64.b64decode(kept[0].get("value", ""), validate=True))


def _outcome(said: Any) -> Outcome:
    revision = int(said["header"]["revision"])
    return revision if said.get("succeeded") else "changed"


TRIES = 50
PAUSE_S = 0.05


def state_of(register: Register) -> tuple[int, ClusterState]:
    """Version and value.  Unavailable where there is none."""
    kept = register.read()
    if not kept.value:
        raise Unavailable("the register is empty: `penstock cluster init` makes a cluster")
    return kept.version, decode(kept.value)


def changed(register: Register, change: Callable[[ClusterState], ClusterState]) -> ClusterState:
    """What the register holds after a change.  It blocks; Unavailable, and what `change` raises."""
    for _ in range(TRIES):
        version, state = state_of(register)
        wanted = change(state)
        if wanted == state:
            return state
        if isinstance(register.swap(version, wanted.encode()), int):
            return wanted
        time.sleep(PAUSE_S)  # its leader swaps too, some times in a lease; what nobody knows is looked at anew
    raise Unavailable("the register changes all the time, or does not tell: nothing is known to have changed")


def told_to_lead(data: str, state: ClusterState, member: str, lose: int | None) -> ClusterState:
    """The register with an order to lead.  data: the folder of the member with these settings.

    NotFound, PreconditionFailed, InvalidArgument.
    """
    key = state.key_of(member)
    if not state.manual:
        return state.promoted(key, lose)
    disk = OsDisk(data)
    known = folder.read(disk)
    if known is None or known.member != key:
        here = "no member" if known is None else state.members[known.member].name
        raise PreconditionFailed(
            f"{data} is the folder of {here}: with registry = 'manual' run this beside the folder of {member}"
        )
    return promoted(disk, state, key, lose)


def promoted(disk: Disk, copy: ClusterState, key: str, lose: int | None) -> ClusterState:
    """A member's copy of the register with an order to lead.  PreconditionFailed as `ClusterState.told_to_lead`.

    disk: the member's own folder, which says what the copy does not
    """
    known, rival = folder.read(disk), rival_of(disk, copy)
    lacks = known is not None and not known.intact
    return copy.told_to_lead(key, lacks=lacks, rival=rival, lose=lose)


def rival_of(disk: Disk, copy: ClusterState) -> ClusterState | None:
    """Another copy that went on without this one, as this one did without it; None: there is none."""
    data = folder.read_rival(disk)
    rival = None if data is None else decode(data)
    return rival if rival is not None and compared(copy, rival) is Verdict.RIVAL else None
