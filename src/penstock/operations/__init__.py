"""What can be administered: each act once, with its typed arguments, the right it asks for, and what carries it out.

    operation      one row of the table: name, right, arguments, function, where users find it, and what it works on
    story, moving  what takes longer: the life of a message from the log, and moving many
    queues, messages, topology, people, vhosts, server      the acts, by noun

Doors are derived from `OPERATIONS`: Flight's actions as they stand, HTTP's paths as the rows say, or by way of
RabbitMQ's shapes.  Upkeep of the log, durable streams and sinks are not here: `server.flight.log_actions` and others
have them.  Arguments and answers are plain values.  Functions know no door.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.operations import messages, people, queues, server, topology, vhosts
from penstock.operations.operation import Operation

NOUNS = (queues, messages, topology, people, vhosts, server)

OPERATIONS: Mapping[str, Operation] = {
    one.name: one for noun in NOUNS for one in vars(noun).values() if isinstance(one, Operation)
}
"""All administrative acts, by name: whatever operation a file of a noun has."""
