"""All administrative acts, by name: whatever operation a file of a noun has.

Upkeep of the log, durable streams and sinks are not here: `server.flight.log_actions` and others
have them.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.operations import messages, people, queues, server, topology, vhosts
from penstock.operations.operation import Operation

NOUNS = (queues, messages, topology, people, vhosts, server)

OPERATIONS: Mapping[str, Operation] = {
    one.name: one for noun in NOUNS for one in vars(noun).values() if isinstance(one, Operation)
}
