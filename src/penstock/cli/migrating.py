"""`migrate`: what another broker has, taken over: its definitions, then its messages, each with a confirm.

The old broker is only looked at: its messages are delivered to this command, which acknowledges none of them, so they
go back when it is done.  With `--drain` a message is acknowledged there once it is confirmed here.

A file of definitions is corrected by who wrote it, so there what plugins have that there are not here are mistakes
(`config.foreign.rabbitmq`); a broker that is taken over as it runs has no file to correct: all left out is told.

How messages come is `migration_pump`, and how each comes once, however often the command runs, `migration_journal`.
"""

from __future__ import annotations

import base64
import json as plain_json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from penstock.cli.amqp_link import Broker, Link, broker_at, door_of, read_address
from penstock.cli.migration_journal import Journal
from penstock.cli.migration_pump import Gone, Links, Moved, carry, count
from penstock.cli.output import Told, connect, counted, note, root, telling, write, write_table
from penstock.config.foreign.rabbitmq import OPERATOR_COMPONENT, VHOST_COMPONENT
from penstock.config.queue_arguments import NOT_HERE
from penstock.errors import AccessRefused, InvalidArgument, NotFound, PenstockError, Refused, Unavailable, shown
from penstock.records.declared_types import EXCHANGE_TYPES
from penstock.records.password_hashes import SHA256, check_hash
from penstock.records.rights import Tag
from penstock.units import format_address, shown_address

if TYPE_CHECKING:
    from penstock.client import Client


ADMINISTRATOR: Tag = "administrator"


class Ends(NamedTuple):
    """Both brokers, and where their HTTP is."""

    old: Broker
    old_http: str
    new: Broker
    new_http: str


@telling(root)
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
) -> Told:
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
        moved = _queues(ends, queue or []) if messages else []
        with Links(ends.old, ends.new) as links:
            for one in moved:
                _carry(client, links, one, journal, drain=drain)
    facts = {"definitions": definitions, "warnings": warnings, "queues": [_plain(one) for one in moved]}
    return facts, lambda _: _show(moved, drain=drain), _short_of([one for one in moved if one.short])


def _short_of(short: Sequence[Moved]) -> Refused | None:
    if not short:
        return None
    return Refused(
        f"{counted(len(short), 'queue')} of the old broker {'has' if len(short) == 1 else 'have'} messages that "
        f"did not come, the first is '{short[0].queue}' in vhost '{short[0].vhost}': "
        + (short[0].why or "somebody else has them, or they came just now; run it again")
    )


def _plain(one: Moved) -> dict[str, object]:
    return {name: getattr(one, name) for name in ("vhost", "queue", "old", "carried", "now", "new", "drained", "why")}


def _show(moved: Sequence[Moved], *, drain: bool) -> None:
    columns = ["vhost", "queue", "waits there", "carried", "in this run", "waits here", *(["drained"] if drain else [])]
    rows = [
        [one.vhost, one.queue, one.old, one.carried, one.now, one.new, *([one.drained] if drain else [])]
        for one in moved
        if not one.why or one.carried
    ]
    if rows:
        write_table(columns, rows)
    for one in moved:
        if one.why:
            how = "did not come as a whole" if one.failed else "is left out"
            note(f"queue '{one.queue}' in vhost '{one.vhost}' {how}: {one.why}")
        if one.dying:
            note(
                f"queue '{one.queue}' in vhost '{one.vhost}': {counted(one.dying, 'message')} came for the last time: "
                f"the old broker drops or dead-letters them as they go back, for its delivery limit is {one.limit}"
            )
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
        target = Broker(address, port or 5672, user, password, "/", tls, client.address.trust)
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
    sent = None if body is None else plain_json.dumps(body).encode()
    login = base64.b64encode(f"{who.user}:{who.password}".encode()).decode()
    headers = {"content-type": "application/json", "authorization": f"Basic {login}"}
    try:
        request = urllib.request.Request(f"{base}/api/{path}", sent, headers, method="GET" if body is None else "POST")
        context = who.trust.context() if base.startswith("https") else None  # http and https alone: it is an address
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            data = answer.read()
        return plain_json.loads(data) if data else None
    except urllib.error.HTTPError as error:
        with error:
            text = _reason(error.read()) or error.reason
        kind = AccessRefused if error.code in {401, 403} else NotFound if error.code == 404 else Refused
        raise kind(f"{base}/api/{path}: {error.code}: {text}") from None
    except (OSError, HTTPException, ValueError) as error:  # what is no address, what speaks no HTTP, what is no JSON
        told = f"no answer from {shown_address(base)}/api/{path}"
        raise Unavailable(f"{told}: {str(error) or type(error).__name__}; is its management API on?") from None


def _reason(data: bytes) -> str:
    try:
        return str(plain_json.loads(data)["reason"])
    except (ValueError, KeyError, TypeError):
        return ""


def _define(ends: Ends) -> list[str]:
    """Take definitions over; what is not the same here, a sentence each."""
    found = _ask(ends.old_http, "definitions", ends.old)
    try:
        taken, told = without_plugins(found)
        taken["users"], us = _without_us(objects(found, "users"), ends.new)
    except InvalidArgument as error:
        raise InvalidArgument(f"{ends.old_http} exports no definitions of RabbitMQ: {error}") from None
    try:
        answer = cast("dict[str, list[str]] | None", _ask(ends.new_http, "definitions", ends.new, taken))
    except Refused as error:
        if isinstance(error, (AccessRefused, NotFound)):
            raise
        raise Refused(
            f"{error}. Nothing is taken over. Export the definitions, take out or change what is named, import them "
            "(docs/rabbitmq.md), and run this with --no-definitions"
        ) from None
    return [*told, *us, *(answer["warnings"] if answer else [])]


def _without_us(users: Sequence[dict[str, Any]], us: Broker) -> tuple[list[dict[str, Any]], list[str]]:
    """All but whom this command logs in as, where he would have another password, or administer no more."""
    ours = [one for one in users if one.get("name") == us.user and not _is_as(one, us)]
    if not ours:
        return [*users], []
    told = (
        f"user '{us.user}' stays as he is in the new server, with his password, tags and limits: this command logs in "
        "as him"
    )
    return [one for one in users if one not in ours], [told]


def _is_as(user: dict[str, Any], us: Broker) -> bool:
    """Whether a user of the definitions is an administrator with the password that we know."""
    from penstock.server.people.accounts import Kept  # with what it loads, for this command alone

    digest, algorithm = user.get("password_hash", ""), user.get("hashing_algorithm", SHA256)
    try:
        check_hash(digest, algorithm)
    except InvalidArgument:
        return False
    return ADMINISTRATOR in user.get("tags", ()) and Kept(digest, algorithm).matches(us.password)


def _queues(ends: Ends, names: Sequence[str]) -> list[Moved]:
    """The queues of the old broker that are asked for, with the reason for those that cannot come."""
    found = objects({"queues": _ask(ends.old_http, "queues", ends.old)}, "queues")
    out = [
        Moved(
            one["vhost"],
            one["name"],
            why="it is exclusive to a connection" if one.get("exclusive") else "",
            kind=one.get("type") or "classic",
            auto_delete=bool(one.get("auto_delete")),
            limit=_delivery_limit(one),
        )
        for one in found
        if not names or one["name"] in names
    ]
    if missing := set(names) - {one.queue for one in out}:
        raise NotFound(f"the old broker has no queue '{min(missing)}'")
    return sorted(out, key=lambda one: (one.vhost, one.queue))


def _delivery_limit(queue: dict[str, Any]) -> int | None:
    """After so many returns a message of this queue dies in the old broker."""
    ruled: Any = queue.get("effective_policy_definition")
    found: list[object] = [
        queue.get("arguments", {}).get("x-delivery-limit"),
        cast("dict[str, Any]", ruled).get("delivery-limit") if isinstance(ruled, dict) else None,
    ]
    return min((one for one in found if isinstance(one, int) and one >= 0), default=None)


# -- messages


def _carry(client: Client, links: Links, one: Moved, journal: Journal, *, drain: bool) -> None:
    """All that waits in one queue; what keeps it from coming keeps no other one."""
    if one.why:
        return
    carried = journal.queue(links.name, one.vhost, one.queue)
    try:
        for run, publisher in carried.publishers.items():
            carried.keep(run, int(client.action("publisher", vhost=one.vhost, publisher=publisher)["sequence"]))
        carry(links, one, carried, drain=drain)
    except Gone:
        one.why = "it is not there any more"
    except Unavailable:
        raise
    except PenstockError as error:
        one.why, one.failed = str(error), True
        with suppress(Gone, PenstockError):  # nor can it be counted
            count(links, one)


# -- definitions without what plugins have that there are not here

COMPONENTS = (OPERATOR_COMPONENT, VHOST_COMPONENT)
"""Of the parameters, those that no plugin has."""


class Item(NamedTuple):
    """One object of a section, and how a person finds it."""

    place: str
    values: dict[str, Any]


def without_plugins(definitions: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`definitions.json` without them, and a sentence for each thing that is left out."""
    told: list[str] = []
    parameters = [*_parameters(definitions, told)]
    taken = dict(definitions)
    taken["parameters"] = parameters
    taken["policies"] = [*_policies(definitions, told)]
    strange: set[tuple[str, str]] = set()
    taken["exchanges"] = [*_exchanges(definitions, strange, told)]
    taken["bindings"] = [*_bindings(definitions, strange, told)]
    return taken, told


def objects(definitions: object, section: str) -> list[dict[str, Any]]:
    """A section of the document.  InvalidArgument where it, or the document, is no such thing."""
    if not isinstance(definitions, Mapping):
        raise InvalidArgument(f"{shown(definitions)} is not an object")
    found: Any = cast("Mapping[str, Any]", definitions).get(section, [])
    given = cast("list[object]", found)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in given):
        raise InvalidArgument(f"{section}: {shown(given)} is not a list of objects")
    return cast("list[dict[str, Any]]", given)


def _items(definitions: Mapping[str, Any], section: str) -> Iterator[Item]:
    for index, values in enumerate(objects(definitions, section)):
        place = f"{section}[{index}]"
        name = values.get("name")
        yield Item(f'{place} "{name}"' if name else place, values)


def _parameters(definitions: Mapping[str, Any], told: list[str]) -> Iterator[dict[str, Any]]:
    for place, values in _items(definitions, "parameters"):
        component = values.get("component")
        if component in COMPONENTS:
            yield values
        else:
            told.append(f"{place} is left out: it belongs to the plugin {component!r}")


def _policies(definitions: Mapping[str, Any], told: list[str]) -> Iterator[dict[str, Any]]:
    for place, values in _items(definitions, "policies"):
        found = values.get("definition", {})
        if not isinstance(found, dict):
            raise InvalidArgument(f"{place}: definition {shown(found)} is not an object")
        given = cast("dict[str, Any]", found)
        kept = {key: value for key, value in given.items() if key not in NOT_HERE}
        told += [f"{place}: {key} is left out: {NOT_HERE[key]}" for key in given if key in NOT_HERE]
        if kept or not given:
            yield {**values, "definition": kept}
        else:
            told.append(f"{place} is left out, for it says nothing else: another policy may rule what it ruled")


def _exchanges(
    definitions: Mapping[str, Any], strange: set[tuple[str, str]], told: list[str]
) -> Iterator[dict[str, Any]]:
    for place, values in _items(definitions, "exchanges"):
        kind = values.get("type", "direct")
        if kind in EXCHANGE_TYPES:
            yield values
        else:
            strange.add((values.get("vhost", "/"), values.get("name", "")))
            told.append(f"{place} is left out, with its bindings: there are no exchanges of type {kind!r}")


def _bindings(
    definitions: Mapping[str, Any], strange: set[tuple[str, str]], told: list[str]
) -> Iterator[dict[str, Any]]:
    left = 0
    for _, values in _items(definitions, "bindings"):
        vhost = values.get("vhost", "/")
        ends = [values.get("source", "")]
        if values.get("destination_type") == "exchange":
            ends.append(values.get("destination", ""))
        if any((vhost, end) in strange for end in ends):
            left += 1
        else:
            yield values
    if left:
        told.append(f"{left} of the bindings are left out with exchanges that are")
