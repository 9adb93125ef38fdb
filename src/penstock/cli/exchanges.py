"""`exchange`, `binding`, `policy` and `operator-policy`: what routes messages to queues, and settings by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import Told, Yes, counted, family, in_order, make_sure, served, shown, write_table
from penstock.errors import InvalidArgument, NotFound
from penstock.records.declared_types import EXCHANGE_TYPES

if TYPE_CHECKING:
    from penstock.client import Client

exchange = family("exchange", "List, declare and delete exchanges.")
binding = family("binding", "List, declare and delete bindings of queues and exchanges.")

DEFAULT_NAME = "amq.default"
"""How the exchange without a name is written in a table."""

Arguments = Annotated[
    list[str] | None, typer.Option("--argument", metavar="KEY=VALUE", help="An argument, its value as JSON or text.")
]
Name = Annotated[str, typer.Argument(help="Its name.")]
Source = Annotated[str, typer.Argument(help="The exchange that routes.")]
Destination = Annotated[str, typer.Argument(help="The queue that takes, or with --to-exchange the exchange.")]
Key = Annotated[str, typer.Argument(help="The routing key, or pattern of keys.")]
ToExchange = Annotated[bool, typer.Option("--to-exchange", help="The destination is an exchange.")]


def read_arguments(texts: list[str] | None) -> dict[str, object]:
    """`KEY=VALUE`: the value as JSON where it is JSON, as text otherwise.  Raises InvalidArgument."""
    import orjson

    found: dict[str, object] = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidArgument(f"--argument {text!r}: write KEY=VALUE, as in alternate-exchange=lost")
        try:
            read = orjson.loads(value)
            whole = isinstance(read, float) and value.strip().removeprefix("-").isdecimal()  # of more than 64 bits
            found[key] = int(value) if whole else read
        except orjson.JSONDecodeError:
            found[key] = value
    return found


# -- exchanges


def _show(columns: Sequence[str], found: Sequence[Mapping[str, object]]) -> None:
    """A table; the first column may name the default exchange."""
    write_table(columns, [[one[columns[0]] or DEFAULT_NAME, *(one[key] for key in columns[1:])] for one in found])


@served(exchange, "list")
def list_exchanges(client: Client) -> Told:
    """List the exchanges of the vhost, those that are always there first.

    Example: penstock exchange list
    """
    found = in_order(client.exchanges(), "name")
    found.sort(key=lambda one: one["name"] != "" and not str(one["name"]).startswith("amq."))
    return found, partial(_show, ("name", "type", "durable", "auto_delete", "internal", "arguments"))


@served(exchange, "declare")
def declare_exchange(
    client: Client,
    name: Name,
    type_: Annotated[str, typer.Option("--type", help=f"One of {', '.join(EXCHANGE_TYPES)}.")] = "direct",
    transient: Annotated[bool, typer.Option("--transient", help="It ends with the server.")] = False,
    auto_delete: Annotated[bool, typer.Option("--auto-delete", help="It goes with its last binding.")] = False,
    internal: Annotated[bool, typer.Option("--internal", help="Other exchanges alone publish to it.")] = False,
    argument: Arguments = None,
) -> Told:
    """Declare an exchange; the same again changes nothing.

    Example: penstock exchange declare shop --type topic
    """
    arguments = read_arguments(argument)
    client.declare_exchange(
        name, type_, durable=not transient, auto_delete=auto_delete, internal=internal, arguments=arguments
    )
    return {"declared": name}, f"exchange {name} declared"


@served(exchange, "delete")
def delete_exchange(
    client: Client,
    name: Name,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only when nothing is bound to it.")] = False,
    yes: Yes = False,
) -> Told:
    """Delete an exchange with its bindings.  Queues stay as they are.

    Example: penstock exchange delete shop --yes
    """
    bindings = len(client.bindings(source=name)) + len(client.bindings(destination=name))
    make_sure(f"exchange {name} has {counted(bindings, 'binding')}: delete it with them?", yes)
    client.delete_exchange(name, if_unused=if_unused)
    return {"deleted": name, "bindings": bindings}, f"exchange {name} deleted with {counted(bindings, 'binding')}"


# -- bindings


@served(binding, "list")
def list_bindings(
    client: Client,
    queue: Annotated[str | None, typer.Option("--queue", help="Those that end at this queue.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Those that begin at this exchange.")] = None,
    destination: Annotated[str | None, typer.Option("--destination", help="Those that end at this exchange.")] = None,
) -> Told:
    """List bindings; every queue that shows its own name has one to the default exchange.

    Example: penstock binding list --queue to-ship
    """
    columns = ("source", "destination_type", "destination", "routing_key", "arguments")
    found = client.bindings(queue, source=source, destination=destination)
    return in_order(found, *columns), partial(_show, columns)


@served(binding, "declare")
def declare_binding(
    client: Client,
    source: Source,
    destination: Destination,
    key: Key = "",
    to_exchange: ToExchange = False,
    argument: Arguments = None,
) -> Told:
    """Bind a queue, or an exchange, to an exchange; the same again changes nothing.

    Example: penstock binding declare shop to-ship "orders.#"
    """
    arguments = read_arguments(argument)
    (client.bind_exchange if to_exchange else client.bind)(destination, source, key, arguments)
    what = {"bound": destination, "to": source, "key": key}
    return what, f"{destination} takes {_key(key)} from exchange {source}"


@served(binding, "delete")
def delete_binding(
    client: Client,
    source: Source,
    destination: Destination,
    key: Key = "",
    to_exchange: ToExchange = False,
    argument: Arguments = None,
    yes: Yes = False,
) -> Told:
    """Remove a binding.  What it has routed stays where it is.

    Example: penstock binding delete shop to-ship "orders.#" --yes
    """
    arguments = read_arguments(argument)
    kind = "exchange" if to_exchange else "queue"
    names = ("destination_type", "destination", "routing_key", "arguments")
    found = [tuple(one[name] for name in names) for one in client.bindings(source=source)]
    if (kind, destination, key, arguments) not in found:
        raise NotFound(f"{kind} {destination} is not bound to exchange {source} by {_key(key)} with these arguments")
    make_sure(f"{kind} {destination} takes {_key(key)} from exchange {source}: no more?", yes)
    (client.unbind_exchange if to_exchange else client.unbind)(destination, source, key, arguments)
    what = {"unbound": destination, "from": source, "key": key}
    return what, f"{destination} takes {_key(key)} from exchange {source} no more"


def _key(key: str) -> str:
    return f"key {key!r}" if key else "the empty key"


COLUMNS = ("name", "pattern", "apply-to", "definition", "priority", "origin")


def policy_family(operator: bool) -> None:
    """The commands of one kind of policies."""
    word = "operator policy" if operator else "policy"
    command = "operator-policy" if operator else "policy"
    what = "limits beside all policies" if operator else "settings for many queues at once"
    app = family(command, f"List, set and delete {word[:-1]}ies: {what}.")
    example = '{"max-length": 100000}' if operator else '{"message-ttl": 60000}'

    def list_(client: Client) -> Told:
        return client.policies(operator=operator), COLUMNS

    def set_(
        client: Client,
        name: Name,
        pattern: Annotated[str, typer.Argument(help="A regular expression, found anywhere in a name.")],
        definition: Annotated[str, typer.Argument(help="Keys and values as JSON.")],
        priority: Annotated[int, typer.Option("--priority", help="The highest that matches rules alone.")] = 0,
        apply_to: Annotated[
            str | None, typer.Option("--apply-to", help="queues, classic_queues, exchanges or all.")
        ] = None,
    ) -> Told:
        from penstock.config.queue_arguments import parse_definition

        values = parse_definition(definition)
        new = client.set_policy(name, pattern, values, priority=priority, apply_to=apply_to, operator=operator)
        return {"policy": name, "new": new}, f"{word} {name} {'set' if new else 'changed'}"

    def delete(client: Client, name: Name, yes: Yes = False) -> Told:
        found = next((one for one in client.policies(operator=operator) if one["name"] == name), None)
        if found is not None:  # else the server says that there is none
            says = f"{shown(found['definition'])} for what matches {found['pattern']!r}"
            make_sure(f"{word} {name} says {says}: delete it?", yes)
        client.delete_policy(name, operator=operator)
        return {"deleted": name}, f"{word} {name} deleted, and what it did is undone"

    plural = f"{word[:-1]}ies"
    list_.__doc__ = f"List the {plural} of the vhost.\n\nExample: penstock {command} list"
    article = "an" if operator else "a"
    set_.__doc__ = (
        f"Set {article} {word}; one of that name is replaced as a whole.  Queues that match follow at once.\n\n"
        f"Example: penstock {command} set cap '^jobs' '{example}'"
    )
    delete.__doc__ = f"Delete {article} {word}; what it did is undone.\n\nExample: penstock {command} delete cap --yes"
    served(app, "list")(list_)
    served(app, "set")(set_)
    served(app, "delete")(delete)


policy_family(operator=False)
policy_family(operator=True)
