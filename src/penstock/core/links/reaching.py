"""Whether what is published to a group-local queue has a way to its `initial_owner`: what has none nobody ever owns.

A site looks at its own links, and at those of its neighbours' queues whose messages pass it: which sites lie behind its
neighbours it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from penstock.core.links.carried import Carried
from penstock.core.links.sharing import Offer


def all_goes_on(links: Mapping[str, Carried], owner: str, vhost: str, exchange: str, shown: str) -> bool:
    """Whether every message of the topics that a queue shows may come to its first owner.

    links: what each carries, by the site that it leads to.  Without one to the owner another may lead there.
    """
    ways = [links[owner]] if owner in links else links.values()
    return any(one.carries_all(vhost, exchange, shown) for one in ways)


def left_out(offer: Offer, links: Mapping[str, Carried], site: str) -> Iterator[str]:
    """Why a queue of this site cannot be shared with another one by the link to it: at most one line."""
    owner = offer.initial_owner
    concerns = site in links and owner is not None and (site == owner or not offer.leads)
    if concerns and not all_goes_on(links, str(owner), offer.identity.vhost, *offer.topic):
        yield _told(offer, "the link to it leaves" if offer.leads else "all links from here leave")


def cut_short(
    offers: Iterable[Offer], links: Mapping[str, Carried], here: str, group: str, find: Callable[[str, str], object]
) -> Iterator[str]:
    """Queues of a neighbour that has no link to their first owner, of whose messages this site would tell it some.

    group: the neighbour's.  find: a queue that is here, too, by vhost and name: of it the link to the owner says so
    """
    for offer in offers:
        vhost, owner = offer.identity.vhost, offer.initial_owner
        onward = None if owner is None or offer.leads or not offer.sends else links.get(owner)
        if onward is None or group not in onward.pass_through or find(vhost, offer.identity.name):
            continue
        if onward.touches(vhost, *offer.topic) and not onward.carries_all(vhost, *offer.topic):
            yield _told(offer, f"the link to it from '{here}' leaves")


def _told(offer: Offer, link: str) -> str:
    queue = f"queue '{offer.identity.name}' in vhost '{offer.identity.vhost}'"
    return (
        f"{queue}: its initial_owner '{offer.initial_owner}' would not hear of what {link} out, and nobody would own "
        "that: have it carry all of the topic, without a filter"
    )
