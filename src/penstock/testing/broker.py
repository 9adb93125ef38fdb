"""The broker of a test: one server in this process, whose disk can crash and whose time moves when told.

It owns names, units and the life from start to crash to restart.  Every rule is the server's own: see `instance` for
how turns run, `doors` for real ports, `story` for what the log tells.  What a broker does stands by noun: `running`,
`publishing`, `subscribing`, `settling`; administration is here.

Seconds, on the outside, are floats since the Unix epoch or lengths; LSNs are bookmarks, `<origin>|<lsn>|`.
"""

from __future__ import annotations

from penstock.config.queue_arguments import given_names, queue_settings_from_mapping
from penstock.testing.instance import Instance
from penstock.testing.publishing import NO_END, Publishing
from penstock.testing.record_subscriptions import Viewing
from penstock.testing.running import VHOST
from penstock.testing.story import Event, tell
from penstock.testing.subscribing import Subscribing
from penstock.testing.transactions import Transactions
from penstock.testing.waiting import Waiting


class Broker(Transactions, Publishing, Viewing, Subscribing, Waiting):
    """A running broker; `with` closes it.  Safe to use from one thread at a time."""

    # -- administration

    def alter(self, queue: str, **settings: object) -> int:
        """Change settings of a queue: durations as text, seconds or timedelta; None for a key's default.

        How many messages left it, because a `recovery_point` that is given here is later than they are.
        """

        def work(instance: Instance) -> int:
            core = instance.core
            found = core.queue(VHOST, queue)
            present = core.ruling(found)
            own = queue_settings_from_mapping(settings, queue, present.own)
            left = core.alter_queue(instance.engine.now(), found, own, given_names(settings, present.given))
            instance.make_durable()
            return left

        return self.command(work)

    def stats(self, queue: str) -> dict[str, object]:
        """Figures of a queue: ready, leased, delayed, consumers ...; counts are since the last start."""
        return self.command(
            lambda instance: instance.core.stats(instance.core.queue(VHOST, queue), instance.engine.now())
        )

    def story(self, bookmark: str) -> list[Event]:
        """Every event of one message in the log, oldest first; NotFound when the log has no such message."""

        def work(instance: Instance) -> list[Event]:
            return tell(instance, self._lsn(instance, bookmark))

        return self.command(work)


__all__ = ["NO_END", "VHOST", "Broker"]
