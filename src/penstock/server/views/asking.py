"""What a query by name is about: where the messages stand that a queue or topic shows now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.core.queue.places import AVAILABLE
from penstock.errors import NotFound
from penstock.server.flight.reading.contents import lsns_of

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.state.lsns import Ints


def positions(core: Core, vhost: str, name: str) -> Ints:
    """LSNs of what is available in a queue, or of the records of a topic with a key; ascending.

    Errors: NotFound, InvalidArgument for a topic without a key.
    """
    found = _topic(core, vhost, name)
    if found is not None:
        return np.sort(found)
    queue = core.find_queue(vhost, name)
    if queue is None:
        core.sow(vhost, "", name)  # says what is wrong with the name
        raise NotFound(f"no queue or topic '{name}' in vhost '{vhost}'")
    chunks = [lsns_of(chunk) for chunk in core.queue(vhost, name).chunks(*AVAILABLE)]
    return np.sort(np.concatenate(chunks)) if chunks else np.zeros(0, np.int64)


def _topic(core: Core, vhost: str, name: str) -> Ints | None:
    exchange, slash, key = name.partition("/")
    by_name = core.sows.by_name
    sow = by_name.get((vhost, exchange, key)) if slash and exchange else None
    sow = sow or by_name.get((vhost, "", name))
    return None if sow is None else sow.index.snapshot().arrays()[1]
