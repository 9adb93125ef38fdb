"""All paths that command the server: each noun of `wire.http` with what carries it out here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.server.http.administration import of_people, of_policies, of_vhosts
from penstock.server.http.definitions import Definitions
from penstock.server.http.deriving import Deriving
from penstock.server.http.links import of_links
from penstock.server.http.messages import Messages
from penstock.server.http.own import Own
from penstock.server.http.queries import Querying
from penstock.server.http.topology import of_bindings, of_exchanges, of_queues
from penstock.server.operating import Operating, Waits
from penstock.wire.http import (
    definitions,
    events,
    health,
    messages,
    own,
    pipelines,
    query,
)  # fmt: skip

if TYPE_CHECKING:
    from penstock.server.http.events import Events
    from penstock.server.http.facts import Facts
    from penstock.server.services import Server
    from penstock.wire.http.routes import Row


def rows_of(server: Server, facts: Facts, watching: Events) -> list[Row]:
    """The paths beside those that the facts answer."""
    waits = Waits()
    house = Operating(server, facts.refuse_early, waits)
    of, own_paths = Deriving(house), Deriving(house, names=True)
    talk = Messages(server, facts, waits)
    return [
        *of_queues(own_paths),
        *of_exchanges(of, own_paths),
        *of_bindings(of, house),
        *of_people(of, house),
        *of_vhosts(of),
        *messages.rows(talk),
        *of_links(of, house),
        *of_policies(of, house),
        *definitions.rows(facts, Definitions(server, facts, waits)),
        *pipelines.rows(facts.pipelines),
        *own.rows(Own(server, facts, waits)),
        *query.rows(Querying(server, facts, waits)),
        *events.rows(watching),
        *health.rows(facts, house.declare, talk),
    ]
