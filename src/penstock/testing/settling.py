"""Settling by name: by bookmarks or by a filter, by whoever asks, wherever the messages are."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.effects import Verb
from penstock.errors import InvalidArgument
from penstock.expr import compile_filter
from penstock.expr.context import Context
from penstock.expr.filter import bound
from penstock.testing.arguments import check_text
from penstock.testing.instance import Instance
from penstock.testing.running import VHOST, Running
from penstock.wire.flight.bookmarks import read_marks

_VERBS = {None: Verb.ACK, "ack": Verb.ACK, "cancel": Verb.CANCEL, "expire": Verb.EXPIRE}


class Settling(Running):
    def ack(self, queue: str, bookmarks: Sequence[str] | str, by: str = "", option: str | None = None) -> int:
        """Settle messages wherever they are, as the queue's `leasing` allows to the client `by`; how many it affected.

        bookmarks   a sequence, or text with commas between them
        option      "cancel" or "expire" instead of an ack
        What is not there and may still come is remembered.  Durable when this returns.
        Raises InvalidArgument for a bookmark that was not given out, QueueFull when too much is remembered.
        """
        verb = _verb(option)
        marks = read_marks(bookmarks.split(",") if isinstance(bookmarks, str) else bookmarks)

        def work(instance: Instance) -> int:
            core = instance.core
            affected = core.acknowledge(instance.engine.now(), core.queue(VHOST, queue), marks, verb, client=by)
            instance.make_durable()
            return affected

        return self.command(work)

    def ack_filter(self, queue: str, filter: str, by: str = "", option: str | None = None) -> int:
        """Settle whatever matches of what is in the queue, whoever holds it, as `leasing` allows; how many it affected.

        option    "cancel" or "expire" instead of an ack
        Durable when this returns.
        """
        check_text(filter=filter, by=by)
        asks = Context(client_name=by, instance_name=self._settings.server.name)
        verb, compiled = _verb(option), compile_filter(bound(filter, asks))

        def work(instance: Instance) -> int:
            core = instance.core
            told = list[int]()
            core.settle_matching(
                instance.engine.now(), core.queue(VHOST, queue), compiled, told.append, verb, client=by
            )
            while not told:
                instance.run_turns()
            instance.make_durable()
            return told[0]

        return self.command(work)


def _verb(option: str | None) -> Verb:
    if option not in _VERBS:
        raise InvalidArgument(f"option is {option!r}: there is 'cancel' and 'expire'")
    return _VERBS[option]
