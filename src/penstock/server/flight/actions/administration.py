"""All actions that administer: what the management API over HTTP does, over Flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.server.flight.actions.action import Table
from penstock.server.flight.actions.desk import Desk
from penstock.server.flight.actions.drain import DrainAction
from penstock.server.flight.actions.links import LinkActions
from penstock.server.flight.actions.overview import OverviewAction
from penstock.server.flight.actions.people import PeopleActions
from penstock.server.flight.actions.topology import TopologyActions

if TYPE_CHECKING:
    from penstock.server.flight.handover import Handover
    from penstock.server.services import Server


def administration(server: Server, handover: Handover) -> Table:
    """Rows of the table of all actions."""
    desk = Desk(server, handover)
    drain = DrainAction(server, handover).table
    overview = OverviewAction(desk).table
    return {**overview, **drain, **LinkActions(desk).table, **TopologyActions(desk).table, **PeopleActions(desk).table}
