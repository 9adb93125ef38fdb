"""All paths that command the server: each noun of `wire.http` with what carries it out here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.server.http.commands import Waits
from penstock.server.http.definitions import Definitions
from penstock.server.http.links import Links
from penstock.server.http.messages import Messages
from penstock.server.http.own import Own
from penstock.server.http.people import People
from penstock.server.http.policies import Policies
from penstock.server.http.queries import Querying
from penstock.server.http.topology import Topology
from penstock.wire.http import (
    bindings,
    definitions,
    events,
    exchanges,
    health,
    links,
    messages,
    own,
    people,
    pipelines,
    policies,
    query,
    vhosts,
)  # fmt: skip

if TYPE_CHECKING:
    from penstock.server.http.events import Events
    from penstock.server.http.facts import Facts
    from penstock.server.services import Server
    from penstock.wire.http.routes import Row


def rows_of(server: Server, facts: Facts, watching: Events) -> list[Row]:
    """The paths beside those that the facts answer."""
    waits = Waits()
    topology = Topology(server, facts, waits)
    ruling = Policies(server, facts, waits)
    talk = Messages(server, facts, waits)
    everybody = People(server, facts, waits)
    return [
        *exchanges.rows(topology),
        *bindings.rows(topology),
        *people.rows(everybody),
        *vhosts.rows(everybody),
        *messages.rows(talk),
        *links.rows(Links(server, facts, waits)),
        *policies.rows(ruling, everybody),
        *definitions.rows(facts, Definitions(server, facts, waits, topology, everybody, ruling)),
        *pipelines.rows(facts.pipelines),
        *own.rows(Own(server, facts, waits)),
        *query.rows(Querying(server, facts, waits)),
        *events.rows(watching),
        *health.rows(facts, topology, talk),
    ]
