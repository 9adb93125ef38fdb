"""What became of the messages of one worker since it began."""

from __future__ import annotations

from penstock.records.dataclass import dataclass


@dataclass(slots=True)
class Counts:
    """Messages by outcome."""

    done: int = 0  # acknowledged
    retried: int = 0  # went back as a failure: the function raised, or took too long
    rejected: int = 0  # dead letters: the function said so, or the body was not what it takes
    released: int = 0  # went back uncounted
    lost: int = 0  # the server had taken them back before the outcome could be told: they come again
    connections: int = 0  # to the server, the first one included
    running: int = 0  # at this moment

    def settled(self, verb: str) -> None:
        """One more of an outcome: ack, retry, reject or release."""
        name = {"ack": "done", "retry": "retried", "reject": "rejected", "release": "released"}[verb]
        setattr(self, name, getattr(self, name) + 1)
