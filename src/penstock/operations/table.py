"""All administrative acts, by name."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.operations import people, policies, queues, server, topology, vhosts
from penstock.operations.operation import Operation

OPERATIONS: Mapping[str, Operation] = {
    one.name: one for one in (*queues.ROWS, *topology.ROWS, *policies.ROWS, *people.ROWS, *vhosts.ROWS, *server.ROWS)
}
