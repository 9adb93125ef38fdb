"""`link`: other sites that queues are shared with."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import Told, family, note, served, write_table
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.client import Client

app = family("link", "Other sites that queues are shared with: how far they are, who is away.")

Named = Annotated[str, typer.Argument(metavar="LINK", help="Its name: that of the other site.")]


@served(app, "status")
def status(client: Client) -> Told:
    """Show the links that lead away and those that come: state, what the other side does not have yet, what went over.

    Messages are those since this server started, of a link that comes since it was made.

    Example: penstock link status
    """
    return client.links(), _show


def _show(found: list[dict[str, Any]]) -> None:
    if not found:
        note("no [[link]] leads from here, and none comes")
        return
    write_table(
        ("link", "to or from", "state", "since", "waits for it", "behind", "messages", "address"),
        [_row(one) for one in found],
    )
    for one in found:
        if one["why"]:
            note(f"{one['link']}: {one['why']}")


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    out = one["direction"] == "out"
    waits = [
        *(["confirms"] if out and one["sync"] and not one["downgraded"] and one["state"] != "paused" else []),
        *(["queues here"] if one["awaited"] else []),
    ]
    behind = f"{one['lag_seconds']:.1f} s" if out else "-"
    who = " and ".join(waits) or ("nobody" if out else "-")
    direction = "to" if out else "from"
    since = datetime.fromtimestamp(one["since"] / 1e6, UTC).isoformat(timespec="seconds")
    return one["link"], direction, one["state"], since, who, behind, one["messages"], one["address"] or "-"


@served(app, "pause")
def pause(client: Client, link: Named) -> Told:
    """Tell a site nothing more.  Nothing is lost: the log is kept for it until it has all of it.

    Example: penstock link pause berlin
    """
    done = client.pause_link(link)
    return done, f"link {link} is paused"


@served(app, "resume")
def resume(client: Client, link: Named) -> Told:
    """Go on where that site says it is.

    Example: penstock link resume berlin
    """
    done = client.resume_link(link)
    return done, f"link {link} goes on"


@served(app, "proxy")
def proxy(
    client: Client,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="A queue that is shared with other sites.")],
    switch: Annotated[str, typer.Argument(metavar="on|off", help="Whether this site acts for absent owners.")],
) -> Told:
    """Have this site act for sites that are away: what they own of a queue is given to consumers here.

    If such a site is alive and only cut off, both may deliver a message.  Switch it on at one site alone, and off again
    when the others are back.

    Example: penstock link proxy orders on
    """
    if switch not in ("on", "off"):
        raise InvalidArgument(f"{switch!r} is not on or off")
    done = client.proxy_transfer(queue, on=switch == "on")
    text = f"acts for absent owners of queue {queue}" if switch == "on" else f"acts for nobody in queue {queue}"
    return done, f"this site {text}"
