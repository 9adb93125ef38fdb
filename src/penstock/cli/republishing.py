"""Messages of a log published again over AMQP, under numbers that the server remembers: whatever is run a second time
brings none of them twice.

They go in transactions, of which all is stored or nothing: so no number is used up by a message behind one that was
refused.  It knows which header goes out, and not why a message is published again.

`publish --from-cut` does that with what was cut off a member's log, since another leader's went on without it.  Which
records those are the register says, in whose terms they are past the end: `cut/` also has unfinished writes, and what a
copy fetched again.  A file whose messages are all there is marked beside it: a second time does nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import orjson
import typer

from penstock.cli.amqp_link import Broker, Link, broker_at, door_of
from penstock.cli.output import Told, connect, counted, note, write, write_table
from penstock.cli.serving import read_settings
from penstock.errors import InvalidArgument, NotFound, ProtocolError, Refused, SettingsError, Unavailable, told_as
from penstock.log.disk import OsDisk
from penstock.log.mending import CUT, begins_a_tail, cut_files, cut_rows
from penstock.log.record_batches import cells
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.records.kinds import PUBLISHES, Kind
from penstock.wire.amqp import methods as m
from penstock.wire.fields import LSN_MAX

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.config.settings import Settings
    from penstock.records.field_tables import FieldValue, Written
    from penstock.replication.register import ClusterState


PATIENCE_S = 60.0
BATCH_MESSAGES, BATCH_BYTES = 1000, 4 << 20
"""Of one transaction at most; a larger message goes alone."""


Place: TypeAlias = tuple[str, str, Sequence[str]]
"""Vhost, exchange, and further keys that nobody is told of."""


@dataclass(slots=True)
class Message:
    """One that is to be published again."""

    lsn: int
    sequence: int  # its number
    key: str
    properties: bytes | None
    body: bytes
    expires_at: int = 0  # microseconds; 0: never
    not_before: int = 0
    priority: int | None = None  # where the header says none


class Done(NamedTuple):
    """What became of one transaction."""

    published: int
    unroutable: int  # that nobody takes


class Republisher:
    """Connections to one server, one for each vhost."""

    def __init__(self, client: Client, amqp: str | None) -> None:
        """amqp: where the server's AMQP is, if it cannot be asked.  Unavailable without such a door."""
        address = client.address
        if amqp is None:
            tls, host, port = door_of(client, "amqp", address.host)
            if port is None:
                raise Unavailable("the server has no AMQP door, or does not say where: name it with --amqp")
            self._broker = Broker(host, port, address.user, address.password, "/", tls, address.trust)
        else:
            self._broker = broker_at(amqp, address.user, address.password)
        self._links: dict[str, Link] = {}

    def publish(self, publisher: str, messages: Iterable[tuple[Message, Place]]) -> Iterator[Done]:
        """Publish messages in order, their numbers rising.

        Refused names the first that the server does not take; those before it are stored, none behind it went out.
        """
        for batch in _batches(messages):
            try:
                yield self._commit(publisher, batch)
            except Refused:
                if len(batch) == 1:
                    raise
                yield from (self._commit(publisher, [one]) for one in batch)  # up to the one that it is about

    def _commit(self, publisher: str, batch: Sequence[tuple[Message, Place]]) -> Done:
        first, (vhost, exchange, _) = batch[0]
        link = self._links.get(vhost) or self._open(vhost)
        before = link.returned
        try:
            for one, place in batch:
                link.publish(place[1], one.key, _header(one, publisher, place[2]), one.body, mandatory=True)
            link.call(m.TxCommit(), m.TxCommitOk)
        except (ProtocolError, NotFound) as error:
            self._links.pop(vhost).close()
            raise Refused(f"LSN {first.lsn}, to {exchange}/{first.key}, is refused: {error}") from error
        unroutable = link.returned - before
        return Done(len(batch) - unroutable, unroutable)

    def _open(self, vhost: str) -> Link:
        link = self._links[vhost] = Link(self._broker.of(vhost), PATIENCE_S)
        link.call(m.TxSelect(), m.TxSelectOk)
        return link

    def close(self) -> None:
        """End the connections."""
        for link in self._links.values():
            link.close()


def _batches(messages: Iterable[tuple[Message, Place]]) -> Iterator[list[tuple[Message, Place]]]:
    """As many as go in one transaction, of one vhost each."""
    held, size = list[tuple[Message, Place]](), 0
    for one, place in messages:
        full = len(held) == BATCH_MESSAGES or size + len(one.body) > BATCH_BYTES
        if held and (full or place[0] != held[0][1][0]):
            yield held
            held, size = [], 0
        held.append((one, place))
        size += len(one.body)
    if held:
        yield held


def _header(message: Message, publisher: str, blind: Sequence[str]) -> bytes:
    """The header as it was, with a number, and with times that are left.

    InvalidArgument where it cannot be read.
    """
    written: Written = {}
    with told_as(InvalidArgument, f"the header of LSN {message.lsn} cannot be read: ", instead=ProtocolError):
        header = header_codec.decode(message.properties or header_codec.EMPTY, written)
    headers: dict[str, FieldValue] = dict(header.headers or {})
    if header.user_id is not None:
        headers.setdefault("x-original-user-id", header.user_id)
        header.user_id = None
    for name in ("x-delay", "_AMQ_SCHED_DELIVERY"):
        headers.pop(name, None)
    if message.not_before:
        headers["x-deliver-at"] = message.not_before // 1000
    if message.expires_at:
        header.expiration = str(max(1, (message.expires_at - time.time_ns() // 1000) // 1000))
    if header.priority is None:
        header.priority = message.priority
    if blind:
        headers["BCC"] = list(blind)
    numbered: Mapping[str, FieldValue] = {**headers, "x-publisher": publisher, "x-sequence": message.sequence}
    header.headers = numbered
    return header_codec.encode(header, written)


MARK = ".published"


@dataclass(slots=True)
class Lost:
    """One file of `cut/`, and what is done with its messages."""

    file: str
    first: int
    last: int
    messages: int = 0  # that are in no member's log
    there: int = 0  # the log has them
    made: int = 0  # dead letters: they are made again where their cause ends again
    expired: int = 0
    published: int = 0
    unroutable: int = 0
    before: bool = False  # all of it was published already

    def plain(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


class Tails:
    """What `cut/` of a folder holds that the cluster's log does not."""

    def __init__(self, folder: Path, state: ClusterState, files: Sequence[str]) -> None:
        """files: these alone; all without any.  NotFound for one that is not there."""
        self._folder, self._state, self._disk = folder, state, OsDisk(folder)
        found = [one for one in cut_files(self._disk) if one.records] if folder.is_dir() else []
        if missing := set(files) - {one.file for one in found}:
            raise NotFound(f"{folder / CUT} has no file {min(missing)!r} with records")
        self._all = [one.file for one in found]
        self._wanted = set(files) or set(self._all)
        self.lost = [Lost(one.file, one.first, one.last) for one in found if one.file in self._wanted]
        self._made = {new for name in self._all for new in self._dead_letters(name)}
        self._seen = set[int]()

    def _dead_letters(self, name: str) -> Iterator[int]:
        for rows in cut_rows(self._disk, name):
            for kind, header in zip(cells(rows, "kind"), cells(rows, "properties"), strict=True):
                if kind == Kind.EXPIRE and header:
                    said = cast("dict[str, Any]", orjson.loads(header))
                    yield from (new for _, new in (*(said.get("dead") or ()), *(said.get("sent") or ())))
                    yield from said.get("refused") or ()

    def each(self, known: Mapping[int, Place]) -> Iterator[tuple[Lost, Iterator[tuple[Message, Place | None]]]]:
        """Each file with its messages, and where each was published; None: nobody knows.

        known: what the cluster's log says of it.  What a tail says itself counts in this tail alone.
        """
        places, last, lost = dict[int, Place](), 0, {one.file: one for one in self.lost}
        self._seen.clear()
        for name in self._all:
            if begins_a_tail(self._disk, name, last):
                places = dict(known)
            for rows in cut_rows(self._disk, name):
                for via, kind, header in zip(*(cells(rows, one) for one in ("via", "kind", "properties")), strict=True):
                    if kind == Kind.VIA:
                        said = cast("dict[str, Any]", orjson.loads(header))
                        places[via] = said["vhost"], said["exchange"], tuple(said.get("bcc") or ())
                last = max(last, *cells(rows, "lsn"))
            if (one := lost.get(name)) is not None:
                here = dict(places)
                yield one, ((said, ("/", "", ()) if via is None else here.get(via)) for via, said in self._of(one))

    def _of(self, one: Lost) -> Iterator[tuple[int | None, Message]]:
        now = time.time_ns() // 1000
        for rows in cut_rows(self._disk, one.file):
            names = ("lsn", "kind", "via", "name", "properties", "body", "expires_at", "not_before")
            for lsn, kind, via, key, header, body, expires_at, not_before in zip(
                *(_values(rows, name) for name in names), strict=True
            ):
                if kind not in PUBLISHES or lsn in self._seen:
                    continue
                self._seen.add(lsn)
                if not self._state.lacks(lsn):
                    one.there += 1
                elif lsn in self._made:
                    one.made += 1
                elif expires_at and expires_at <= now:
                    one.expired += 1
                else:
                    one.messages += 1
                    yield via, Message(lsn, lsn, key or "", header, body, expires_at or 0, not_before or 0)

    # marks

    def is_marked(self, one: Lost) -> bool:
        """Whether all of a file was published."""
        return (self._folder / CUT / (one.file + MARK)).exists()

    def mark(self, one: Lost) -> None:
        """All of a file is published.  OSError."""
        path = self._folder / CUT / (one.file + MARK)
        part = path.with_name(path.name + ".part")
        with part.open("wb") as file:
            file.write(orjson.dumps(one.plain()))
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)


def _values(rows: Any, name: str) -> list[Any]:
    """A column; times as microseconds."""
    import pyarrow as pa

    if name in ("expires_at", "not_before"):
        return cast("list[Any]", rows.column(name).cast(pa.int64()).to_pylist())
    return cells(rows, name)


def _tails_of(settings: Settings, client: Client, files: Sequence[str]) -> tuple[int, Tails, Mapping[int, Place]]:
    """The cluster's origin, what was cut off this member's log, and what the leader's log says of exchanges."""
    from penstock.server.cluster.registers import register_at, state_of

    if settings.cluster is None:
        raise SettingsError("the settings have no [cluster]: only a member's log is ever cut")
    _, state = state_of(register_at(settings.cluster.registry, settings.server.data, settings.cluster.lease))
    tails = Tails(Path(settings.server.data), state, files)
    listed = client.action("locate", with_vhost=False, log=True, **{"from": LSN_MAX})
    if listed.get("log") is None:
        raise Unavailable(f"what the log says of exchanges is not told: {listed['why']}")
    if listed["log"]["origin"] != state.origin:
        raise InvalidArgument(f"{client.address} keeps the log of another cluster")
    return state.origin, tails, {int(via): (*pair, ()) for via, pair in listed["log"]["vias"].items()}


def publish_cut(
    settings: Settings, client: Client, files: Sequence[str], amqp: str | None, *, do: bool, told: Callable[[int], None]
) -> list[Lost]:
    """Publish what was cut, or only count it.

    client: of the server that leads; its user may look at the whole log, and write where these messages go.
    """
    origin, tails, known = _tails_of(settings, client, files)
    sender = Republisher(client, amqp) if do else None
    try:
        for one, messages in tails.each(known):
            one.before = tails.is_marked(one)
            if sender is None or one.before:
                for _ in messages:
                    pass  # they are counted
                continue
            for done in sender.publish(f"cut {origin:x} {one.first}", _placed(one, messages)):
                one.published += done.published
                one.unroutable += done.unroutable
                told(one.published)
            tails.mark(one)
    finally:
        if sender is not None:
            sender.close()
    return tails.lost


def _placed(one: Lost, messages: Iterator[tuple[Message, Place | None]]) -> Iterator[tuple[Message, Place]]:
    for message, place in messages:
        if place is None:
            raise Refused(f"LSN {message.lsn} of {one.file}: no record tells the exchange that it was published to")
        yield message, place


def publish_of_member(
    config: str,
    files: Sequence[str],
    url: str,
    amqp: str | None,
    told: Callable[[int], None],
    *,
    do: bool,
) -> Told:
    """The command: what there is and was done.  config: the member's settings."""
    with connect(url) as client:
        found = publish_cut(read_settings(config, {}), client, files, amqp, do=do, told=told)
    open_ones = [one for one in found if not one.before]
    left, done = sum(one.messages for one in open_ones), sum(one.published for one in found)
    unroutable = sum(one.unroutable for one in found)
    columns = ("file in cut/", "to publish", "in the log", "dead letters", "expired", "published")
    rows = [
        (one.file, 0 if one.before else one.messages, one.there, one.made, one.expired,
         "before" if one.before else one.published)
        for one in found
    ]  # fmt: skip

    def show(facts: object) -> None:
        write_table(columns, rows)
        if do:
            write(f"{counted(done, 'message')} published, all on disk")
        else:
            write(f"{counted(left, 'message')} would be published: say --yes")

    if unroutable:
        note(f"{counted(unroutable, 'message')} not stored: no queue and no declared topic takes them")
    facts = {"dry_run": not do, "messages": left, "published": done, "files": [one.plain() for one in found]}
    return facts, show, typer.Exit(1) if unroutable else None
