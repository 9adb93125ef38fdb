"""Arguments of queues that nobody knows: they are taken without effect, as in RabbitMQ, and the log says so.

Strangers make them up, so a name is told once in a while, and only so many names are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from penstock.config.queue_arguments import nearest_argument, unknown_arguments
from penstock.errors import shown

logger = logging.getLogger("penstock.server")

AGAIN_US = 600_000_000
NAMES_MOST = 20
"""Names that are told within that time."""


class Unheard:
    """What the log has said of them.  Belongs to the loop's thread."""

    def __init__(self, mono: Callable[[], int]) -> None:
        """mono: microseconds that never go back."""
        self._mono = mono
        self._told = dict[str, int]()  # by argument: when

    def made(self, vhost: str, queue: str, arguments: Iterable[str]) -> None:
        """A queue was made with these arguments."""
        for argument in unknown_arguments(arguments):
            now = self._mono()
            self._told = {name: at for name, at in self._told.items() if now - at < AGAIN_US}
            if argument not in self._told and len(self._told) < NAMES_MOST:
                self._told[argument] = now
                logger.warning(
                    "argument %s of queue %s in vhost %s has no effect: no setting is called that%s",
                    shown(argument), shown(queue), shown(vhost), nearest_argument(argument),
                )  # fmt: skip
