"""All administrative acts, by name."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.operations import details, messages, people, policies, queues, readers, server, topics, topology, vhosts
from penstock.operations.operation import Operation

NOUNS = (queues, details, messages, topics, topology, policies, people, vhosts, readers, server)

OPERATIONS: Mapping[str, Operation] = {one.name: one for noun in NOUNS for one in noun.ROWS}
