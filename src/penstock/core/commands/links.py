"""Commands about queues that other sites share: who there is, and whose messages are.

What a site hears of another's decision is a record here, too.  A grant goes out when its record is durable; the shell
of links sees to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.core.commands.parts import CoreParts
from penstock.core.links.identity import Site
from penstock.core.links.ownership import Claim, Grant, Span, grants, proxied
from penstock.core.links.peers import HERE
from penstock.core.queue.owning import why_not_shared
from penstock.core.queue.queue import Queue
from penstock.errors import PreconditionFailed
from penstock.records.chunks import Now
from penstock.records.kinds import Kind


class LinkCommands(CoreParts):
    """Sites, and the owners of messages."""

    def meet(self, now: Now, site: Site) -> int:
        """The number by which records name a site from now on; this one is known by its origin, and is 0.

        Errors: PreconditionFailed for a name that another site has.
        """
        known = self.peers.number(site.name)
        mine = site.origin == self.origin
        if known is not None and (self.peers.sites[known].origin != site.origin):
            raise PreconditionFailed(
                f"a site with the log {site.origin} is called '{site.name}', as the one with the log "
                f"{self.peers.sites[known].origin} is: every site needs a name of its own"
            )
        number = HERE if mine else known if known is not None else self.peers.next()
        if self.peers.sites.get(number) != site:
            self._at(now)
            header = {"peer": number, "origin": str(site.origin), "group": site.group}
            self._out.record(Kind.PEER, site.name, header)
            self.peers.put(number, site)
            for queue in self._admin.by_id.values() if number == HERE else ():
                queue.renamed()
        return number

    def own(self, now: Now, queue: Queue, spans: Sequence[Span], claim: Claim) -> int:
        """Hear a site's claim to messages of a queue, by their LSNs here; for how many it holds.

        Errors: PreconditionFailed for a queue that cannot be shared, or a site that nobody has met.
        """
        now = self._at(now)
        if (what := why_not_shared(queue.settings)) is not None:
            raise PreconditionFailed(f"queue '{queue.name}' has {what}: other sites cannot own messages of it")
        if self.peers.number(claim.owner) is None:
            raise PreconditionFailed(f"no site is called '{claim.owner}', as far as this one knows")
        count = queue.own(now, spans, claim, self.peers, self._out)
        self._touch(queue)
        return count

    def grant(self, now: Now, queue: Queue, asked: Iterable[Span], asker: str) -> list[Grant]:
        """Give to another site what it asked for of what is ready here and this site's; what it was given.

        Nobody here could take it: whoever could has been given it by the command that made it ready.
        """
        now = self._at(now)
        queue.catch_up(now, self._out)
        if queue.busy:
            return []  # filters, or the order of its messages, are being worked out
        out = grants(queue.claims(self.peers), asked, queue.ready_spans(), asker)
        for one in out:
            self.own(now, queue, [(one.first, one.stop)], one.claim)
        return out

    def take_by_proxy(self, now: Now, queue: Queue, asked: Iterable[Span], absent: Iterable[str]) -> list[Grant]:
        """Own what was asked for here and belongs to sites that are away, as an operator has allowed."""
        out = proxied(queue.claims(self.peers), asked, self.peers.here, absent)
        for one in out:
            self.own(now, queue, [(one.first, one.stop)], one.claim)
        return out
