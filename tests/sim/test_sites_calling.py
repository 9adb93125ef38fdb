"""Three sites in a row whose links come up in any order, over again, and one of which has the queue later."""

from __future__ import annotations

from collections import Counter

from choices import tried
from sim.sites_calling import Calling

SCHEDULES = 24


def calling(seed: int) -> Counter[str]:
    """One schedule."""
    return Calling(seed, kills=seed % 3 == 0).run_named(str(seed))


def test_what_sites_say_of_themselves_is_known_in_the_end(effort: int) -> None:
    tried(calling, SCHEDULES * effort, ("granted", "killed", "up", "late"))


def test_a_welcome_that_comes_late_takes_back_nothing_that_was_said_since() -> None:
    """It was given before a queue was there, of which the other link has told by then."""
    fabric = Calling(1)
    b, c = fabric.of("b"), fabric.of("c")
    fabric.quiet()
    c.links.outgoing["b"].renew("as another site is there")
    fabric.call(("c", "b"))
    late = fabric.newest(("c", "b"))
    assert late is not None
    assert fabric.hear_there(late)
    b.declare_again()
    fabric.quiet(late)
    assert c.links.engine.core.sharing.with_site(c.queue.id, "b") is not None
    fabric.quiet()
    assert c.links.outgoing["b"].up
    fabric.publish_at("a", 2)
    fabric.settle_down()
