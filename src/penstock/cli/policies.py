"""`policy` and `operator-policy`: list, set, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.output import DEFAULT_URL, Json, Url, connect, tell, write_list

COLUMNS = ("name", "pattern", "apply-to", "definition", "priority", "origin")


def family(operator: bool) -> typer.Typer:
    """The commands of one kind."""
    word = "operator policy" if operator else "policy"
    command = "operator-policy" if operator else "policy"
    what = "limits beside all policies" if operator else "settings for many queues at once"
    app = typer.Typer(help=f"List, set and delete {word[:-1]}ies: {what}.", no_args_is_help=True, rich_markup_mode=None)
    example = '{"max-length": 100000}' if operator else '{"message-ttl": 60000}'

    def list_(url: Url = DEFAULT_URL, json: Json = False) -> None:
        with connect(url) as client:
            policies = client.policies(operator=operator)
        write_list(policies, COLUMNS, json)

    def set_(
        name: Annotated[str, typer.Argument(help="Its name.")],
        pattern: Annotated[str, typer.Argument(help="A regular expression, found anywhere in a name.")],
        definition: Annotated[str, typer.Argument(help="Keys and values as JSON.")],
        priority: Annotated[int, typer.Option("--priority", help="The highest that matches rules alone.")] = 0,
        apply_to: Annotated[
            str | None, typer.Option("--apply-to", help="queues, classic_queues, exchanges or all.")
        ] = None,
        url: Url = DEFAULT_URL,
        json: Json = False,
    ) -> None:
        from penstock.config.policy_settings import parse_definition

        values = parse_definition(definition)
        with connect(url) as client:
            new = client.set_policy(name, pattern, values, priority=priority, apply_to=apply_to, operator=operator)
        tell({"policy": name, "new": new}, f"{word} {name} {'set' if new else 'changed'}", json)

    def delete(
        name: Annotated[str, typer.Argument(help="Its name.")], url: Url = DEFAULT_URL, json: Json = False
    ) -> None:
        with connect(url) as client:
            client.delete_policy(name, operator=operator)
        tell({"deleted": name}, f"{word} {name} deleted, and what it did is undone", json)

    plural = f"{word[:-1]}ies"
    list_.__doc__ = f"List the {plural} of the vhost.\n\nExample: penstock {command} list"
    set_.__doc__ = (
        f"Set a {word}; one of that name is replaced as a whole.  Queues that match follow at once.\n\n"
        f"Example: penstock {command} set cap '^jobs' '{example}'"
    )
    delete.__doc__ = f"Delete a {word}; what it did is undone.\n\nExample: penstock {command} delete cap"
    if operator:
        set_.__doc__ = set_.__doc__.replace("Set a operator", "Set an operator")
        delete.__doc__ = delete.__doc__.replace("Delete a operator", "Delete an operator")
    app.command("list")(list_)
    app.command("set")(set_)
    app.command("delete")(delete)
    return app


def add_to(tree: typer.Typer) -> None:
    """Put these commands into the tree."""
    tree.add_typer(family(operator=False), name="policy")
    tree.add_typer(family(operator=True), name="operator-policy")
