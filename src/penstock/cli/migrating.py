"""`migrate`: what another broker has, taken over: its definitions, then its messages, each with a confirm.

The old broker is only looked at: its messages are delivered to this command, which acknowledges none of them, so they
go back when it is done.  With `--drain` a message is acknowledged there once it is confirmed here.

How each comes once, however often the command runs: `migration_journal`.
"""

from __future__ import annotations

import base64
import json as plain_json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from penstock.cli.amqp_link import Broker, Delivered, Link, broker_at, door_of, read_address
from penstock.cli.migration_journal import Carried, Journal
from penstock.cli.output import Json, connect, counted, note, root, write, write_json, write_table
from penstock.errors import AccessRefused, NotFound, Refused, Unavailable
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.records.field_tables import FieldValue
from penstock.units import format_address
from penstock.wire.amqp import methods as m

if TYPE_CHECKING:
    from penstock.client import Client


IDLE_S = 2.0
"""A queue that delivers nothing for so long has no more for us."""

WINDOW = 2000
"""Messages that are on their way to the new server at once."""

GETS = 100
"""Messages that are asked for at once, one by one."""

KEPT_APART: Mapping[str, str] = {"CC": "x-original-cc", "BCC": "x-original-bcc"}
"""Headers that would have a message go to more queues than the one that it was in, and what they become."""


@dataclass(slots=True)
class Moved:
    """What became of one queue."""

    vhost: str
    queue: str
    old: int = 0  # waiting there, at the end
    carried: int = 0  # in all runs
    there: int = 0  # of these the old broker has still
    now: int = 0  # in this one
    new: int = 0  # waiting in the new one, at the end
    drained: int = 0  # acknowledged there, in this run
    why: str = ""  # left out
    stream: bool = False
    auto_delete: bool = False  # it would go with us, were we its only consumer

    @property
    def short(self) -> bool:
        """Whether something waits there that did not come."""
        return not self.why and self.old > self.there


class Ends(NamedTuple):
    """Both brokers, and where their HTTP is."""

    old: Broker
    old_http: str
    new: Broker
    new_http: str


@root.command()
def migrate(
    old: Annotated[str, typer.Argument(help="The broker to take over: amqp://user:password@host:port.")],
    new: Annotated[str, typer.Argument(help="The server to take it: penstock://user:password@host:port.")],
    queue: Annotated[
        list[str] | None, typer.Option("--queue", help="This queue alone; may come several times.")
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Acknowledge in the old broker what is confirmed here.")
    ] = False,
    definitions: Annotated[bool, typer.Option("--definitions/--no-definitions", help="Take definitions over.")] = True,
    messages: Annotated[bool, typer.Option("--messages/--no-messages", help="Take messages over.")] = True,
    state: Annotated[Path, typer.Option("--state", help="The journal, by which a run goes on.")] = Path(
        "migrate.state"
    ),
    old_http: Annotated[str | None, typer.Option("--old-http", help="The old broker's HTTP API.")] = None,
    new_http: Annotated[
        str | None, typer.Option("--new-http", help="The new server's HTTP, if it cannot be asked.")
    ] = None,
    new_amqp: Annotated[str | None, typer.Option("--new-amqp", help="The same of AMQP: amqp://host:port.")] = None,
    json: Json = False,
) -> None:
    """Take over another broker: its definitions, then its messages, each confirmed.

    The old broker keeps everything unless --drain is said.  Run it again after a break, or for what came meanwhile:
    what is there does not come twice.  The exit status is 1 where something waits in the old broker that did not come.

    Example: penstock migrate amqp://guest:guest@old penstock://localhost
    """
    source = read_address(old)
    if messages:
        Link(source).close()  # nothing is begun that could not go on
    with connect(new) as client, Journal(state) as journal:
        ends = _ends(client, source, new, old_http, new_http, new_amqp)
        warnings = _define(ends) if definitions else []
        for warning in warnings:
            note(warning)
        moved = (
            [_carry(client, ends, one, journal, drain=drain) for one in _queues(ends, queue or [])] if messages else []
        )
    if json:
        write_json({"definitions": definitions, "warnings": warnings, "queues": [_plain(one) for one in moved]})
    else:
        _show(moved, drain=drain)
    short = [one for one in moved if one.short]
    if short:
        raise Refused(
            f"{counted(len(short), 'queue')} of the old broker {'has' if len(short) == 1 else 'have'} messages that "
            f"did not come, the first is '{short[0].queue}' in vhost '{short[0].vhost}': somebody else has them, or "
            "they came just now; run it again"
        )


def _plain(one: Moved) -> dict[str, object]:
    return {name: getattr(one, name) for name in ("vhost", "queue", "old", "carried", "now", "new", "drained", "why")}


def _show(moved: Sequence[Moved], *, drain: bool) -> None:
    columns = ["vhost", "queue", "waits there", "carried", "in this run", "waits here", *(["drained"] if drain else [])]
    rows = [
        [one.vhost, one.queue, one.old, one.carried, one.now, one.new, *([one.drained] if drain else [])]
        for one in moved
        if not one.why
    ]
    if rows:
        write_table(columns, rows)
    for one in moved:
        if one.why:
            note(f"queue '{one.queue}' in vhost '{one.vhost}' is left out: {one.why}")
    total = sum(one.now for one in moved)
    write(f"{counted(total, 'message')} of {counted(len(rows), 'queue')} confirmed in this run")


# -- the two ends


def _ends(
    client: Client, old: Broker, new: str, old_http: str | None, new_http: str | None, new_amqp: str | None
) -> Ends:
    """Where everything is; the new server is asked where its other doors are."""
    user, password, host = client.address.user, client.address.password, client.address.host
    if new_amqp is not None:
        target = broker_at(new_amqp, user, password)
    else:
        tls, address, port = door_of(client, "amqp", host)
        target = Broker(address, port or 5672, user, password, "/", tls)
    secure, there, port = door_of(client, "http", host)
    before = format_address(old.host, 15671 if old.tls else 15672)
    return Ends(
        old,
        (old_http or f"{'https' if old.tls else 'http'}://{before}").rstrip("/"),
        target,
        (new_http or f"{'https' if secure else 'http'}://{format_address(there, port or 15672)}").rstrip("/"),
    )


def _ask(base: str, path: str, who: Broker, body: object = None) -> Any:
    """The answer of a management API; a body makes it a POST."""
    request = urllib.request.Request(
        f"{base}/api/{path}", None if body is None else plain_json.dumps(body).encode(),
        {"content-type": "application/json"}, method="GET" if body is None else "POST",
    )  # fmt: skip
    login = base64.b64encode(f"{who.user}:{who.password}".encode()).decode()
    request.add_header("authorization", f"Basic {login}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # http and https alone: `base` is an address
            data = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            text = _reason(error.read()) or error.reason
        kind = AccessRefused if error.code in {401, 403} else NotFound if error.code == 404 else Refused
        raise kind(f"{base}/api/{path}: {error.code}: {text}") from None
    except OSError as error:
        raise Unavailable(f"no answer from {base}/api/{path}: {error}; is its management API on?") from None
    return plain_json.loads(data) if data else None


def _reason(data: bytes) -> str:
    try:
        return str(plain_json.loads(data)["reason"])
    except (ValueError, KeyError, TypeError):
        return ""


def _define(ends: Ends) -> list[str]:
    """Take definitions over; what is not the same here, a sentence each."""
    found = cast("dict[str, Any]", _ask(ends.old_http, "definitions", ends.old))
    answer = cast("dict[str, list[str]] | None", _ask(ends.new_http, "definitions", ends.new, found))
    return answer["warnings"] if answer else []


def _queues(ends: Ends, names: Sequence[str]) -> list[Moved]:
    """The queues of the old broker that are asked for, with the reason for those that cannot come."""
    found = cast("list[dict[str, Any]]", _ask(ends.old_http, "queues", ends.old))
    out = [
        Moved(
            one["vhost"],
            one["name"],
            why="it is exclusive to a connection" if one.get("exclusive") else "",
            stream=one.get("type") == "stream",
            auto_delete=bool(one.get("auto_delete")),
        )
        for one in found
        if not names or one["name"] in names
    ]
    if missing := set(names) - {one.queue for one in out}:
        raise NotFound(f"the old broker has no queue '{min(missing)}'")
    return sorted(out, key=lambda one: (one.vhost, one.queue))


# -- messages


def _carry(client: Client, ends: Ends, one: Moved, journal: Journal, *, drain: bool) -> Moved:
    """All that waits in one queue."""
    if one.why:
        return one
    try:
        return _carried(client, ends, one, journal, drain=drain)
    except _Gone:
        one.why = "it is not there any more"
        return one


class _Gone(Exception):
    """A queue of the old broker went away meanwhile, by itself or by somebody else."""


def _waiting(source: Link, queue: str) -> int:
    """How many messages wait in a queue of the old broker."""
    try:
        return source.ready(queue)
    except NotFound:
        raise _Gone from None


def _carried(client: Client, ends: Ends, one: Moved, journal: Journal, *, drain: bool) -> Moved:
    carried = journal.queue(ends.old.name, one.vhost, one.queue)
    if (last := carried.publisher) is not None:
        carried.keep(int(client.action("publisher", vhost=one.vhost, publisher=last)["sequence"]))
    with Link(ends.old.of(one.vhost)) as source, Link(ends.new.of(one.vhost)) as target:
        one.old = _waiting(source, one.queue)
        target.ready(one.queue)
        target.call(m.ConfirmSelect(), m.ConfirmSelectOk)
        if one.old:
            _Pump(source, target, one, carried, drain=drain).run()
    with Link(ends.old.of(one.vhost)) as source, Link(ends.new.of(one.vhost)) as target:
        one.old, one.new = _waiting(source, one.queue), target.ready(one.queue)
        one.carried, one.there = carried.total, carried.there
    return one


class _Pump:
    """Messages from one connection to another, in order."""

    def __init__(self, source: Link, target: Link, one: Moved, carried: Carried, *, drain: bool) -> None:
        self._source, self._target, self._one, self._carried, self._drain = source, target, one, carried, drain
        self._waiting: dict[int, Delivered] = {}  # by number of the publish: what is not confirmed
        self._published = 0
        self._oldest = 1  # the lowest number that may wait
        self._stream = one.stream

    def run(self) -> None:
        self._consume()
        left = self._one.old
        while left > 0 or self._drain or self._stream:
            some = self._some(left)
            if not some:
                break
            left -= len(some)
            self._put(some)
            self._confirmed(WINDOW)
        self._confirmed(0)
        self._source.flush()

    def _consume(self) -> None:
        """From a stream in portions, from any other queue all at once: nobody acknowledges anything."""
        name = self._one.queue
        if self._one.auto_delete:
            return  # the broker would delete it when this connection ends: it is asked for each message instead
        arguments: dict[str, FieldValue] = {"x-stream-offset": "first"} if self._stream else {}
        self._source.consume(name, WINDOW if self._stream or self._drain else 0, arguments)

    def _some(self, most: int) -> list[Delivered]:
        """What has come, a portion at most; none when nothing more does."""
        source, bound = self._source, WINDOW if self._drain or self._stream else min(WINDOW, most)
        if self._one.auto_delete:
            source.get(self._one.queue, min(GETS, bound))
        while not source.delivered and not self._one.auto_delete:
            if not source.read(IDLE_S):
                return []
        return [source.delivered.popleft() for _ in range(min(bound, len(source.delivered)))]

    def _put(self, some: Sequence[Delivered]) -> None:
        """Publish those of them that have not come; the journal knows of them first."""
        fresh = [one for one in some if self._is_new(one)]
        first = self._carried.begin(fresh)
        for sequence, one in enumerate(fresh, first):
            self._published += 1
            self._waiting[self._published] = one
            header = _header(one, self._carried.sender, sequence)
            self._target.publish("", self._one.queue, header, one.body)

    def _is_new(self, one: Delivered) -> bool:
        if not self._carried.knows(one):
            return True
        self._done(one)
        return False

    def _done(self, one: Delivered) -> None:
        """It is in the new server."""
        if self._drain and not self._stream:
            self._carried.forget([one])
            self._one.drained += 1
        if self._drain or self._stream:
            self._source.tell(m.BasicAck(one.tag))

    def _confirmed(self, most: int) -> None:
        """Wait until no more than so many are on their way."""
        while len(self._waiting) > most or self._target.answered:
            if not self._target.answered and not self._target.read(60):
                raise Unavailable(f"{self._target.broker.name} confirms nothing for 60 seconds")
            while self._target.answered:
                answer = self._target.answered.popleft()
                numbers = [*range(self._oldest, answer.tag + 1)] if answer.multiple else [answer.tag]
                if not answer.taken:
                    raise Refused(
                        f"the new server refuses messages for queue '{self._one.queue}' in vhost '{self._one.vhost}': "
                        "a limit of that queue is met, or its disk is full"
                    )
                for number in numbers:
                    if (one := self._waiting.pop(number, None)) is not None:
                        self._one.now += 1
                        self._done(one)
                while self._oldest <= self._published and self._oldest not in self._waiting:
                    self._oldest += 1


def _header(one: Delivered, publisher: str, sequence: int) -> bytes:
    """The header as it came, with what numbers the message, and where it was published."""
    header = header_codec.decode(one.properties)
    headers = {KEPT_APART.get(name, name): value for name, value in (header.headers or {}).items()}
    if one.exchange:
        headers.setdefault("x-original-exchange", one.exchange)
        headers.setdefault("x-original-routing-key", one.key)
    if header.user_id is not None:
        headers.setdefault("x-original-user-id", header.user_id)
        header.user_id = None
    header.headers = {**headers, "x-publisher": publisher, "x-sequence": sequence}
    return header_codec.encode(header)
