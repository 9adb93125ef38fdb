"""Arguments of queues, exchanges and consumers that nobody knows: taken without effect, as by RabbitMQ, and logged.

Strangers make them up, so a name is told once in a while, and only so many names are.  Queues that the server makes for
its exchanges have arguments of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from penstock.config.queue_arguments import QUEUE_ARGUMENTS
from penstock.core.topology.exchange_types import EXCHANGE_ARGUMENTS
from penstock.core.topology.topology import owner_of
from penstock.errors import nearest_name, shown
from penstock.server.amqp.consumer_arguments import CONSUMER_ARGUMENTS

logger = logging.getLogger("penstock.server")

AGAIN_US = 600_000_000
NAMES_MOST = 20
"""Names that are told within that time."""

ALIKE = ("x-", "alternate", "hash-")
"""How arguments begin that look like one; others are somebody's own."""


class Unheard:
    """What the log has said of them.  Belongs to the loop's thread."""

    def __init__(self, mono: Callable[[], int]) -> None:
        """mono: microseconds that never go back."""
        self._mono = mono
        self._told = dict[tuple[str, str], int]()  # by what it is of, and argument: when

    def queue(self, vhost: str, name: str, arguments: Mapping[str, object]) -> None:
        """A queue was made with these arguments."""
        if owner_of(name, arguments) is None:
            self._tell("queue", vhost, name, arguments, QUEUE_ARGUMENTS)

    def exchange(self, vhost: str, name: str, arguments: Iterable[str]) -> None:
        """An exchange was made with these arguments."""
        self._tell("exchange", vhost, name, arguments, EXCHANGE_ARGUMENTS)

    def consumer(self, vhost: str, queue: str, arguments: Iterable[str]) -> None:
        """Somebody consumes from a queue, or from all that a pattern matches, with these arguments."""
        self._tell("a consumer of queue", vhost, queue, arguments, CONSUMER_ARGUMENTS)

    def _tell(self, what: str, vhost: str, name: str, arguments: Iterable[str], known: frozenset[str]) -> None:
        for argument in unknown_arguments(arguments, known):
            now = self._mono()
            self._told = {key: at for key, at in self._told.items() if now - at < AGAIN_US}
            if (what, argument) not in self._told and len(self._told) < NAMES_MOST:
                self._told[what, argument] = now
                logger.warning(
                    "argument %s of %s %s in vhost %s has no effect: no setting is called that%s",
                    shown(argument), what, shown(name), shown(vhost), _nearest(argument, known),
                )  # fmt: skip


def unknown_arguments(arguments: Iterable[str], known: frozenset[str]) -> list[str]:
    """Those that look like settings and are none of the known ones."""
    return [one for one in arguments if one.startswith(ALIKE) and one not in known]


def _nearest(argument: str, known: Iterable[str]) -> str:
    bare = {one.removeprefix("x-"): one for one in known}  # the prefix is what most have in common
    near = nearest_name(argument.removeprefix("x-"), bare)
    return "" if near is None else f"; did you mean {bare[near]!r}?"
